//! Short histories of one key, of one budget and of one run's lease, by several clients on two processes with faults, are linearizable:
//! each operation took effect at one moment between its beginning and its end.

use std::sync::Arc;

use outlast_core::{
    engine::{
        Actor, Admission, Admit, Bill, Change, Claim, Claimed, Close, DeclareDead, Error as Refused, Op,
        Outcome, Put, Register, Settle, Start,
    },
    envelope::{Limits, Unit},
    journal::{Opening, iteration_scope},
    memory::MemoryStore,
    price::Bound,
    run::{Identity, Spec},
    state::Name,
    store::{Ask as _, Durability, Error, Store as _, Ticket},
    words::{AttemptNo, Digest, ManualClock, MatchKey, Micros, RunId, ServiceTier, Slot, Usage},
};
use outlast_sim::{Bug, Fault, FaultStore, Rng, Why, resolved};
use stateright::semantics::{ConsistencyTester, LinearizabilityTester, SequentialSpec};

const HISTORIES: u64 = 150;
const CLIENTS: usize = 4;
const OPERATIONS: usize = 12;
/// Limit of the budget, in nano-USD.
const LIMIT: i64 = 1_000;

/// A key, by its newest version.
#[derive(Clone)]
struct Key(i64);

#[derive(Clone, Debug, PartialEq)]
struct Swap {
    expected: i64,
}

#[derive(Clone, Debug, PartialEq)]
enum Swapped {
    Made(i64),
    Conflict(i64),
}

impl SequentialSpec for Key {
    type Op = Swap;
    type Ret = Swapped;

    fn invoke(&mut self, op: &Swap) -> Swapped {
        if self.0 != op.expected {
            return Swapped::Conflict(self.0);
        }
        self.0 += 1;
        Swapped::Made(self.0)
    }
}

/// A budget, by what is free of it.
#[derive(Clone)]
struct Purse(i64);

#[derive(Clone, Debug, PartialEq)]
enum Spend {
    Reserve(i64),
    Settle { held: i64, spent: i64 },
}

#[derive(Clone, Debug, PartialEq)]
enum Spent {
    Go,
    NoRoom,
    Settled,
}

impl SequentialSpec for Purse {
    type Op = Spend;
    type Ret = Spent;

    fn invoke(&mut self, op: &Spend) -> Spent {
        match *op {
            Spend::Reserve(n) if n > self.0 => return Spent::NoRoom,
            Spend::Reserve(n) => self.0 -= n,
            Spend::Settle { held, spent } => {
                self.0 += held - spent;
                return Spent::Settled;
            }
        }
        Spent::Go
    }
}

/// The driver's lease of one run, by the client that has it and by its attempt.
#[derive(Clone)]
struct Drive {
    driver: Option<(usize, i64)>,
    attempts: i64,
    dead: [bool; CLIENTS],
}

#[derive(Clone, Debug, PartialEq)]
enum Act {
    Claim { client: usize },
    Write { client: usize, attempt: i64 },
    Bury { client: usize },
}

#[derive(Clone, Debug, PartialEq)]
enum Acted {
    Attempt(i64),
    Held,
    Dead,
    Wrote,
    Lost,
    Buried,
}

impl SequentialSpec for Drive {
    type Op = Act;
    type Ret = Acted;

    fn invoke(&mut self, op: &Act) -> Acted {
        match *op {
            Act::Claim { client } | Act::Write { client, .. } if self.dead[client] => Acted::Dead,
            Act::Claim { client } if self.driver.is_some_and(|(driver, _)| driver != client) => Acted::Held,
            Act::Claim { client } => {
                self.attempts += 1;
                self.driver = Some((client, self.attempts));
                Acted::Attempt(self.attempts)
            }
            Act::Write { client, attempt } if self.driver == Some((client, attempt)) => Acted::Wrote,
            Act::Write { .. } => Acted::Lost,
            Act::Bury { client } => {
                self.dead[client] = true;
                self.driver = self.driver.filter(|(driver, _)| *driver != client);
                Acted::Buried
            }
        }
    }
}

