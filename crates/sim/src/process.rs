//! A process: a server that hosts the call machine on its handle of the store, as the proxy does.

mod exchanges;
mod settling;

use std::{
    collections::{BTreeMap, HashMap, VecDeque},
    sync::Arc,
};

use outlast_core::{
    call::{
        Connection, ConnectionId, Refused, Taken, Waiters,
        connection::{Action, Event},
        exchange::End,
        taken::Place,
    },
    engine::{
        call::{admit::Admit, delivered::Delivered},
        op::{Actor, Durability, Op},
    },
    journal::{Role, State},
    memory::{MemoryStore, Tables},
    store::{Error, Store},
    words::{
        digest::MatchKey,
        id::{AttemptNo, InstanceNo, RunNo, Seq, Slot},
    },
};

use self::exchanges::Live;
use crate::{
    Bug,
    agent::{self, Credential, Request},
    provider::Piece,
    store::FaultStore,
    world::Outside,
};

/// What happens to a process. While it is paused all of it waits.
#[derive(Clone, Debug)]
pub enum Input {
    Start,
    Tick,
    /// The writer's next group.
    Commit,
    /// The oldest ticket that is committed resolves.
    Resolve,
    Reopen,
    Request {
        connection: u64,
        request: Request,
    },
    ClientGone(u64),
    WaitOver {
        connection: u64,
        wait: u64,
    },
    Poll {
        connection: u64,
        seq: Seq,
    },
    Load {
        connection: u64,
        seq: Seq,
    },
    Flushed(u64),
    Upstream {
        run: RunNo,
        seq: Seq,
        piece: Piece,
    },
    SettleSlow(RunNo, Seq),
    SettleAgain(RunNo, Seq),
    Rested(RunNo, Seq),
    Claim {
        agent: usize,
        life: u32,
        run: RunNo,
        fresh: bool,
    },
    Raise {
        run: RunNo,
        amount: i64,
    },
}

/// What a ticket was for.
#[derive(Clone, Debug)]
enum Then {
    Registered { before: Option<InstanceNo> },
    Renewed,
    Declared,
    Entered { connection: u64, run: RunNo, label: String },
    Admitted(u64),
    Settled(RunNo, Seq),
    MayLeave(RunNo, Seq),
    Marked,
    Claimed { agent: usize, life: u32 },
    Raised,
}

struct Pending {
    op: Op,
    durability: Durability,
    then: Then,
    /// For the defect that decides on what was read too early.
    stale: Option<Box<Tables>>,
}

/// One client's request.
pub struct Client {
    pub request: Request,
    machine: Option<Connection>,
    pub attempt: Option<AttemptNo>,
    /// The entry whose answer it receives.
    pub receiving: Option<Seq>,
    /// What it is given at the end.
    result: Option<agent::Input>,
    /// Numbers its waits, so that an old timer is known as old.
    wait: u64,
    /// Its wait was over, and it was decided once more.
    waited_out: bool,
}

/// One process, in one of its lives.
pub struct Process {
    pub index: usize,
    pub is_up: bool,
    pub paused_until_ms: u64,
    instance: Option<InstanceNo>,
    store: FaultStore,
    taken: Taken,
    waiters: Waiters,
    pub clients: BTreeMap<u64, Client>,
    pub exchanges: BTreeMap<(RunNo, Seq), Live>,
    labels: HashMap<(RunNo, String), AttemptNo>,
    pending: Vec<Pending>,
    resolved: VecDeque<(Then, Result<outlast_core::engine::op::Outcome, Error>)>,
    commit_at: Option<u64>,
    reopening: bool,
    /// Heartbeats of others, and since when they stand still.
    watched: HashMap<InstanceNo, (i64, u64)>,
}

impl Process {
    pub fn new(index: usize, disk: Arc<MemoryStore>) -> Process {
        Process {
            index,
            is_up: false,
            paused_until_ms: 0,
            instance: None,
            store: FaultStore::new(disk),
            taken: Taken::default(),
            waiters: Waiters::default(),
            clients: BTreeMap::new(),
            exchanges: BTreeMap::new(),
            labels: HashMap::new(),
            pending: Vec::new(),
            resolved: VecDeque::new(),
            commit_at: None,
            reopening: false,
            watched: HashMap::new(),
        }
    }

    pub fn is_idle(&self) -> bool {
        self.clients.is_empty() && self.exchanges.is_empty()
    }

