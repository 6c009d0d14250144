//! Simulated process: a server that hosts a desk on its own handle of the store, as the proxy does.

use std::{
    cell::RefCell,
    collections::{BTreeMap, HashMap, VecDeque},
    rc::Rc,
    sync::Arc,
};

use outlast_core::{
    call::{
        ConnectionId, Membership, Patience, Quiet, RequestKey,
        connection::Event,
        desk::{At, Deed, Key},
        exchange::Ending,
        rates::Wants,
    },
    engine::Delivered,
    store::Ticket,
    words::MatchKey,
};

use crate::{Credential, FaultStore, Planted, person, prelude::*};

mod clients;
mod settling;

/// Purpose of a ticket.
#[derive(Clone, Debug)]
enum Then {
    Registered,
    /// Renewal of the heartbeat; the value is the heartbeat that was to be written.
    Renewed(i64),
    Declared,
    Entered {
        connection: u64,
        run: RunNo,
        label: String,
    },
    Admitted(u64),
    Settled(Key),
    MayLeave(Key),
    Noted,
    /// The answer of a connection is delivered or given back, and the store knows it.
    GivenBack(u64),
    Claimed {
        agent: usize,
        life: u32,
    },
    WorkerClaimed(Whose),
    Worked(Whose),
    Raised,
}

struct Pending {
    op: Op,
    ticket: Ticket,
    then: Then,
    as_whom: InstanceNo,
    submitted_ms: u64,
    /// Entries that the attempt of an admission was receiving when it asked, and at which process each, as the oracle saw it.
    receiving: Vec<(Seq, usize)>,
}

/// One life of a process, from a start to the end. A restarted process is another one.
pub struct Process {
    pub index: usize,
    pub life: u64,
    pub is_up: bool,
    pub paused_until_ms: u64,
    /// Time for which the process's machine was suspended, in milliseconds. Its monotonic clock does not count it.
    pub slept_ms: u64,
    desk: Planted,
    membership: Membership,
    /// Newest instance of this process, kept while the process registers anew.
    instance: InstanceNo,
    store: FaultStore,
    pub clients: BTreeMap<u64, Client>,
    exchanges: BTreeMap<Key, Rc<RefCell<Carried>>>,
    labels: HashMap<(RunNo, String), AttemptNo>,
    pending: Vec<Pending>,
    resolved: VecDeque<(Then, InstanceNo, Result<outlast_core::engine::op::Outcome, Error>)>,
    commit_at: Option<u64>,
    reopening: bool,
    /// Time on its own clock at which the process last asked its upstream or heard of it.
    sign_ms: u64,
    /// Simulated hour in which waiters were last told to ask again.
    hour: i64,
}

impl Process {
    pub fn new(index: usize, life: u64, disk: Arc<MemoryStore>, bug: Option<Bug>) -> Process {
        Process {
            index,
            life,
            is_up: false,
            paused_until_ms: 0,
            slept_ms: 0,
            desk: Planted::new(bug),
            membership: Membership::new(false),
            instance: InstanceNo::default(),
            store: FaultStore::new(disk, bug),
            clients: BTreeMap::new(),
            exchanges: BTreeMap::new(),
            labels: HashMap::new(),
            pending: Vec::new(),
            resolved: VecDeque::new(),
            commit_at: None,
            reopening: false,
            sign_ms: 0,
            hour: 0,
        }
    }

    /// Returns the newest instance of this process.
    pub fn instance(&self) -> InstanceNo {
        self.instance
    }

    /// Returns the process's own monotonic clock.
    fn now_ms(&self, out: &Outside) -> u64 {
        out.engine.now_ms().saturating_sub(self.slept_ms)
    }

    pub fn is_idle(&self) -> bool {
        self.clients.is_empty() && self.exchanges.is_empty() && self.desk.is_empty()
    }

    /// Returns the process's connections and exchanges, as text for people.
    pub fn business(&self) -> String {
        format!("connections {:?}, exchanges {:?}", self.clients.keys(), self.exchanges.keys())
    }

    /// Returns delivery marks that are not committed: a crash loses them.
    pub fn pending_marks(&self) -> Vec<(RunNo, Seq)> {
        let queued = self.pending.iter().filter_map(|p| match &p.op {
            Op::Delivered(d) => Some((d.run, d.seq)),
            _ => None,
        });
        let not_yet = self.clients.values().filter_map(|c| c.mark.as_ref().map(|d| (d.run, d.seq)));
        queued.chain(not_yet).collect()
    }

