//! Drives one client's connection: events into the call machine, its actions out.

mod client;

use std::{collections::VecDeque, sync::Arc, time::Duration};

use http::Response;
use outlast_core::{
    call::{
        Connection, ConnectionId,
        connection::{Action, Event},
        exchange::Progress,
        taken::Place,
    },
    engine::{
        self,
        call::{
            admit::Admit,
            delivered::Delivered,
            keep::Keep,
            settle::{Close, Settle},
        },
        op::{Actor, Admission, Durability},
    },
    journal::{
        Role,
        payload::{PART_LEN, Payload},
    },
    store::{Ask as _, Error, Pending},
    words::id::{InstanceNo, Seq},
};
use tokio::{
    sync::{mpsc, oneshot, watch},
    time::Instant,
};

use super::{
    call::Call,
    host::{Host, Seen},
    live::{self, Live},
    rates::{Later, Turn},
    record::Answer,
};
use crate::wire::{
    body::{AnswerBody, Piece},
    wire::{Client, Wire},
};

/// Who waits for a turn asks for it at least so often.
const ASK_AGAIN: Duration = Duration::from_secs(1);

/// What a driver is told from outside.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Signal {
    Turn,
    MayRetry,
    /// What identical requests got is marked as delivered.
    Marked,
    Delivered,
    Gone,
}

/// Starts the driver of a request. The receiver gets the response's head with its body.
pub fn start(host: Arc<Host>, call: Call, wire: Wire) -> (oneshot::Receiver<Response<AnswerBody>>, Gone) {
    let (head, response) = oneshot::channel();
    let (inbox, signals) = mpsc::unbounded_channel();
    let id = host.connection_id();
    host.registry().inboxes.insert(id, inbox.clone());
    let call = Arc::new(call);
    let instance = host.node.instance();
    let machine = Connection::new(instance, call.retry_count, call.idempotency_key.is_some());
    let place = Place { run: call.seat.run, attempt: call.seat.attempt, key: call.match_key };
    wire.answering(Client { host: host.clone(), place, id });
    let drive = Drive {
        host,
        instance,
        id,
        place,
        call,
        machine,
        signals,
        wire,
        head: Some(head),
        out: None,
        source: Source::Nothing,
        sent: 0,
        admitting: None,
        admit_began: Instant::now(),
        long_request: None,
        wait_over: None,
        poll_at: None,
        turn: None,
        later: None,
        replayed: false,
    };
    tokio::spawn(drive.run());
    (response, Gone { inbox: Some(inbox) })
}

/// Tells the driver that its client is gone, when dropped before the response was taken.
pub struct Gone {
    inbox: Option<mpsc::UnboundedSender<Signal>>,
}

impl Gone {
    /// The response has a body now, and that will tell.
    pub fn disarm(mut self) {
        self.inbox = None;
    }
}

impl Drop for Gone {
    fn drop(&mut self) {
        if let Some(inbox) = self.inbox.take() {
            let _ = inbox.send(Signal::Gone);
        }
    }
}

/// Where the answer's bytes are.
enum Source {
    Nothing,
    Live(Arc<Live>, watch::Receiver<Progress>),
    Stored(Answer),
}

struct Drive {
    host: Arc<Host>,
    /// Under which the entry is admitted.
    instance: InstanceNo,
    id: ConnectionId,
    place: Place,
    call: Arc<Call>,
    machine: Connection,
    signals: mpsc::UnboundedReceiver<Signal>,
    wire: Wire,
    head: Option<oneshot::Sender<Response<AnswerBody>>>,
    out: Option<mpsc::Sender<Piece>>,
    source: Source,
    /// Frames of the source that went out.
    sent: usize,
    admitting: Option<Pending<Admit>>,
    admit_began: Instant,
    /// A body that is stored behind the admission, in parts.
    long_request: Option<Payload>,
    wait_over: Option<Instant>,
    poll_at: Option<(Instant, Seq)>,
    /// At its upstream, while it is decided.
    turn: Option<Turn>,
    /// It waits for that: when it asks again, and what stands in the way.
    later: Option<(Instant, Later)>,
    replayed: bool,
}

impl Drive {
    async fn run(mut self) {
        let stuck = self.host.unrecorded.any();
        let mut actions: VecDeque<Action> = self.machine.on(Event::Arrived { stuck }).into();
        loop {
            while let Some(action) = actions.pop_front() {
                if let Some(event) = self.act(action).await {
                    actions.extend(self.machine.on(event));
                }
            }
            if self.machine.is_over() {
                break;
            }
            let event = self.next().await;
            actions.extend(self.machine.on(event));
        }
        self.leaves_the_line();
        self.host.registry().forget(self.place, self.id);
    }

