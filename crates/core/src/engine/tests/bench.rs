//! A bench for tests of several verbs together: one memory store, short names.

use std::sync::Arc;

use crate::{
    engine::{
        Actor, Admission, Admit, Bill, Claim, Claimed, Close, DeclareDead, Delivered, Raise, Receiver,
        Register, Settle, Settled, Start, Started,
    },
    envelope::{Limits, PerUnit, Unit},
    journal::{Entry, Opening, Payload},
    memory::MemoryStore,
    price::Bound,
    run::{Identity, Policy},
    store::{Ask, Durability, Error, Store},
    words::{
        AttemptNo, Digest, InstanceNo, ManualClock, MatchKey, Micros, RunId, RunNo, Seq, ServiceTier, Slot,
        Usage,
    },
};

pub struct Bench {
    pub store: MemoryStore,
}

/// Request of the bench. Equal requests are identical.
#[derive(Clone, Copy, Debug, Default)]
pub struct Request {
    pub prompt: u8,
    /// Input tokens, at a nano-dollar each.
    pub input: u64,
    /// Output tokens at most, at a nano-dollar each.
    pub cap: u64,
    pub floor: u64,
    pub retry_count: u32,
    pub behind: bool,
}

impl Request {
    /// Builds a request that costs `cost` at most and cannot be clamped.
    pub fn of(prompt: u8, cost: u64) -> Request {
        Request { prompt, cap: cost, floor: cost, ..Request::default() }
    }

    pub fn bound(&self) -> Bound {
        Bound {
            input_tokens: self.input,
            input_pico: 1000 * i128::from(self.input),
            output_pico_per_token: 1000,
            fixed_pico: 0,
            choices: 1,
            cap: self.cap,
            floor_cap: self.floor,
        }
    }
}

/// Builds a limit in nano-USD.
pub fn usd(nano: i64) -> Limits {
    let mut limits = Limits::default();
    limits[Unit::CostNanoUsd] = Some(nano);
    limits
}

/// Builds a bill of this cost in nano-USD and this many tokens.
pub fn bill(cost: u64) -> Bill {
    let usage = Usage { output: cost, ..Usage::default() };
    let cost_nano_usd = cost as i64;
    Bill::Usage { usage, tier: ServiceTier::Standard, cost_nano_usd, price_hash: "bench".into() }
}

impl Bench {
    pub fn new() -> Bench {
        Bench { store: MemoryStore::new(Arc::new(ManualClock::new(Micros(1)))) }
    }

    pub fn register(&self) -> InstanceNo {
        self.store.ask(Register { identity: Identity::default() }, Durability::Synced).wait().unwrap()
    }

    pub fn start(&self, id: &str, limits: Limits, parent: Option<RunNo>, policy: Policy) -> RunNo {
        let start = Start { limits, policy, parent, ..Start::new(RunId::new(id).unwrap()) };
        let Started { run, .. } = self.store.ask(start, Durability::Synced).wait().unwrap();
        run
    }

    /// Claims the run's driver slot: a new attempt.
    pub fn claim(&self, run: RunNo, instance: InstanceNo) -> Result<Option<Actor>, Error> {
        let slot = Slot::DRIVER;
        let claim = Claim { run, slot, instance, label: None, fresh: false, restart: false };
        let claimed = self.store.ask(claim, Durability::Synced).wait()?;
        Ok(match claimed {
            Claimed::Attempt { attempt, .. } => Some(Actor { run, attempt, instance }),
            Claimed::Refused(_) => None,
        })
    }

    pub fn admit(&self, actor: Actor, r: Request, taken: &[Seq]) -> Result<Admission, Error> {
        let digest = Digest::of(&[r.prompt]);
        let admit = Admit {
            actor,
            slot: Slot::DRIVER,
            scope: "i0".into(),
            within: None,
            digest,
            match_key: MatchKey::new(&digest, "i0", None),
            upstream: "bench".into(),
            path: "/".into(),
            model: "m".into(),
            stream: false,
            idempotency_key: None,
            bound: r.bound(),
            priced: true,
            unknown_fee: None,
            caller: None,
            usual_cap: None,
            taken: taken.to_vec(),
            connection: 0,
            retry_count: r.retry_count,
            answered_with_error: false,
            behind: r.behind,
            active_ms: 0,
            waits: 0,
            request: None,
        };
        self.store.ask(admit, Durability::Synced).wait()
    }

    /// Admits a request that must go out.
    pub fn go(&self, actor: Actor, r: Request) -> Seq {
        match self.admit(actor, r, &[]) {
            Ok(Admission::Go { opening: Opening { seq, .. }, .. }) => seq,
            other => panic!("{other:?}"),
        }
    }

    pub fn settle(&self, actor: Actor, seq: Seq, close: Close) -> Result<Settled, Error> {
        let entry = self.store.entry(actor.run, seq).unwrap();
        let op = entry.map_or_else(Default::default, |e| e.opened_by);
        self.settle_opening(Opening { run: actor.run, seq, instance: actor.instance, op }, close)
    }

    pub fn settle_opening(&self, opening: Opening, close: Close) -> Result<Settled, Error> {
        let answer = matches!(close, Close::Done(_)).then(|| Payload::encode(b"answer"));
        let settle = Settle {
            opening,
            attempt: AttemptNo::default(),
            close,
            active_ms: 0,
            http_status: None,
            upstream_request_id: None,
            error: None,
            answer,
        };
        self.store.ask(settle, Durability::Synced).wait()
    }

    pub fn delivered(&self, run: RunNo, seq: Seq, attempt: AttemptNo) {
        let receiver = Receiver::Connection(0);
        self.mark(Delivered { run, seq, attempt, receiver, count: 0, replayed: false });
    }

    pub fn replayed(&self, run: RunNo, seq: Seq, attempt: AttemptNo) {
        let receiver = Receiver::Connection(0);
        self.mark(Delivered { run, seq, attempt, receiver, count: 0, replayed: true });
    }

    fn mark(&self, mark: Delivered) {
        self.store.ask(mark, Durability::Lazy).wait().unwrap();
    }

    pub fn die(&self, instance: InstanceNo) {
        let heartbeat_seen = self.store.instance(instance).unwrap().map_or(0, |i| i.heartbeat);
        let verdict = DeclareDead { instance, heartbeat_seen, left: false, heir: None };
        self.store.ask(verdict, Durability::Synced).wait().unwrap();
    }

    pub fn raise(&self, run: RunNo, unit: Unit, by: i64) -> Result<(), Error> {
        let mut add = Limits::default();
        add[unit] = Some(by);
        let raise = Raise { run, add, set: Limits::default(), lift: PerUnit::default() };
        self.store.ask(raise, Durability::Synced).wait().map(|_| ())
    }

    pub fn entry(&self, run: RunNo, seq: Seq) -> Entry {
        self.store.entry(run, seq).unwrap().unwrap()
    }

    /// Returns the spent, reserved and doubtful amounts of the run's own envelope, in nano-USD.
    pub fn sums(&self, run: RunNo) -> (i64, i64, i64) {
        let e = self.store.run(run).unwrap().unwrap().envelope;
        (e.spent.cost(), e.reserved.cost(), e.doubt.cost())
    }

    pub fn check(&self) {
        assert_eq!(self.store.inspect(|t, _| t.inconsistency()), None);
    }
}