    /// Handles an event. Nothing else changes the process.
    pub fn on(&mut self, input: ToProcess, out: &mut Outside) {
        if !self.is_up && !matches!(input, ToProcess::Start) {
            return self.nobody_there(input, out);
        }
        self.store.line.lock().away = out.is_away(self.index);
        match input {
            ToProcess::Start => self.start(out),
            ToProcess::Tick => self.tick(out),
            ToProcess::Commit => self.commit(out),
            ToProcess::Resolve => self.resolve_next(out),
            ToProcess::Reopen => self.reopen(out),
            ToProcess::Request { connection, request } => self.request(connection, request, out),
            ToProcess::ClientGone(c) => self.client_gone(c, out),
            ToProcess::Desk(event) => self.desk_on(event, out),
            ToProcess::WaitOver { connection, wait } => {
                let just_woke = self.paused_until_ms + 1_000 > out.engine.now_ms();
                if let Some(client) = self.clients.get_mut(&connection).filter(|c| c.wait == wait) {
                    // A process that slept over an hour's end, or over what made room, has not told its waiters yet.
                    client.waited_out = self.hour == out.hour() && !just_woke;
                    self.feed(connection, Event::WaitOver, out);
                }
            }
            ToProcess::AskTurn { connection, asked } => {
                if self.clients.get(&connection).is_some_and(|c| c.asked == asked) {
                    self.feed(connection, Event::MayRetry, out);
                    out.to_process(1_000, self.index, ToProcess::AskTurn { connection, asked });
                }
            }
            ToProcess::Poll { connection, seq } => self.poll(connection, seq, out),
            ToProcess::Load { connection, seq } => self.load(connection, seq, out),
            ToProcess::Flushed(c) => self.flushed(c, out),
            ToProcess::Mark(c) => self.mark(c, out),
            ToProcess::Upstream { run, seq, piece } => self.upstream((run, seq), piece, out),
            ToProcess::SettleAgain(key) => self.settle_again(key, out),
            ToProcess::Claim { agent, life, run, fresh } => self.claim(agent, life, run, fresh, out),
            ToProcess::Raise { run, amount } => self.raise(run, amount, out),
            ToProcess::WorkerClaims { worker, life, run } => self.worker_claims(worker, life, run, out),
            ToProcess::Work { whose, op, how } => self.work(whose, op, how, out),
            ToProcess::Person(op) => self.queue(op, Durability::Synced, Then::Raised, out),
            ToProcess::Forget(run) => self.forget(run, out),
            ToProcess::Order(runs) => {
                let op = person::order(runs, self.instance, out);
                self.queue(op, Durability::Synced, Then::Raised, out);
            }
        }
    }

    fn nobody_there(&self, input: ToProcess, out: &mut Outside) {
        match input {
            ToProcess::Request { connection, request } => {
                refuse(connection, &request, "connect", true, 500, out)
            }
            ToProcess::Claim { agent, life, .. } => out.to_agent(1, agent, life, ToAgent::Claimed(None)),
            ToProcess::WorkerClaims { worker, life, .. } => out.to_worker(1_000, worker, life, ToWorker::Die),
            _ => {}
        }
    }

    fn request(&mut self, connection: u64, request: Request, out: &mut Outside) {
        let Some(instance) = self.membership.instance() else {
            return refuse(connection, &request, "instance_dead", true, 2_000, out);
        };
        let (run, credential) = (request.run, request.credential.clone());
        self.clients.insert(connection, Client::new(request));
        match credential {
            Credential::Token(attempt) => self.arrive(connection, attempt, out),
            Credential::Label(label) => match self.labels.get(&(run, label.clone())) {
                Some(&attempt) => self.arrive(connection, attempt, out),
                None => {
                    let enter =
                        outlast_core::engine::run::claim::Enter { run, label: Some(label.clone()), instance };
                    self.queue(enter, Durability::Synced, Then::Entered { connection, run, label }, out);
                }
            },
        }
    }

    fn arrive(&mut self, connection: u64, attempt: AttemptNo, out: &mut Outside) {
        let Some(client) = self.clients.get_mut(&connection) else { return };
        client.attempt = Some(attempt);
        let (r, bound) = (&client.request, client.request.ask.bound());
        let wants = Wants {
            upstream: "sim".to_owned(),
            way: Digest::of(b"sim"),
            request: r.digest(),
            account: (None, "sim-1".to_owned()),
            rate: out.rate,
            bound: bound.full().1,
            input_bound: bound.input_tokens,
            patience_ms: 45_000,
            ..Wants::default()
        };
        let request = desk::Request {
            place: client.place(attempt, out.engine.bug),
            retry_count: r.retry,
            has_idempotency_key: r.key.is_some(),
            patience: patience(out),
            wants: Arc::new(wants),
        };
        self.desk_on(desk::Event::Arrived(ConnectionId(connection), request), out);
    }

    fn feed(&mut self, c: u64, event: Event, out: &mut Outside) {
        self.desk_on(desk::Event::Client(ConnectionId(c), event), out);
    }

