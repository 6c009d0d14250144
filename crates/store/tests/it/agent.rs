//! An agent's side of a story: an attempt of a run, and the calls it makes.

use std::sync::{Arc, Mutex};

use outlast_core::{
    engine::{
        call::{
            admit::{Admission, Admit},
            delivered::{Delivered, GiveBack, Receiver},
            settle::{Bill, Close, Settle, Settled},
        },
        op::{Actor, Verb},
        rule::taking::Received,
        run::{
            claim::{Claim, Claimed, Enter},
            end_attempt::{EndAttempt, Then},
            process::{Active, Pulse, Renew},
        },
        step::{BeginStep, CountLoop, Record, Step},
    },
    envelope::Refusal,
    journal::{Opening, iteration_scope, payload::Payload},
    price::Bound,
    run::{attempt::Exit, status::Status},
    store::Error,
    words::{
        digest::{Digest, MatchKey},
        id::{AttemptNo, Fence, RunNo, Seq, Slot},
        usage::{ServiceTier, Usage},
    },
};

use crate::stage::Process;

/// Amount that a usual call reserves: 100 tokens in and at most 900 out, at 1 nano-USD a token.
pub const FULL: i64 = 1000;
/// The least it is sent with: its input, and 256 tokens out.
pub const FLOOR: i64 = 356;

/// A bound at 1 nano-USD a token, so that cost and tokens are the same number.
pub fn bound(input: u64, cap: u64) -> Bound {
    Bound {
        input_tokens: input,
        input_pico: i128::from(input) * 1000,
        output_pico_per_token: 1000,
        fixed_pico: 0,
        choices: 1,
        cap,
        floor_cap: cap.min(256),
    }
}

/// A bill of `cost` nano-USD and as many tokens.
pub fn bill(cost: i64) -> Bill {
    Bill::Usage {
        usage: Usage { input: cost as u64, ..Usage::default() },
        tier: ServiceTier::Standard,
        cost_nano_usd: cost,
        price_hash: "test".into(),
    }
}

/// An attempt of a run, driven by a process.
#[derive(Clone)]
pub struct Agent {
    pub process: Process,
    pub run: RunNo,
    pub attempt: AttemptNo,
    pub fence: Fence,
    pub slot: Slot,
    pub iteration: i64,
    pub scope: Arc<str>,
    /// The item or step whose work this is.
    pub within: Option<Seq>,
    /// Answers that connections of this attempt are receiving.
    pub taken: Arc<Mutex<Vec<Seq>>>,
}

impl Process {
    /// A plain claim of the run's driver slot.
    pub fn claiming(&self, run: RunNo) -> Claim {
        Claim { run, slot: Slot::DRIVER, instance: self.no, label: None, fresh: false, restart: false }
    }

    pub fn claim(&self, run: RunNo) -> Agent {
        self.claim_by(self.claiming(run))
    }

    #[track_caller]
    pub fn claim_by(&self, claim: Claim) -> Agent {
        let run = claim.run;
        match self.ask(claim).unwrap() {
            Claimed::Attempt { slot, attempt, fence, iteration, .. } => {
                self.agent(run, slot, attempt, fence, iteration)
            }
            Claimed::Refused(refusal) => panic!("refused: {}", refusal.message()),
        }
    }

    pub fn entering(&self, run: RunNo, label: Option<&str>) -> Enter {
        Enter { run, label: label.map(str::to_owned), instance: self.no }
    }

    /// A header caller's attempt.
    #[track_caller]
    pub fn enter(&self, run: RunNo, label: Option<&str>) -> Agent {
        let e = self.ask(self.entering(run, label)).unwrap();
        self.agent(run, e.slot, e.attempt, Fence(0), e.iteration)
    }

    fn agent(&self, run: RunNo, slot: Slot, attempt: AttemptNo, fence: Fence, iteration: i64) -> Agent {
        let scope = iteration_scope(iteration);
        let process = self.clone();
        Agent { process, run, attempt, fence, slot, iteration, scope, within: None, taken: Arc::default() }
    }
}

impl Agent {
    pub fn actor(&self) -> Actor {
        Actor { run: self.run, attempt: self.attempt, instance: self.process.no }
    }

    pub fn ask<V: Verb>(&self, verb: V) -> Result<V::Answer, Error> {
        self.process.ask(verb)
    }

    /// The same agent in another scope: an item, or a step with retries.
    pub fn within(&self, scope: &str) -> Agent {
        Agent { scope: scope.into(), ..self.clone() }
    }