    /// The next thing that happens.
    async fn next(&mut self) -> Event {
        let poll_at = self.poll_at.map(|p| p.0);
        let asks_at = self.later.as_ref().map(|l| l.0);
        loop {
            // A client that left before its call went out is heard first: then it need not go.
            tokio::select! {
                biased;
                signal = self.signals.recv() => match signal {
                    Some(Signal::Turn) => return Event::Turn,
                    Some(Signal::MayRetry) => return Event::MayRetry,
                    Some(Signal::Marked) => self.admit(),
                    Some(Signal::Delivered) => return Event::Delivered,
                    Some(Signal::Gone) | None => return Event::ClientGone,
                },
                admitted = wait_for(&mut self.admitting) => {
                    self.admitting = None;
                    self.host.metrics.committed(self.admit_began.elapsed());
                    self.host.registry().waiters.decided(self.id);
                    return self.admitted(admitted).await;
                }
                changed = changed(&mut self.source) => if changed {
                    return Event::Progress(self.progress());
                },
                () = sleep_until(self.wait_over) => {
                    self.wait_over = None;
                    return Event::WaitOver;
                }
                () = sleep_until(asks_at) => {
                    if let Some((at, _)) = &mut self.later {
                        *at += ASK_AGAIN;
                    }
                    return Event::MayRetry;
                }
                () = sleep_until(poll_at) => {
                    let Some((_, seq)) = self.poll_at.take() else { continue };
                    return Event::Polled(self.poll(seq));
                }
            }
        }
    }

    fn progress(&mut self) -> Progress {
        match &mut self.source {
            Source::Live(_, progress) => *progress.borrow_and_update(),
            Source::Nothing | Source::Stored(_) => Progress::default(),
        }
    }

    async fn admitted(&mut self, result: Result<Admission, Error>) -> Event {
        if !matches!(result, Ok(Admission::Go { .. })) {
            self.turn = None;
        }
        if !matches!(result, Ok(Admission::Wait { .. })) {
            // What is recorded or in flight serves it: it keeps nobody from going.
            self.leaves_the_line();
        }
        match &result {
            Ok(Admission::Go { seq, diverged, .. }) => {
                self.host.saw(Seen::Opened { seq: *seq });
                if let Some(d) = diverged {
                    self.host.saw(Seen::Diverged { untaken: d.untaken });
                }
                let base = self.call.base(*seq);
                self.remember(base);
                self.host.call_begins(&self.call.seat);
            }
            Ok(Admission::Replay { seq }) => {
                self.replayed = true;
                if self.call.record.is_some() {
                    self.host.recall(self.call.seat.run, *seq, &self.call.body);
                }
            }
            Err(Error::Engine(engine::Error::InstanceDead)) => {
                // The process was stopped for longer than its lease; it goes on under a new number.
                if let Err(e) = self.host.node.register_anew(self.host.node.instance()).await {
                    tracing::error!(error = %e, "cannot register anew");
                }
            }
            _ => {}
        }
        Event::Admitted(result)
    }

    fn remember(&self, base: Option<outlast_core::body::Base>) {
        if let Some(base) = base {
            self.host.memory(self.call.seat.run).lock().bases.push(base);
        }
    }