    /// Passes an event to the desk and carries out the deeds it returns.
    fn desk_on(&mut self, event: desk::Event, out: &mut Outside) {
        let at = At { now_ms: self.now_ms(out), instance: self.instance };
        let mut events = VecDeque::from([event]);
        while let Some(event) = events.pop_front() {
            out.engine.say(|| format!("process {}: {event:?}", self.index));
            for deed in self.desk.on(event, at) {
                match deed {
                    Deed::Client(id, deed) => self.act(id.0, deed, out),
                    Deed::Exchange(key, deed) => events.extend(self.act_upstream(key, deed, out)),
                }
            }
        }
    }

    fn queue(&mut self, op: impl Into<Op>, durability: Durability, then: Then, out: &mut Outside) {
        let op = op.into();
        let receiving = match &op {
            Op::Admit(admit) => out.oracle.receiving(admit.actor.run, admit.actor.attempt),
            _ => Vec::new(),
        };
        let ticket = self.store.submit(op.clone(), durability, out.engine.now_ms());
        let submitted_ms = out.engine.now_ms();
        self.pending.push(Pending { op, ticket, then, as_whom: self.instance, submitted_ms, receiving });
        let wait = if durability == Durability::Lazy { 100 } else { out.engine.rng.between(1, 8) };
        self.commit_in(wait, out);
    }

    fn commit_in(&mut self, wait: u64, out: &mut Outside) {
        let at = out.engine.now_ms() + wait;
        if self.commit_at.is_none_or(|planned| at < planned) {
            self.commit_at = Some(at);
            out.to_process(wait, self.index, ToProcess::Commit);
        }
    }
}

fn patience(out: &Outside) -> Patience {
    let seed = out.engine.rng.between(0, u64::MAX - 1);
    let hold_ms = if out.engine.rng.chance(70) { 60_000 } else { 0 };
    Patience { tries: out.engine.rng.between(1, 3) as u32, within_ms: 45_000, hold_ms, seed }
}

fn refuse(c: u64, request: &Request, code: &str, retry: bool, after_ms: u64, out: &mut Outside) {
    let refused = ToAgent::Refused { connection: c, code: code.to_owned(), retry, after_ms };
    out.to_agent(1, request.agent, request.life, refused);
}

/// Request of one client, and the state of its answer.
pub struct Client {
    pub request: Request,
    pub(super) attempt: Option<AttemptNo>,
    /// Live exchange with the provider that produces the answer; `None` if the answer comes from the store, or has not
    /// begun.
    pub(super) source: Option<Rc<RefCell<Carried>>>,
    pub(super) receiving: Option<Seq>,
    /// Instance that asked for admission last, in whose name the answer is taken.
    pub(super) asked_as: InstanceNo,
    /// Result that the agent is given at the end; `None` until it is known.
    pub(super) result: Option<ToAgent>,
    /// Delivery mark of the answer until the mark is submitted; `None` if there is none.
    pub(super) mark: Option<Delivered>,
    /// Number of the current wait, by which an old timer is recognised.
    pub(super) wait: u64,
    /// Number of the current admission, by which an old timer is recognised.
    pub(super) asked: u64,
    /// Whether the last decision came only because the wait was over, although the waiters had been told of the current
    /// hour.
    pub(super) waited_out: bool,
    /// Whether the last admission found no turn at the upstream.
    pub(super) lacks_turn: bool,
}

impl Client {
    pub(super) fn new(request: Request) -> Client {
        Client {
            request,
            attempt: None,
            source: None,
            receiving: None,
            asked_as: InstanceNo::default(),
            result: None,
            mark: None,
            wait: 0,
            asked: 0,
            waited_out: false,
            lacks_turn: false,
        }
    }

    /// Returns the key by which identical requests of the client's attempt are found.
    pub(super) fn place(&self, attempt: AttemptNo, bug: Option<Bug>) -> RequestKey {
        let r = &self.request;
        let scope = if bug == Some(Bug::ScopeIgnored) { "" } else { &r.scope };
        let key = MatchKey::new(&r.digest(), scope, None);
        RequestKey { run: r.run, attempt, key }
    }
}

/// State that the host keeps for an exchange. Its clients read their answers from it.
#[derive(Default)]
pub struct Carried {
    pub(super) key: Key,
    pub(super) asked: UpstreamRequest,
    /// Time since which the call is tried.
    pub(super) began_ms: u64,
    /// Opening of the entry, with the instance that made it. Only that instance may close the entry, even after the
    /// process registered anew.
    pub(super) opening: Opening,
    pub(super) attempt: AttemptNo,
    pub(super) status: Option<u16>,
    pub(super) frames: Vec<Frame>,
    /// Wait for more of an answer that has begun; `None` before its head.
    pub(super) quiet: Option<Quiet>,
    pub(super) metered: Option<Bill>,
    pub(super) aborted: bool,
    /// Last settlement that was submitted; `None` before the first.
    pub(super) last: Option<(Ending, Option<&'static str>)>,
    pub(super) is_first_try: bool,
}