/// Trial on the store: submits an operation of the model, and translates its outcome into the model.
trait Trial {
    type Spec: SequentialSpec<Op: Clone + std::fmt::Debug, Ret: Clone + std::fmt::Debug + PartialEq> + Clone;

    fn model() -> Self::Spec;
    fn draw(
        &mut self,
        client: &Client,
        disk: &MemoryStore,
        rng: &Rng,
    ) -> (<Self::Spec as SequentialSpec>::Op, Op);
    /// Returns the model's answer; `None` where nobody can tell whether the operation took effect.
    fn meaning(
        &mut self,
        client: &Client,
        result: &Result<Outcome, Error>,
    ) -> Option<<Self::Spec as SequentialSpec>::Ret>;
}

/// A client: an attempt of a run of its own, in one of two processes.
struct Client {
    no: usize,
    process: usize,
    actor: Actor,
    pending: Option<(Ticket, usize)>,
}

#[derive(Default)]
struct Swaps {
    ignores_versions: bool,
}

impl Trial for Swaps {
    type Spec = Key;

    fn model() -> Key {
        Key(0)
    }

    fn draw(&mut self, client: &Client, disk: &MemoryStore, rng: &Rng) -> (Swap, Op) {
        let name = Name::new("shared", "", "key");
        let expected = disk.inspect(|t, _| t.state.keys.get(&name).map_or(0, |c| c.version));
        let expected = if rng.chance(80) { expected } else { (expected - 1).max(0) };
        let mut change = Change::set(name, b"value").expecting(expected);
        if self.ignores_versions {
            change.expected = None;
        }
        let actor = Some((client.actor, Slot::DRIVER));
        (Swap { expected }, Put { actor, changes: vec![change], transaction: None }.into())
    }

    fn meaning(&mut self, _: &Client, result: &Result<Outcome, Error>) -> Option<Swapped> {
        match result {
            Ok(Outcome::Put(committed)) => Some(Swapped::Made(committed.versions[0])),
            Err(Error::Engine(Refused::Conflict { actual, .. })) => Some(Swapped::Conflict(*actual)),
            _ => None,
        }
    }
}

#[derive(Default)]
struct Spending {
    /// Open call of each client, with what it holds.
    open: [Option<(Opening, i64)>; CLIENTS],
    asked: u64,
}

impl Trial for Spending {
    type Spec = Purse;

    fn model() -> Purse {
        Purse(LIMIT)
    }

    fn draw(&mut self, client: &Client, _: &MemoryStore, rng: &Rng) -> (Spend, Op) {
        let actor = client.actor;
        if let Some((opening, held)) = self.open[client.no].take() {
            let spent = held * rng.below(3) as i64 / 2;
            let bill = Bill::Usage {
                usage: Usage::default(),
                tier: ServiceTier::Standard,
                cost_nano_usd: spent,
                price_hash: "test".to_owned(),
            };
            return (Spend::Settle { held, spent }, settle(actor, opening, Close::Failed(bill)));
        }
        let tokens = 100 * rng.between(1, 4);
        self.asked += 1;
        self.open[client.no] = Some((Opening::default(), tokens as i64));
        (Spend::Reserve(tokens as i64), admit(actor, tokens, self.asked))
    }

    fn meaning(&mut self, client: &Client, result: &Result<Outcome, Error>) -> Option<Spent> {
        let open = &mut self.open[client.no];
        match result {
            Ok(Outcome::Admitted(Admission::Go { opening, .. })) => {
                open.as_mut().unwrap().0 = *opening;
                return Some(Spent::Go);
            }
            Ok(Outcome::Settled(_)) => return Some(Spent::Settled),
            _ => *open = None,
        }
        matches!(result, Ok(Outcome::Admitted(_))).then_some(Spent::NoRoom)
    }
}

#[derive(Default)]
struct Driving {
    /// Newest attempt of each client, by what it was told.
    attempts: [i64; CLIENTS],
    /// Whether writes name no attempt, so that a driver that lost its lease goes on.
    ignores_lease: bool,
}

