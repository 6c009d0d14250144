//! A story in a memory store: an agent that is killed twice, diverges and runs into its limit; and
//! runs beside it.

use std::{path::Path, sync::Arc};

use outlast::render::look::{Look, Page};
use outlast_core::{
    engine::{
        call::{
            admit::{Admission, Admit},
            delivered::{Delivered, Receiver},
            settle::{Bill, Close, Settle},
        },
        checkpoint::{Checkpoint, Name},
        op::{Actor, Verb},
        run::{
            claim::{Claim, Claimed},
            end_attempt::{EndAttempt, Then},
            process::{Active, DeclareDead, Register, Renew},
            start::Start,
        },
    },
    envelope::unit::{Limits, Unit},
    journal::{Opening, iteration_scope, payload::Payload},
    memory::MemoryStore,
    price::Bound,
    run::{Command, Spec, attempt::Exit, instance::Identity},
    store::{Ask, Durability, Store},
    words::{
        clock::{ManualClock, SeededEntropy},
        digest::{Digest, MatchKey},
        id::{AttemptNo, InstanceNo, Micros, RunId, RunNo, Seq, Slot},
        usage::{ServiceTier, Usage},
    },
};
use outlast_store::Options;

/// 2026-11-20 08:00:00 UTC.
const START: Micros = Micros(1_795_161_600_000_000);

pub struct Story {
    pub clock: Arc<ManualClock>,
    pub store: Arc<dyn Store>,
}

impl Story {
    pub fn empty() -> Story {
        let clock = Arc::new(ManualClock::new(START));
        Story { store: Arc::new(MemoryStore::new(clock.clone())), clock }
    }

    /// Nothing yet, in a new SQLite file.
    pub fn in_file(path: &Path) -> Story {
        let clock = Arc::new(ManualClock::new(START));
        let entropy = Arc::new(SeededEntropy::new(1));
        let options = Options {
            durability: Default::default(),
            clock: clock.clone(),
            entropy,
            create: true,
            store_wait: outlast_store::STORE_WAIT,
        };
        Story { store: outlast_store::open(path.to_str().unwrap(), options).unwrap(), clock }
    }

    /// Everything, as it stands two hours after the last run began.
    pub fn whole() -> Story {
        Story::empty().told()
    }

    pub fn told(self) -> Story {
        let story = self;
        story.killed_twice_and_halted();
        story.done();
        story.of_header_callers();
        story.clock.advance_ms(7_200_000);
        story
    }

    pub fn ask<V: Verb>(&self, verb: V) -> V::Answer {
        self.store.ask(verb, Durability::Synced).wait().unwrap()
    }

    pub fn register(&self, pid: u32) -> InstanceNo {
        let identity =
            Identity { host: "hal".into(), pid, program: "outlast run".into(), ..Identity::default() };
        self.ask(Register { identity })
    }

    pub fn start(&self, id: &str, usd: Option<i64>, spec: Spec) -> RunNo {
        let mut limits = Limits::default();
        limits[Unit::CostNanoUsd] = usd;
        let start = Start { limits, spec, ..Start::new(RunId::new(id).unwrap()) };
        self.ask(start).run
    }

    pub fn claim(&self, run: RunNo, instance: InstanceNo, restart: bool) -> Actor {
        let claim = Claim { run, slot: Slot::DRIVER, instance, label: None, fresh: false, restart };
        match self.ask(claim) {
            Claimed::Attempt { attempt, .. } => Actor { run, attempt, instance },
            Claimed::Refused(refusal) => panic!("{refusal:?}"),
        }
    }

    /// Asks for `prompt`: bound at 0.005 usd, of which 0.001 for its input.
    pub fn admit(&self, actor: Actor, prompt: &str) -> Admission {
        let digest = Digest::of(prompt.as_bytes());
        let scope = iteration_scope(0);
        self.ask(Admit {
            actor,
            slot: Slot::DRIVER,
            match_key: MatchKey::new(&digest, &scope, None),
            scope,
            within: None,
            digest,
            upstream: "openai".into(),
            path: "/v1/chat/completions".into(),
            model: "gpt-4o-mini".into(),
            stream: true,
            idempotency_key: None,
            bound: Bound {
                input_tokens: 1000,
                input_pico: 1_000_000_000,
                output_pico_per_token: 4_000_000,
                fixed_pico: 0,
                choices: 1,
                cap: 1000,
                floor_cap: 256,
            },
            priced: true,
            unknown_fee: None,
            caller: None,
            usual_cap: None,
            taken: Vec::new(),
            connection: 0,
            retry_count: 0,
            answered_with_error: false,
            behind: false,
            active_ms: 0,
            waits: 0,
            request: None,
        })
    }

    pub fn go(&self, actor: Actor, prompt: &str) -> Seq {
        match self.admit(actor, prompt) {
            Admission::Go { opening: Opening { seq, .. }, .. } => seq,
            other => panic!("{prompt}: {other:?}"),
        }
    }

    pub fn settle(&self, actor: Actor, seq: Seq, close: Close, http_status: u16, error: Option<&str>) {
        let answer = matches!(close, Close::Done(_)).then(|| Payload::encode(b"answer"));
        let entry = self.store.entry(actor.run, seq).unwrap().unwrap();
        self.ask(Settle {
            opening: Opening::of(&entry).unwrap(),
            attempt: actor.attempt,
            close,
            active_ms: 0,
            http_status: Some(http_status),
            upstream_request_id: None,
            error: error.map(str::to_owned),
            answer,
        });
    }