    /// Its delivery marks that are not committed: a crash loses them.
    pub fn pending_marks(&self) -> Vec<(RunNo, Seq)> {
        let mark = |p: &Pending| match &p.op {
            Op::Delivered(d) => Some((d.run, d.seq)),
            _ => None,
        };
        self.pending.iter().filter_map(mark).collect()
    }

    /// The one way in.
    pub fn on(&mut self, input: Input, out: &mut Outside) {
        if !self.is_up && !matches!(input, Input::Start) {
            return self.nobody_there(input, out);
        }
        match input {
            Input::Start => self.start(out),
            Input::Tick => self.tick(out),
            Input::Commit => self.commit(out),
            Input::Resolve => self.resolve_next(out),
            Input::Reopen => self.reopen(out),
            Input::Request { connection, request } => self.request(connection, request, out),
            Input::ClientGone(c) => self.feed(c, Event::ClientGone, out),
            Input::WaitOver { connection, wait } => {
                if let Some(client) = self.clients.get_mut(&connection).filter(|c| c.wait == wait) {
                    client.waited_out = true;
                    self.feed(connection, Event::WaitOver, out);
                }
            }
            Input::Poll { connection, seq } => self.poll(connection, seq, out),
            Input::Load { connection, seq } => self.load(connection, seq, out),
            Input::Flushed(c) => self.flushed(c, out),
            Input::Upstream { run, seq, piece } => self.upstream(run, seq, piece, out),
            Input::SettleSlow(run, seq) => {
                self.exchange(run, seq, outlast_core::call::exchange::Event::SettleSlow, out)
            }
            Input::SettleAgain(run, seq) => self.settle_again(run, seq, out),
            Input::Rested(run, seq) => self.rested(run, seq, out),
            Input::Claim { agent, life, run, fresh } => self.claim(agent, life, run, fresh, out),
            Input::Raise { run, amount } => self.raise(run, amount, out),
        }
    }

    fn nobody_there(&self, input: Input, out: &mut Outside) {
        match input {
            Input::Request { connection, request } => refuse(connection, &request, "connect", true, 500, out),
            Input::Claim { agent, life, .. } => out.to_agent(1, agent, life, agent::Input::Claimed(None)),
            _ => {}
        }
    }

    fn request(&mut self, connection: u64, request: Request, out: &mut Outside) {
        let Some(instance) = self.instance else {
            return refuse(connection, &request, "instance_dead", true, 2_000, out);
        };
        let (run, credential) = (request.run, request.credential.clone());
        let client = Client {
            request,
            machine: None,
            attempt: None,
            receiving: None,
            result: None,
            wait: 0,
            waited_out: false,
        };
        self.clients.insert(connection, client);
        match credential {
            Credential::Token(attempt) => self.arrive(connection, attempt, out),
            Credential::Label(label) => match self.labels.get(&(run, label.clone())) {
                Some(&attempt) => self.arrive(connection, attempt, out),
                None => {
                    let enter =
                        outlast_core::engine::run::enter::Enter { run, label: Some(label.clone()), instance };
                    self.queue(enter, Durability::Synced, Then::Entered { connection, run, label }, out);
                }
            },
        }
    }

    fn arrive(&mut self, connection: u64, attempt: AttemptNo, out: &mut Outside) {
        let stuck = self.exchanges.values().any(|x| x.machine.is_stuck());
        let instance = self.instance.unwrap_or_default();
        let Some(client) = self.clients.get_mut(&connection) else { return };
        client.attempt = Some(attempt);
        client.machine = Some(Connection::new(instance, client.request.retry, client.request.key.is_some()));
        self.feed(connection, Event::Arrived { stuck }, out);
    }

    /// Feeds one machine, then whichever its actions woke.
    fn feed(&mut self, connection: u64, event: Event, out: &mut Outside) {
        let mut inbox = VecDeque::from([(connection, event)]);
        while let Some((c, event)) = inbox.pop_front() {
            let Some(client) = self.clients.get_mut(&c) else { continue };
            let Some(machine) = client.machine.as_mut() else {
                // Its attempt is not known yet, and now nobody asks for it.
                self.clients.remove(&c);
                continue;
            };
            out.say(|| format!("process {} connection {c}: {event:?}", self.index));
            for action in machine.on(event) {
                self.act(c, action, &mut inbox, out);
            }
            let over = |c: &Client| c.machine.as_ref().is_some_and(Connection::is_over);
            if self.clients.get(&c).is_some_and(over) {
                self.clients.remove(&c);
            }
        }
    }