impl Trial for Driving {
    type Spec = Drive;

    fn model() -> Drive {
        Drive { driver: None, attempts: 0, dead: [false; CLIENTS] }
    }

    fn draw(&mut self, client: &Client, disk: &MemoryStore, rng: &Rng) -> (Act, Op) {
        let (no, instance) = (client.no, client.actor.instance);
        let run = disk.run_no(&RunId::new("parent").unwrap()).unwrap().unwrap();
        if rng.chance(15) {
            let heartbeat_seen = disk.inspect(|t, _| t.instances[&instance].heartbeat);
            let bury = DeclareDead { instance, heartbeat_seen, left: false, heir: None };
            return (Act::Bury { client: no }, bury.into());
        }
        if self.attempts[no] == 0 || rng.chance(40) {
            let claim =
                Claim { run, slot: Slot::DRIVER, instance, label: None, fresh: false, restart: false };
            return (Act::Claim { client: no }, claim.into());
        }
        let attempt = AttemptNo(self.attempts[no]);
        let actor = (!self.ignores_lease).then_some((Actor { run, attempt, instance }, Slot::DRIVER));
        let changes = vec![Change::set(Name::new("shared", "", "key"), b"value")];
        let write = Act::Write { client: no, attempt: attempt.0 };
        (write, Put { actor, changes, transaction: None }.into())
    }

    fn meaning(&mut self, client: &Client, result: &Result<Outcome, Error>) -> Option<Acted> {
        Some(match result {
            Ok(Outcome::Claimed(Claimed::Attempt { attempt, .. })) => {
                self.attempts[client.no] = attempt.0;
                Acted::Attempt(attempt.0)
            }
            Ok(Outcome::Put(_)) => Acted::Wrote,
            Ok(Outcome::Declared(_)) => Acted::Buried,
            Err(Error::Engine(Refused::RunHeld { .. })) => Acted::Held,
            Err(Error::Engine(Refused::InstanceDead)) => Acted::Dead,
            Err(Error::Engine(Refused::LeaseLost { .. })) => Acted::Lost,
            _ => return None,
        })
    }
}

fn settle(actor: Actor, opening: Opening, close: Close) -> Op {
    Settle {
        opening,
        attempt: actor.attempt,
        close,
        active_ms: 0,
        http_status: None,
        upstream_request_id: None,
        error: None,
        answer: None,
    }
    .into()
}

/// Builds a request that no other one is like, at one nano-dollar a token.
fn admit(actor: Actor, tokens: u64, no: u64) -> Op {
    let bound = Bound {
        input_tokens: tokens,
        input_pico: i128::from(tokens) * 1000,
        output_pico_per_token: 0,
        fixed_pico: 0,
        choices: 1,
        cap: 1,
        floor_cap: 1,
    };
    let digest = Digest::of(format!("{} {no}", actor.run).as_bytes());
    let scope = iteration_scope(0);
    Admit {
        actor,
        slot: Slot::DRIVER,
        match_key: MatchKey::new(&digest, &scope, None),
        scope,
        within: None,
        digest,
        upstream: "test".into(),
        path: "/chat".into(),
        model: "test-1".into(),
        stream: false,
        idempotency_key: None,
        bound,
        priced: true,
        unknown_fee: None,
        caller: None,
        usual_cap: None,
        taken: Default::default(),
        connection: 0,
        retry_count: 0,
        answered_with_error: false,
        behind: Default::default(),
        active_ms: 0,
        waits: 0,
        request: None,
    }
    .into()
}