    /// Settles a call with its answer: 1000 tokens in, 500 out, 0.003 usd.
    pub fn answer(&self, actor: Actor, seq: Seq) {
        let usage = Usage { input: 1000, output: 500, ..Usage::default() };
        let bill = Bill::Usage {
            usage,
            tier: ServiceTier::Standard,
            cost_nano_usd: 3_000_000,
            price_hash: "c0ffee".into(),
        };
        self.settle(actor, seq, Close::Done(bill), 200, None);
        self.deliver(actor, seq, false);
    }

    /// Settles a call with an error of its provider.
    pub fn refuse(&self, actor: Actor, seq: Seq, http_status: u16, words: Option<&str>) {
        self.settle(actor, seq, Close::Failed(Bill::Nothing), http_status, words);
    }

    fn deliver(&self, actor: Actor, seq: Seq, replayed: bool) {
        let (attempt, receiver) = (actor.attempt, Receiver::Connection(0));
        self.ask(Delivered { run: actor.run, seq, attempt, receiver, count: 0, replayed });
    }

    fn replay(&self, actor: Actor, prompt: &str) {
        match self.admit(actor, prompt) {
            Admission::Replay { seq } => self.deliver(actor, seq, true),
            other => panic!("{prompt}: {other:?}"),
        }
    }

    pub fn end(&self, actor: Actor, exit: Exit, then: Then) {
        let Actor { run, attempt, instance } = actor;
        self.ask(EndAttempt { run, attempt, instance, exit, active_ms: 4000, then });
    }

    /// The driver's first heartbeat, after `ms`.
    fn renew(&self, actor: Actor, ms: u64) {
        self.clock.advance_ms(ms);
        let active = Active { run: actor.run, attempt: actor.attempt, ms: ms as i64 };
        let instance = actor.instance;
        let heartbeat = self.store.instance(instance).unwrap().unwrap().heartbeat;
        let (own, next, active) = (vec![heartbeat], heartbeat + 1, vec![active]);
        self.ask(Renew { instance, own, next, since_own_ms: None, active });
    }

    fn killed_twice_and_halted(&self) {
        let spec = Spec {
            name: Some("nightly".into()),
            tags: [("team".into(), "search".into())].into(),
            command: Some(Command {
                argv: ["python", "agent.py", "--topic", "black holes"].map(str::to_owned).into(),
                directory: "/srv/agents".into(),
                ..Command::default()
            }),
            ..Spec::default()
        };
        let run = self.start("research-42", Some(20_000_000), spec);
        let first = self.register(4711);
        let a = self.claim(run, first, false);
        for prompt in ["one", "two"] {
            self.clock.advance_ms(1000);
            let seq = self.go(a, prompt);
            self.clock.advance_ms(2000);
            self.answer(a, seq);
        }
        let save = Checkpoint {
            actor: a,
            slot: Slot::DRIVER,
            name: Name::of_agent("plan").unwrap(),
            value: Payload::encode(b"x"),
        };
        self.ask(save);
        // In flight when agent and supervisor are killed.
        self.go(a, "three");
        self.renew(a, 1200);
        self.clock.advance_ms(60_000);
        self.ask(DeclareDead { instance: first, heartbeat_seen: 1, left: false, heir: None });

        let second = self.register(4800);
        let b = self.claim(run, second, false);
        self.replay(b, "one");
        self.replay(b, "two");
        self.clock.advance_ms(1000);
        let retry = self.go(b, "three");
        self.answer(b, retry);
        self.clock.advance_ms(500);
        let refused = self.go(b, "four");
        self.settle(b, refused, Close::Failed(Bill::Nothing), 429, Some("rate limited\nby the provider"));
        self.end(b, Exit { signal: Some(9), ..Exit::default() }, Then::Restart);

        self.clock.advance_ms(2000);
        let c = self.claim(run, second, true);
        self.replay(c, "one");
        self.clock.advance_ms(1000);
        let new = self.go(c, "something else");
        self.settle(c, new, Close::Done(Bill::Reservation), 200, None);
        self.clock.advance_ms(1000);
        // Clamped to what is left, and in flight when the supervisor is killed.
        self.go(c, "five");
        self.renew(c, 800);
        self.ask(DeclareDead { instance: second, heartbeat_seen: 1, left: false, heir: None });

        let third = self.register(4801);
        self.clock.advance_ms(5000);
        let d = self.claim(run, third, true);
        self.replay(d, "one");
        assert!(matches!(self.admit(d, "six"), Admission::Refused(_)));
        self.clock.advance_ms(1000);
        self.end(d, Exit { code: Some(1), ..Exit::default() }, Then::Interrupt { by_person: false });
        self.ask(DeclareDead { instance: third, heartbeat_seen: 0, left: true, heir: None });
    }

    fn done(&self) {
        let run = self.start("research-43", None, Spec { name: Some("nightly".into()), ..Spec::default() });
        let actor = self.claim(run, self.register(4900), false);
        let seq = self.go(actor, "one");
        self.clock.advance_ms(86_400_000);
        self.answer(actor, seq);
        self.end(actor, Exit { code: Some(0), ..Exit::default() }, Then::Complete);
    }

    fn of_header_callers(&self) {
        let run = self.start("run_0190-web", Some(5_000_000_000), Spec::default());
        let instance = self.register(5000);
        let entered =
            self.ask(outlast_core::engine::run::claim::Enter { run, label: Some("web-1".into()), instance });
        let actor = Actor { run, attempt: entered.attempt, instance };
        self.go(actor, "hello");
        assert_eq!(entered.attempt, AttemptNo(1));
    }
}

/// Returns the text that `command` prints with this look.
pub fn printed(look: Look, command: impl FnOnce(&mut Page)) -> String {
    let mut out = Vec::new();
    command(&mut Page::new(&mut out, look));
    String::from_utf8(out).unwrap()
}