    /// The request that says `text`, with the usual bound.
    pub fn request(&self, text: &str) -> Request<'_> {
        let digest = Digest::of(text.as_bytes());
        Request {
            agent: self,
            admit: Admit {
                actor: self.actor(),
                slot: self.slot,
                scope: self.scope.clone(),
                within: self.within,
                digest,
                match_key: MatchKey::new(&digest, &self.scope, None),
                upstream: "openai".into(),
                path: "/chat/completions".into(),
                model: "model-a".into(),
                stream: false,
                idempotency_key: None,
                bound: bound(100, 900),
                priced: true,
                unknown_fee: None,
                caller: None,
                usual_cap: None,
                taken: self.taken.lock().unwrap().clone(),
                connection: self.connection(),
                retry_count: 0,
                answered_with_error: false,
                behind: false,
                active_ms: 0,
                waits: 0,
                request: None,
            },
        }
    }

    /// A new call that says `text` goes out under the usual bound.
    #[track_caller]
    pub fn call(&self, text: &str) -> Seq {
        self.request(text).goes()
    }

    /// A new call that is answered at `cost`, and delivered.
    #[track_caller]
    pub fn buys(&self, text: &str, cost: i64) -> Seq {
        let seq = self.call(text);
        self.done(seq, cost);
        self.delivered(seq);
        seq
    }

    /// The entry as this process would name it that opened it.
    pub fn opening(&self, seq: Seq) -> Opening {
        let entry = self.process.store.entry(self.run, seq).unwrap();
        let op = entry.map_or_else(Default::default, |e| e.opened_by);
        Opening { run: self.run, seq, instance: self.process.no, op }
    }

    pub fn settle(&self, seq: Seq, close: Close) -> Settle {
        let answer =
            matches!(close, Close::Done(_)).then(|| Payload::encode(format!("answer {seq}").as_bytes()));
        Settle {
            opening: self.opening(seq),
            attempt: self.attempt,
            close,
            active_ms: 0,
            http_status: None,
            upstream_request_id: None,
            error: None,
            answer,
        }
    }

    #[track_caller]
    fn close(&self, seq: Seq, close: Close) -> Settled {
        self.ask(self.settle(seq, close)).unwrap()
    }

    #[track_caller]
    pub fn done(&self, seq: Seq, cost: i64) -> Settled {
        self.close(seq, Close::Done(bill(cost)))
    }

    /// The provider refused it: no money, one call.
    #[track_caller]
    pub fn failed(&self, seq: Seq) -> Settled {
        self.free(seq);
        self.close(seq, Close::Failed(Bill::Nothing))
    }

    #[track_caller]
    pub fn void(&self, seq: Seq) -> Settled {
        self.free(seq);
        self.close(seq, Close::Void)
    }

    #[track_caller]
    pub fn lost(&self, seq: Seq) -> Settled {
        self.free(seq);
        self.close(seq, Close::Unknown)
    }

    /// The connection that received `seq` got it whole.
    pub fn delivered(&self, seq: Seq) {
        self.delivered_to_retry(seq, 0);
    }

    pub fn delivered_to_retry(&self, seq: Seq, count: u32) {
        let opened_here = self.process.store.entry(self.run, seq).unwrap().unwrap().attempt == self.attempt;
        let (run, attempt) = (self.run, self.attempt);
        let receiver = Receiver::Connection(self.connection());
        self.ask(Delivered { run, seq, attempt, receiver, count, replayed: !opened_here }).unwrap();
        self.free(seq);
    }

    /// The same attempt's requests as another server has them.
    pub fn at(&self, process: &Process) -> Agent {
        Agent { process: process.clone(), taken: Arc::default(), ..self.clone() }
    }

    /// The connection that received `seq` is gone, and every server is told.
    pub fn gives_back(&self, seq: Seq) {
        self.free(seq);
        self.ask(GiveBack(self.received(seq))).unwrap();
    }

    pub fn received(&self, seq: Seq) -> Received {
        Received { run: self.run, attempt: self.attempt, seq, connection: self.connection() }
    }

    /// All requests of an agent's server come by one connection.
    fn connection(&self) -> u64 {
        self.process.no.0 as u64
    }

    /// The connection that received `seq` is gone.
    pub fn free(&self, seq: Seq) {
        self.taken.lock().unwrap().retain(|s| *s != seq);
    }

    pub fn ending(&self, then: Then) -> EndAttempt {
        EndAttempt {
            run: self.run,
            attempt: self.attempt,
            instance: self.process.no,
            exit: Exit { code: Some(0), ..Exit::default() },
            active_ms: 0,
            then,
        }
    }

    #[track_caller]
    pub fn ends(&self, then: Then) -> Status {
        self.ask(self.ending(then)).unwrap()
    }
}

/// A request before it is asked.
#[derive(Clone)]
pub struct Request<'a> {
    agent: &'a Agent,
    pub admit: Admit,
}