/// Two processes with two clients each, whose runs are charged to one parent.
fn clients(disk: &MemoryStore) -> Vec<Client> {
    let mut limits = Limits::default();
    limits[Unit::CostNanoUsd] = Some(LIMIT);
    let start = |start: Start| disk.ask(start, Durability::Synced).wait().unwrap().run;
    let parent = start(Start { limits, ..Start::new(RunId::new("parent").unwrap()) });
    let client = |no: usize| {
        let identity = Identity { pid: no as u32, ..Identity::default() };
        let instance = disk.ask(Register { identity }, Durability::Synced).wait().unwrap();
        let spec = Spec { job: Some("job".into()), ..Spec::default() };
        let run =
            Start { spec, parent: Some(parent), ..Start::new(RunId::new(&format!("run-{no}")).unwrap()) };
        let run = start(run);
        let claim = Claim { run, slot: Slot::DRIVER, instance, label: None, fresh: false, restart: false };
        let Claimed::Attempt { attempt, .. } = disk.ask(claim, Durability::Synced).wait().unwrap() else {
            panic!("a new run was refused")
        };
        Client { no, process: no % 2, actor: Actor { run, attempt, instance }, pending: None }
    };
    (0..CLIENTS).map(client).collect()
}

fn fault(rng: &Rng) -> Vec<Option<Fault>> {
    let (committed, after) = (rng.chance(50), rng.below(2) as usize);
    match rng.below(6) {
        0 => vec![Some(Fault::Refused)],
        1 => vec![Some(Fault::Write { after, why: Why::Io })],
        2 => vec![Some(Fault::Unclear { committed, told: false })],
        _ => Vec::new(),
    }
}

/// Plays a history. Returns whether it is linearizable.
fn is_linearizable<T: Trial>(mut trial: T, bug: Option<Bug>, seed: u64) -> bool {
    let rng = Rng::new(seed);
    let disk = Arc::new(MemoryStore::new(Arc::new(ManualClock::new(Micros(0)))));
    let mut clients = clients(&disk);
    let mut stores = [(); 2].map(|()| FaultStore::new(disk.clone(), bug));
    let mut history = LinearizabilityTester::new(T::model());
    let mut begun = 0;
    loop {
        let at = rng.below(CLIENTS as u64) as usize;
        if clients[at].pending.is_none() && begun < OPERATIONS {
            let (meant, op) = trial.draw(&clients[at], &disk, &rng);
            // An operation of unknown outcome stays begun for ever: each has a thread of its own in the history.
            history.on_invoke(begun, meant).unwrap();
            let ticket = stores[clients[at].process].submit(op, Durability::Synced, 0);
            clients[at].pending = Some((ticket, begun));
            begun += 1;
        }
        if rng.chance(50) {
            continue;
        }
        let process = rng.below(2) as usize;
        stores[process].line.lock().plan = fault(&rng);
        stores[process].step(0);
        for client in clients.iter_mut().filter(|c| c.process == process) {
            let Some((mut ticket, thread)) = client.pending.take() else { continue };
            match resolved(&mut ticket) {
                None => client.pending = Some((ticket, thread)),
                Some(result) => {
                    if matches!(result, Err(Error::CommitUnknown { .. })) {
                        stores[process].reopen();
                    }
                    if let Some(answer) = trial.meaning(client, &result) {
                        history.on_return(thread, answer).unwrap();
                    }
                }
            }
        }
        if begun == OPERATIONS && clients.iter().all(|c| c.pending.is_none()) {
            return history.is_consistent();
        }
    }
}

fn broken<T: Trial>(trial: impl Fn() -> T, bug: Option<Bug>) -> Option<u64> {
    (0..HISTORIES).find(|seed| !is_linearizable(trial(), bug, *seed))
}

#[test]
fn swaps_of_a_key_are_linearizable() {
    assert_eq!(broken(Swaps::default, None), None);
}

#[test]
fn swaps_that_look_at_no_version_are_not() {
    assert!(broken(|| Swaps { ignores_versions: true }, None).is_some());
}

#[test]
fn spending_from_a_budget_is_linearizable() {
    assert_eq!(broken(Spending::default, None), None);
}

#[test]
fn spending_decided_on_a_stale_budget_is_not() {
    assert!(broken(Spending::default, Some(Bug::StaleAdmission)).is_some());
}

#[test]
fn the_lease_of_a_run_is_linearizable() {
    assert_eq!(broken(Driving::default, None), None);
}

#[test]
fn writes_that_name_no_lease_are_not() {
    assert!(broken(|| Driving { ignores_lease: true, ..Driving::default() }, None).is_some());
}