    /// Carries an action out; some are answered at once.
    async fn act(&mut self, action: Action) -> Option<Event> {
        match action {
            Action::LineUp => {
                let turn = self.host.registry().taken.line_up(self.place, self.id);
                return turn.then_some(Event::Turn);
            }
            Action::LeaveLine => {
                let mut registry = self.host.registry();
                let next = registry.taken.leave_line(self.place, self.id);
                registry.tell(next, Signal::Turn);
            }
            Action::Admit => self.admit(),
            Action::Enqueue => {
                self.host.registry().waiters.enqueue(self.place, self.id);
                self.wait_over = Some(Instant::now() + self.host.config.admit_wait);
            }
            Action::Dequeue => {
                let mut registry = self.host.registry();
                let told = registry.waiters.dequeue(self.place.run, self.id);
                registry.tell(told, Signal::MayRetry);
                self.wait_over = None;
            }
            Action::Take { seq, replays } => self.host.registry().take(self.place, self.id, seq, replays),
            Action::GiveBack => self.host.registry().give_back(self.place, self.id),
            Action::MarkError => self.host.registry().taken.mark_error(self.place),
            Action::Retried => self.host.registry().taken.retried(self.place),
            Action::Open { seq, cap } => return Some(self.open(seq, cap)),
            Action::Drop(seq) => self.give_up(seq),
            Action::Attach(seq) => return Some(self.attach(seq)),
            Action::Poll(seq) => {
                let jitter = self.host.nonce() % 50;
                self.poll_at = Some((Instant::now() + Duration::from_millis(50 + jitter), seq));
            }
            Action::LoadAnswer(seq) => return Some(Event::Loaded(self.load(seq).await)),
            Action::Send(visible) => return self.send(visible).await,
            Action::Finish => {
                if let Some(out) = self.out.take() {
                    // A client that left has told so.
                    let _ = out.send(Piece::End).await;
                }
            }
            Action::Refuse(refused) => self.refuse(&refused),
            Action::BreakOff(why) => self.break_off(why).await,
            Action::MarkDelivered { seq, count, replayed } => {
                let (run, attempt) = (self.place.run, self.place.attempt);
                if replayed {
                    self.host.saw(Seen::Replayed { seq });
                    self.count_replay(seq);
                }
                let mark = Delivered { run, seq, attempt, count, replayed };
                drop(self.host.store.submit(mark.into(), Durability::Lazy));
            }
        }
        None
    }

    /// An answer was given again.
    fn count_replay(&self, seq: Seq) {
        // What cannot be read is told where it matters; a counter may miss it.
        let entry = self.host.store.entry(self.place.run, seq).ok().flatten();
        let saved = entry.map_or(0, |e| e.spent.cost());
        self.host.metrics.replayed(saved);
        tracing::info!(
            run = %self.call.seat.id, seq = %seq, upstream = self.call.upstream_name(),
            model = %self.call.request.model, saved_nano_usd = saved, "replayed"
        );
    }

    fn admit(&mut self) {
        let (call, seat) = (&self.call, &self.call.seat);
        // Kept: who opens an entry closes it, also when this process has to register anew meanwhile.
        self.instance = self.host.node.instance();
        let active_ms = self.host.unposted_ms(seat);
        let mut registry = self.host.registry();
        // A client that lost a delivered answer, and says so at once, is decided behind its mark.
        if registry.waits_for_marks(self.place, self.id) {
            return;
        }
        let wants = call.wants(&self.host);
        let behind = registry.waiters.is_behind(seat.run, self.id);
        let (turn, told) = match behind {
            true => (None, self.host.rates.leave(self.id, &wants)),
            false => {
                let (turn, told) = self.host.rates.turn(self.id, &wants);
                (Some(turn), told)
            }
        };
        registry.tell(told, Signal::MayRetry);
        let has_turn = matches!(turn, Some(Ok(_)));
        (self.turn, self.later) = match turn {
            None => (None, None),
            Some(Ok(turn)) => (Some(turn), None),
            // Not later than that: others may give theirs back.
            Some(Err(later)) => (None, Some((Instant::now() + later.after.min(ASK_AGAIN), later))),
        };
        let (request, long) = match call.payload() {
            Some(body) if body.bytes.len() > PART_LEN => (None, Some(body)),
            body => (body, None),
        };
        self.long_request = long;
        let admit = Admit {
            actor: Actor { run: seat.run, attempt: seat.attempt, instance: self.instance },
            slot: seat.slot,
            scope: seat.scope.clone(),
            within: seat.within,
            digest: call.digest,
            match_key: call.match_key,
            upstream: Arc::from(call.upstream_name()),
            path: call.path.clone(),
            model: Arc::from(call.request.model.as_str()),
            stream: call.request.stream,
            idempotency_key: call.idempotency_key.clone(),
            bound: call.bound,
            priced: call.priced.is_known(),
            taken: registry.taken.seqs(self.place),
            in_hand: registry.taken.in_hand(seat.run, seat.attempt),
            retry_count: call.retry_count,
            answered_with_error: registry.taken.has_error(self.place),
            behind: !has_turn,
            active_ms,
            request,
        };
        registry.waiters.decides(self.place, self.id);
        self.admit_began = Instant::now();
        // Submitted under the lock: what the registries said is what the store decides on, in order.
        self.admitting = Some(match registry.is_alone() {
            true => self.host.store.ask_here(admit, Durability::Synced),
            false => self.host.store.ask(admit, Durability::Synced),
        });
    }