impl Request<'_> {
    pub fn bound(mut self, bound: Bound) -> Self {
        self.admit.bound = bound;
        self
    }

    /// A marked retry: the client counts.
    pub fn retry(mut self, count: u32) -> Self {
        self.admit.retry_count = count;
        self
    }

    pub fn keyed(mut self, key: &str) -> Self {
        self.admit.idempotency_key = Some(key.into());
        self
    }

    /// Names no output cap, in a run whose answers usually need `cap` tokens.
    pub fn usually(mut self, cap: u64) -> Self {
        self.admit.usual_cap = Some(cap);
        self
    }

    pub fn answered_with_error(mut self) -> Self {
        self.admit.answered_with_error = true;
        self
    }

    pub fn behind(mut self) -> Self {
        self.admit.behind = true;
        self
    }

    /// The request has a feature whose fee is not known.
    pub fn with_fee(mut self, feature: &str) -> Self {
        self.admit.unknown_fee = Some(feature.into());
        self
    }

    pub fn unpriced(mut self) -> Self {
        self.admit.priced = false;
        self.admit.bound.input_pico = 0;
        self.admit.bound.output_pico_per_token = 0;
        self
    }

    pub fn ask(self) -> Result<Admission, Error> {
        let (agent, taken) = (self.agent, self.agent.taken.clone());
        let answer = agent.ask(self.admit)?;
        if let Admission::Go { opening: Opening { seq, .. }, .. }
        | Admission::Replay { seq }
        | Admission::Join { seq, .. } = answer
        {
            taken.lock().unwrap().push(seq);
        }
        Ok(answer)
    }

    /// Checks that the request is sent as a new call, with its own cap. Returns the entry.
    #[track_caller]
    pub fn goes(self) -> Seq {
        match self.ask().unwrap() {
            Admission::Go { opening: Opening { seq, .. }, cap: None, .. } => seq,
            other => panic!("wanted a new call, had {other:?}"),
        }
    }

    /// Checks that the request is sent with a smaller output cap. Returns the entry and the cap.
    #[track_caller]
    pub fn goes_clamped(self) -> (Seq, u64) {
        match self.ask().unwrap() {
            Admission::Go { opening: Opening { seq, .. }, cap: Some(cap), .. } => (seq, cap),
            other => panic!("wanted a clamped call, had {other:?}"),
        }
    }

    #[track_caller]
    pub fn replays(self) -> Seq {
        match self.ask().unwrap() {
            Admission::Replay { seq } => seq,
            other => panic!("wanted a replay, had {other:?}"),
        }
    }

    #[track_caller]
    pub fn joins(self) -> Seq {
        match self.ask().unwrap() {
            Admission::Join { seq, .. } => seq,
            other => panic!("wanted to join a call in flight, had {other:?}"),
        }
    }

    #[track_caller]
    pub fn waits(self) -> Refusal {
        match self.ask().unwrap() {
            Admission::Wait { refusal } => refusal,
            other => panic!("wanted to wait, had {other:?}"),
        }
    }

    #[track_caller]
    pub fn refused(self) -> Refusal {
        match self.ask().unwrap() {
            Admission::Refused(refusal) => refusal,
            other => panic!("wanted a refusal, had {other:?}"),
        }
    }
}

/// Operations of an agent besides calls.
impl Agent {
    pub fn step(&self, key: &str) -> BeginStep {
        BeginStep {
            actor: self.actor(),
            slot: self.slot,
            scope: self.scope.clone(),
            key: key.into(),
            within: self.within,
            retries: false,
            at_most_once: false,
        }
    }

    /// Begins a step that has no result yet.
    #[track_caller]
    pub fn begins(&self, key: &str) -> Seq {
        match self.ask(self.step(key)).unwrap() {
            Step::Run { opening: Opening { seq, .. }, .. } => seq,
            other => panic!("wanted to run step {key}, had {other:?}"),
        }
    }

    pub fn record(&self, seq: Seq, value: &str) -> Record {
        Record {
            opening: self.opening(seq),
            value: Payload::encode(value.as_bytes()),
            failed: false,
            again: false,
            changes: Vec::new(),
        }
    }

    pub fn turn(&self, key: Option<&str>) -> CountLoop {
        let key = key.map(str::to_owned);
        CountLoop { actor: self.actor(), slot: self.slot, iteration: self.iteration, key }
    }

    /// The process's heartbeat, with `ms` that this attempt was open.
    pub fn renewal(&self, ms: i64) -> Renew {
        let active = vec![Active { run: self.run, attempt: self.attempt, ms }];
        self.process.renewal(active)
    }

    pub fn pulse(&self, ms: i64) -> Pulse {
        self.ask(self.renewal(ms)).unwrap().remove(0)
    }
}
