//! A process: a server that hosts a desk on its handle of the store, as the proxy does.

mod exchanges;
mod settling;

use std::{
    cell::RefCell,
    collections::{BTreeMap, HashMap, VecDeque},
    rc::Rc,
    sync::Arc,
};

use outlast_core::{
    call::{
        ConnectionId, Membership, Patience, Refused,
        connection::Event,
        desk::{self, Admitting, At, Deed, ForClient, Key},
        exchange::Ending,
        rates::Wants,
        taken::Place,
    },
    engine::{
        call::{admit::Admit, delivered::Delivered},
        op::{Actor, Durability, Op},
    },
    journal::Role,
    memory::{MemoryStore, Tables},
    store::{Error, Store},
    words::{
        digest::MatchKey,
        id::{AttemptNo, InstanceNo, RunNo, Seq, Slot},
    },
};

use self::exchanges::Carried;
use crate::{
    Bug,
    agent::{self, Credential, Request},
    planted::Planted,
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
    /// The planted defect: a client's end is noticed when its driver gets to it.
    ClientGoneLate(u64),
    WaitOver {
        connection: u64,
        wait: u64,
    },
    /// It asks for its turn at its upstream again.
    AskTurn {
        connection: u64,
        asked: u64,
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
    /// Its driver gets to the delivery mark.
    Mark(u64),
    Upstream {
        run: RunNo,
        seq: Seq,
        piece: Piece,
    },
    SettleSlow(Key),
    SettleAgain(Key),
    Rested(Key),
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
    Registered,
    Renewed,
    Declared,
    Entered { connection: u64, run: RunNo, label: String },
    Admitted(u64),
    Settled(Key),
    MayLeave(Key),
    Noted,
    Claimed { agent: usize, life: u32 },
    Raised,
}

struct Pending {
    op: Op,
    durability: Durability,
    then: Then,
    as_whom: InstanceNo,
    /// What the attempt of an admission was receiving when it was asked, as the oracle saw it.
    receiving: Vec<Seq>,
    /// For the defect that decides on what was read too early.
    stale: Option<Box<Tables>>,
}

/// One client's request.
pub struct Client {
    pub request: Request,
    attempt: Option<AttemptNo>,
    /// Where its answer comes from, when that is an exchange.
    source: Option<Rc<RefCell<Carried>>>,
    receiving: Option<Seq>,
    /// What it is given at the end.
    result: Option<agent::Input>,
    /// Its delivery mark, until it is submitted.
    mark: Option<Delivered>,
    /// Numbers its waits, so that an old timer is known as old.
    wait: u64,
    /// Numbers its admissions, for the same reason.
    asked: u64,
    /// Its wait was over, and it was decided once more.
    waited_out: bool,
    /// It had no turn at its upstream when it was asked last.
    lacks_turn: bool,
}

/// One process, in one of its lives.
pub struct Process {
    pub index: usize,
    pub life: u64,
    pub is_up: bool,
    pub paused_until_ms: u64,
    desk: Planted,
    membership: Membership,
    /// Its last instance, also while it registers anew.
    instance: InstanceNo,
    store: FaultStore,
    pub clients: BTreeMap<u64, Client>,
    exchanges: BTreeMap<Key, Rc<RefCell<Carried>>>,
    labels: HashMap<(RunNo, String), AttemptNo>,
    pending: Vec<Pending>,
    resolved: VecDeque<(Then, InstanceNo, Result<outlast_core::engine::op::Outcome, Error>)>,
    commit_at: Option<u64>,
    reopening: bool,
}

impl Process {
    pub fn new(index: usize, life: u64, disk: Arc<MemoryStore>, bug: Option<Bug>) -> Process {
        Process {
            index,
            life,
            is_up: false,
            paused_until_ms: 0,
            desk: Planted::new(bug),
            membership: Membership::default(),
            instance: InstanceNo::default(),
            store: FaultStore::new(disk),
            clients: BTreeMap::new(),
            exchanges: BTreeMap::new(),
            labels: HashMap::new(),
            pending: Vec::new(),
            resolved: VecDeque::new(),
            commit_at: None,
            reopening: false,
        }
    }

    pub fn is_idle(&self) -> bool {
        self.clients.is_empty() && self.exchanges.is_empty() && self.desk.is_empty()
    }

    /// Its connections and exchanges, for people.
    pub fn business(&self) -> String {
        format!("connections {:?}, exchanges {:?}", self.clients.keys(), self.exchanges.keys())
    }

    /// Its delivery marks that are not committed: a crash loses them.
    pub fn pending_marks(&self) -> Vec<(RunNo, Seq)> {
        let queued = self.pending.iter().filter_map(|p| match &p.op {
            Op::Delivered(d) => Some((d.run, d.seq)),
            _ => None,
        });
        let not_yet = self.clients.values().filter_map(|c| c.mark.as_ref().map(|d| (d.run, d.seq)));
        queued.chain(not_yet).collect()
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
            Input::ClientGone(c) => self.client_gone(c, out),
            Input::ClientGoneLate(c) => self.feed(c, Event::ClientGone, out),
            Input::WaitOver { connection, wait } => {
                if let Some(client) = self.clients.get_mut(&connection).filter(|c| c.wait == wait) {
                    client.waited_out = true;
                    self.feed(connection, Event::WaitOver, out);
                }
            }
            Input::AskTurn { connection, asked } => {
                if self.clients.get(&connection).is_some_and(|c| c.asked == asked) {
                    self.feed(connection, Event::MayRetry, out);
                    out.to_process(1_000, self.index, Input::AskTurn { connection, asked });
                }
            }
            Input::Poll { connection, seq } => self.poll(connection, seq, out),
            Input::Load { connection, seq } => self.load(connection, seq, out),
            Input::Flushed(c) => self.flushed(c, out),
            Input::Mark(c) => self.mark(c, out),
            Input::Upstream { run, seq, piece } => self.upstream((run, seq), piece, out),
            Input::SettleSlow(key) => {
                self.exchange(key, outlast_core::call::exchange::Event::SettleSlow, out);
            }
            Input::SettleAgain(key) => self.settle_again(key, out),
            Input::Rested(key) => self.exchange(key, outlast_core::call::exchange::Event::Rested, out),
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
        let Some(instance) = self.membership.instance() else {
            return refuse(connection, &request, "instance_dead", true, 2_000, out);
        };
        let (run, credential) = (request.run, request.credential.clone());
        let client = Client {
            request,
            attempt: None,
            source: None,
            receiving: None,
            result: None,
            mark: None,
            wait: 0,
            asked: 0,
            waited_out: false,
            lacks_turn: false,
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
        let Some(client) = self.clients.get_mut(&connection) else { return };
        client.attempt = Some(attempt);
        let (r, bound) = (&client.request, client.request.ask.bound());
        let wants = Wants {
            upstream: "sim".to_owned(),
            account: (None, "sim-1".to_owned()),
            rate: out.rate,
            bound: bound.full().1,
            input_bound: bound.input_tokens,
            patience_ms: 45_000,
        };
        let request = desk::Request {
            place: place(client, attempt, out.bug),
            retry_count: r.retry,
            has_idempotency_key: r.key.is_some(),
            patience: patience(out),
            wants: Arc::new(wants),
        };
        self.desk_on(desk::Event::Arrived(ConnectionId(connection), request), out);
    }

    fn client_gone(&mut self, c: u64, out: &mut Outside) {
        let Some(client) = self.clients.get(&c) else { return };
        if client.attempt.is_none() {
            // Its attempt is not known yet, and now nobody asks for it.
            self.clients.remove(&c);
            return;
        }
        out.oracle.gives_back(c);
        match out.bug {
            Some(Bug::LeftUnnoticed) => out.to_process(300, self.index, Input::ClientGoneLate(c)),
            _ => self.feed(c, Event::ClientGone, out),
        }
    }

    fn feed(&mut self, c: u64, event: Event, out: &mut Outside) {
        self.desk_on(desk::Event::Client(ConnectionId(c), event), out);
    }

    /// Feeds the desk, and carries out what it leaves to do.
    fn desk_on(&mut self, event: desk::Event, out: &mut Outside) {
        let at = At { now_ms: out.now_ms(), instance: self.instance };
        let mut events = VecDeque::from([event]);
        while let Some(event) = events.pop_front() {
            out.say(|| format!("process {}: {event:?}", self.index));
            for deed in self.desk.on(event, at) {
                match deed {
                    Deed::Client(id, deed) => self.act(id.0, deed, out),
                    Deed::Exchange(key, deed) => events.extend(self.act_upstream(key, deed, out)),
                }
            }
        }
    }

    fn act(&mut self, c: u64, deed: ForClient, out: &mut Outside) {
        let Some(client) = self.clients.get_mut(&c) else { return };
        let run = client.request.run;
        match deed {
            ForClient::Admit(admitting) => self.admit(c, admitting, out),
            ForClient::Wait => {
                client.wait += 1;
                let wait = client.wait;
                out.to_process(45_000, self.index, Input::WaitOver { connection: c, wait });
            }
            ForClient::WaitNoMore => client.wait += 1,
            ForClient::Open { seq, cap, instance } => {
                self.receives(c, seq, out);
                self.open(c, seq, cap, instance, true, out);
            }
            ForClient::Drop { seq, instance } => self.open(c, seq, None, instance, false, out),
            ForClient::Attach(seq) => {
                out.saw("joined here");
                self.receives(c, seq, out);
                let live = self.exchanges.get(&(run, seq)).cloned();
                self.clients.entry(c).and_modify(|client| client.source = live);
            }
            ForClient::Poll(seq) => {
                self.receives(c, seq, out);
                let pause = out.rng.between(100, 900);
                out.to_process(pause, self.index, Input::Poll { connection: c, seq });
            }
            ForClient::Load(seq) => {
                self.receives(c, seq, out);
                out.to_process(2, self.index, Input::Load { connection: c, seq });
            }
            ForClient::Send(visible) => {
                let live = client.source.as_ref().map(|live| live.borrow());
                let frames = live.as_ref().map(|live| live.frames.as_slice());
                let seq = client.receiving.unwrap_or_default();
                out.oracle.shown(&out.disk, &out.provider, run, seq, visible, frames);
            }
            ForClient::Finish => self.finish(c, out),
            ForClient::Refuse(refused) => {
                let after = u64::from(refused.retry_after_s().unwrap_or(1)) * 1000;
                let (code, retry) = (refused.code().to_owned(), refused.should_retry());
                match refused {
                    Refused::AdmissionTimeout(_) if client.lacks_turn => out.saw("no turn in time"),
                    Refused::AdmissionTimeout(_) => out.saw("admission timeout"),
                    _ => {}
                }
                refuse(c, &client.request, &code, retry, after, out);
            }
            // The SDK does not retry a stream that broke: its agent fails.
            ForClient::BreakOff(why) => {
                out.saw("broke off");
                refuse(c, &client.request, why.code(), false, 0, out);
            }
            ForClient::Mark { seq, count, replayed } => {
                let Some(attempt) = client.attempt else { return };
                client.mark = Some(Delivered { run, seq, attempt, count, replayed });
                // Its driver gets to it at once, or a little later.
                let delay = if out.rng.chance(60) { 0 } else { out.rng.between(1, 60) };
                out.to_process(delay, self.index, Input::Mark(c));
            }
            ForClient::Over => {
                out.oracle.gives_back(c);
                self.clients.remove(&c);
            }
        }
    }

    /// Its answer is that of `seq` from here on.
    fn receives(&mut self, c: u64, seq: Seq, out: &mut Outside) {
        let Some(client) = self.clients.get_mut(&c) else { return };
        client.receiving = Some(seq);
        let run = client.request.run;
        // With one process and no rate nothing comes back unnoticed: whoever fits was woken.
        let waited_out = std::mem::take(&mut client.waited_out);
        if waited_out && out.processes == 1 && out.rate.is_any() {
            out.overslept(run, seq);
        }
        out.oracle.receives(c, run, client.attempt.unwrap_or_default(), seq);
    }

    fn admit(&mut self, c: u64, admitting: Admitting, out: &mut Outside) {
        out.oracle.gives_back(c);
        let Some(client) = self.clients.get_mut(&c) else { return };
        let Some(attempt) = client.attempt else { return };
        client.asked += 1;
        client.lacks_turn = admitting.later.is_some();
        if let Some(later) = &admitting.later {
            out.saw("no turn");
            let ask = Input::AskTurn { connection: c, asked: client.asked };
            out.to_process(later.after_ms.min(1_000), self.index, ask);
        }
        let place = place(client, attempt, out.bug);
        let r = &client.request;
        let op = Admit {
            actor: Actor { run: r.run, attempt, instance: admitting.instance },
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
            taken: admitting.taken,
            in_hand: admitting.in_hand,
            retry_count: r.retry,
            answered_with_error: admitting.answered_with_error,
            behind: admitting.behind,
            active_ms: 0,
            request: None,
        };
        self.queue(op, Durability::Synced, Then::Admitted(c), out);
    }

    /// The end of an answer is on its way to the client.
    fn finish(&mut self, c: u64, out: &mut Outside) {
        let Some(client) = self.clients.get_mut(&c) else { return };
        if let Some(live) = client.source.as_ref().map(|live| live.borrow()) {
            let done = live.last.is_some_and(|(ending, _)| ending == Ending::Done);
            let status = live.status.unwrap_or(502);
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

    /// The answer is with the client's machine; now and then it is lost there.
    fn flushed(&mut self, c: u64, out: &mut Outside) {
        let Some(client) = self.clients.get_mut(&c) else { return };
        let (request, attempt) = (client.request.clone(), client.attempt.unwrap_or_default());
        out.oracle.gives_back(c);
        match client.result.take() {
            Some(agent::Input::Answer { .. }) if out.rng.chance(5) && !out.provider.behaves => {
                out.saw("lost after its end");
                let after = out.rng.between(0, 40);
                refuse(c, &request, "connection reset", true, after, out);
            }
            Some(result) => {
                if let agent::Input::Answer { answer, .. } = result {
                    out.oracle.received(&out.provider, &request, attempt, answer);
                }
                out.to_agent(0, request.agent, request.life, result);
            }
            None => {}
        }
        self.feed(c, Event::Delivered, out);
    }

    fn mark(&mut self, c: u64, out: &mut Outside) {
        let Some(mark) = self.clients.get_mut(&c).and_then(|client| client.mark.take()) else { return };
        self.queue(mark, Durability::Lazy, Then::Noted, out);
        self.desk_on(desk::Event::Marked(ConnectionId(c)), out);
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
                client.source = None;
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
        let receiving = match &op {
            Op::Admit(admit) => out.oracle.receiving(admit.actor.run, admit.actor.attempt),
            _ => Vec::new(),
        };
        self.pending.push(Pending { op, durability, then, as_whom: self.instance, receiving, stale });
        let wait = if durability == Durability::Lazy { 100 } else { out.rng.between(1, 8) };
        let at = out.now_ms() + wait;
        if self.commit_at.is_none_or(|planned| at < planned) {
            self.commit_at = Some(at);
            out.to_process(wait, self.index, Input::Commit);
        }
    }
}

/// Where identical requests of the client's attempt meet.
fn place(client: &Client, attempt: AttemptNo, bug: Option<Bug>) -> Place {
    let r = &client.request;
    let scope = if bug == Some(Bug::ScopeIgnored) { "" } else { &r.scope };
    let key = MatchKey::new(&r.digest(), scope, None);
    Place { run: r.run, attempt, key }
}

fn patience(out: &Outside) -> Patience {
    let seed = out.rng.between(0, u64::MAX - 1);
    Patience { tries: out.rng.between(1, 3) as u32, within_ms: 45_000, seed }
}

fn refuse(c: u64, request: &Request, code: &str, retry: bool, after_ms: u64, out: &mut Outside) {
    let refused = agent::Input::Refused { connection: c, code: code.to_owned(), retry, after_ms };
    out.to_agent(1, request.agent, request.life, refused);
}