    /// It waits for no turn any more.
    fn leaves_the_line(&mut self) {
        if self.later.take().is_some() {
            let told = self.host.rates.leave(self.id, &self.call.wants(&self.host));
            self.host.registry().tell(told, Signal::MayRetry);
        }
    }

    fn open(&mut self, seq: Seq, cap: Option<u64>) -> Event {
        let live = Live::new(seq, self.instance);
        let key = (self.place.run, seq);
        self.host.registry().exchanges.insert(key, live.clone());
        self.keep_request(seq);
        let progress = live.subscribe();
        let turn = self.turn.take();
        tokio::spawn(live::carry(self.host.clone(), live.clone(), self.call.clone(), cap, turn));
        self.source = Source::Live(live, progress);
        Event::Progress(self.progress())
    }

    /// Stores a request body that is too long for its admission's commit. Nobody waits: it is a base for
    /// later bodies, and their admissions come behind it in the store's order.
    fn keep_request(&mut self, seq: Seq) {
        let Some(body) = self.long_request.take() else { return };
        let (run, instance, role) = (self.place.run, self.instance, Role::Request);
        for part in body.into_parts() {
            drop(self.host.store.ask(Keep { run, seq, instance, role, part }, Durability::Committed));
        }
    }

    fn attach(&mut self, seq: Seq) -> Event {
        let live = self.host.registry().exchanges.get(&(self.place.run, seq)).cloned();
        match live {
            Some(live) => {
                self.replayed = true;
                let progress = live.subscribe();
                self.source = Source::Live(live, progress);
                Event::Progress(self.progress())
            }
            None => Event::NotHere,
        }
    }

    /// The client left before its call went out.
    fn give_up(&self, seq: Seq) {
        let seat = &self.call.seat;
        let void = Settle {
            run: seat.run,
            seq,
            attempt: seat.attempt,
            instance: self.instance,
            close: Close::Void,
            active_ms: 0,
            http_status: None,
            upstream_request_id: None,
            error: Some("its client left before it was sent".into()),
            answer: None,
        };
        let (host, seat) = (self.host.clone(), seat.clone());
        tokio::spawn(async move {
            while let Err(e) = host.store.ask(void.clone(), Durability::Synced).await {
                tracing::warn!(run = %seat.id, %seq, error = %e, "a call that was not sent is not closed");
                if matches!(e, Error::Engine(_)) {
                    break;
                }
                tokio::time::sleep(live::SETTLE_AGAIN).await;
            }
            host.call_ends(&seat);
            host.wake();
        });
    }

    fn poll(&self, seq: Seq) -> Result<outlast_core::journal::State, Error> {
        let entry = self.host.store.entry(self.place.run, seq)?;
        let entry = entry.ok_or_else(|| Error::Corrupt { what: format!("entry {seq} is gone") })?;
        Ok(entry.state)
    }

    async fn load(&mut self, seq: Seq) -> Result<(), Error> {
        self.replayed = true;
        let (store, run) = (self.host.store.clone(), self.place.run);
        let read = move || -> Result<Answer, Error> {
            let corrupt = |what: String| Error::Corrupt { what };
            let payload = store.payload(run, seq, Role::Answer)?;
            let payload = payload.ok_or_else(|| corrupt(format!("the answer of entry {seq} is missing")))?;
            let bytes = payload.decode().map_err(|e| corrupt(format!("the answer of entry {seq}: {e}")))?;
            Answer::from_bytes(bytes).map_err(|e| corrupt(format!("the answer of entry {seq}: {e}")))
        };
        // A point read of a hot page: a thread hop would cost more than the read.
        self.source = Source::Stored(read()?);
        Ok(())
    }
}

async fn wait_for(admitting: &mut Option<Pending<Admit>>) -> Result<Admission, Error> {
    match admitting {
        Some(pending) => pending.await,
        None => std::future::pending().await,
    }
}

/// True when there is progress to look at; false never returns to a caller twice.
async fn changed(source: &mut Source) -> bool {
    match source {
        Source::Live(_, progress) => {
            if progress.changed().await.is_err() {
                // The exchange is over and has said all it had to say.
                std::future::pending::<()>().await;
            }
            true
        }
        Source::Nothing | Source::Stored(_) => std::future::pending().await,
    }
}

async fn sleep_until(at: Option<Instant>) {
    match at {
        Some(at) => tokio::time::sleep_until(at).await,
        None => std::future::pending().await,
    }
}