    fn act(&mut self, c: u64, action: Action, inbox: &mut VecDeque<(u64, Event)>, out: &mut Outside) {
        let Some(client) = self.clients.get_mut(&c) else { return };
        let (id, run) = (ConnectionId(c), client.request.run);
        let Some(place) = place(client, out.bug) else { return };
        let wake = |ids: Vec<ConnectionId>| ids.into_iter().map(|i| (i.0, Event::MayRetry));
        match action {
            Action::LineUp => inbox.extend(self.taken.line_up(place, id).then_some((c, Event::Turn))),
            Action::LeaveLine => {
                inbox.extend(self.taken.leave_line(place, id).map(|next| (next.0, Event::Turn)));
            }
            Action::Admit => self.admit(c, out),
            Action::Enqueue => {
                client.wait += 1;
                let wait = client.wait;
                self.waiters.enqueue(place, id);
                out.to_process(45_000, self.index, Input::WaitOver { connection: c, wait });
            }
            Action::Dequeue => {
                client.wait += 1;
                inbox.extend(wake(self.waiters.dequeue(run, id)));
            }
            Action::Take { seq, replays } => {
                client.receiving = Some(seq);
                self.taken.take(place, id, seq, replays);
            }
            Action::GiveBack => {
                client.receiving = None;
                client.waited_out = false;
                self.taken.give_back(place, id);
                inbox.extend(wake(self.waiters.wake_identical(place)));
            }
            Action::MarkError => self.taken.mark_error(place),
            Action::Retried => self.taken.retried(place),
            Action::Open { seq, cap } => {
                // With one process nothing comes back unnoticed: whoever fits was woken.
                if client.waited_out && out.processes == 1 {
                    out.overslept(run, seq);
                }
                self.open(c, seq, cap, true, out);
            }
            Action::Drop(seq) => self.open(c, seq, None, false, out),
            Action::Attach(seq) => {
                let event = self.attach(c, run, seq);
                out.saw(if matches!(event, Event::NotHere) { "joined too late" } else { "joined here" });
                inbox.push_back((c, event));
            }
            Action::Poll(seq) => {
                let pause = out.rng.between(100, 900);
                out.to_process(pause, self.index, Input::Poll { connection: c, seq });
            }
            Action::LoadAnswer(seq) => {
                if client.waited_out && out.processes == 1 {
                    out.overslept(run, seq);
                }
                out.to_process(2, self.index, Input::Load { connection: c, seq });
            }
            Action::Send(visible) => {
                let frames = client.receiving.and_then(|s| self.exchanges.get(&(run, s)));
                let frames = frames.map(|live| live.frames.as_slice());
                let seq = client.receiving.unwrap_or_default();
                out.oracle.shown(&out.disk, &out.provider, run, seq, visible, frames);
            }
            Action::Finish => self.finish(c, out),
            Action::Refuse(refused) => {
                let after = u64::from(refused.retry_after_s().unwrap_or(1)) * 1000;
                let (code, retry) = (refused.code().to_owned(), refused.should_retry());
                if let Refused::AdmissionTimeout(_) = refused {
                    out.saw("admission timeout");
                }
                refuse(c, &client.request, &code, retry, after, out);
            }
            // The SDK does not retry a stream that broke: its agent fails.
            Action::BreakOff(why) => {
                out.saw("broke off");
                refuse(c, &client.request, why.code(), false, 0, out);
            }
            Action::MarkDelivered { seq, count, replayed } => {
                let Some(attempt) = client.attempt else { return };
                let mark = Delivered { run, seq, attempt, count, replayed };
                self.queue(mark, Durability::Lazy, Then::Marked, out);
            }
        }
    }

    fn admit(&mut self, c: u64, out: &mut Outside) {
        let (Some(client), id) = (self.clients.get(&c), ConnectionId(c)) else { return };
        let (Some(place), Some(attempt)) = (place(client, out.bug), client.attempt) else { return };
        let r = &client.request;
        let op = Admit {
            actor: Actor { run: r.run, attempt, instance: self.instance.unwrap_or_default() },
            slot: Slot::DRIVER,
            scope: r.scope.clone(),
            within: None,
            digest: r.digest(),
            match_key: place.key,
            upstream: "sim".into(),
            path: "/chat".into(),
            model: "sim-1".into(),
            stream: r.ask.stream,
            idempotency_key: r.key.clone(),
            bound: r.ask.bound(),
            priced: r.ask.priced,
            taken: self.taken.seqs(place),
            in_hand: self.taken.in_hand(r.run, attempt),
            retry_count: r.retry,
            answered_with_error: self.taken.has_error(place),
            behind: self.waiters.is_behind(r.run, id),
            active_ms: 0,
            request: None,
        };
        self.waiters.decides(place, id);
        self.queue(op, Durability::Synced, Then::Admitted(c), out);
    }

    /// The end of an answer is on its way to the client.
    fn finish(&mut self, c: u64, out: &mut Outside) {
        let Some(client) = self.clients.get_mut(&c) else { return };
        let live = client.receiving.and_then(|s| self.exchanges.get(&(client.request.run, s)));
        if let Some(live) = live {
            let done = live.machine.progress().end == Some(End::Answered(State::Done));
            let status = live.machine.status().unwrap_or(502);
            client.result = Some(match out.provider.served.get(&live.key) {
                Some(served) if done => agent::Input::Answer { connection: c, answer: served.answer },
                _ => agent::Input::Refused {
                    connection: c,
                    code: format!("status {status}"),
                    retry: status >= 429,
                    after_ms: 500,
                },
            });
        }
        let delay = out.rng.between(1, 60);
        out.to_process(delay, self.index, Input::Flushed(c));
    }

    fn flushed(&mut self, c: u64, out: &mut Outside) {
        let Some(client) = self.clients.get_mut(&c) else { return };
        let (request, attempt) = (client.request.clone(), client.attempt.unwrap_or_default());
        if let Some(result) = client.result.take() {
            if let agent::Input::Answer { answer, .. } = result {
                out.oracle.received(&out.provider, &request, attempt, answer);
            }
            out.to_agent(0, request.agent, request.life, result);
        }
        self.feed(c, Event::Delivered, out);
    }

    fn poll(&mut self, c: u64, seq: Seq, out: &mut Outside) {
        let Some(run) = self.clients.get(&c).map(|client| client.request.run) else { return };
        let state = match self.store.disk().entry(run, seq) {
            Ok(Some(entry)) => Ok(entry.state),
            Ok(None) => Err(Error::Corrupt { what: format!("entry {seq} is gone") }),
            Err(e) => Err(e),
        };
        self.feed(c, Event::Polled(state), out);
    }

    fn load(&mut self, c: u64, seq: Seq, out: &mut Outside) {
        let Some(client) = self.clients.get_mut(&c) else { return };
        let stored = self.store.disk().payload(client.request.run, seq, Role::Answer);
        let text = stored.ok().flatten().and_then(|kept| kept.decode().ok());
        let answer = text.and_then(|t| std::str::from_utf8(&t).ok()?.parse().ok());
        let event = match answer {
            Some(answer) => {
                client.result = Some(agent::Input::Answer { connection: c, answer });
                Event::Loaded(Ok(()))
            }
            None => Event::Loaded(Err(Error::Corrupt { what: format!("the answer of entry {seq}") })),
        };
        self.feed(c, event, out);
    }

    fn queue(&mut self, op: impl Into<Op>, durability: Durability, then: Then, out: &mut Outside) {
        let op = op.into();
        let stale = match (&op, out.bug) {
            (Op::Admit(_), Some(Bug::StaleAdmission)) => Some(Box::new(out.disk.tables())),
            _ => None,
        };
        self.pending.push(Pending { op, durability, then, stale });
        let wait = if durability == Durability::Lazy { 100 } else { out.rng.between(1, 8) };
        let at = out.now_ms() + wait;
        if self.commit_at.is_none_or(|planned| at < planned) {
            self.commit_at = Some(at);
            out.to_process(wait, self.index, Input::Commit);
        }
    }
}

/// Where identical requests of the client's attempt meet.
fn place(client: &Client, bug: Option<Bug>) -> Option<Place> {
    let r = &client.request;
    let scope = if bug == Some(Bug::ScopeIgnored) { "" } else { &r.scope };
    let key = MatchKey::new(&r.digest(), scope, None);
    Some(Place { run: r.run, attempt: client.attempt?, key })
}

fn refuse(c: u64, request: &Request, code: &str, retry: bool, after_ms: u64, out: &mut Outside) {
    let refused = agent::Input::Refused { connection: c, code: code.to_owned(), retry, after_ms };
    out.to_agent(1, request.agent, request.life, refused);
}
