//! Drives one client's connection: events into the call machine, its actions out.

use std::{collections::VecDeque, sync::Arc, time::Duration};

use bytes::{Bytes, BytesMut};
use http::{HeaderMap, HeaderValue, Response, StatusCode};
use outlast_core::{
    call::{
        Broken, Connection, ConnectionId, Refused, Visible,
        connection::{Action, Event},
        exchange::Progress,
        taken::Place,
    },
    engine::{
        self,
        admit::Admit,
        delivered::Delivered,
        settle::{Close, Settle},
    },
    id::{InstanceNo, Seq},
    journal::Role,
    op::{Actor, Admission, Durability},
    store::{Ask as _, Error, Pending},
};
use tokio::{
    sync::{mpsc, oneshot, watch},
    time::Instant,
};

use super::{
    body::{AnswerBody, Driver, Piece},
    call::Call,
    host::{Host, Seen},
    live::{self, Live},
    record::Answer,
    refuse::Refusal,
    wire::{Client, Wire},
};
use crate::dialect::error_frame;

/// Frames between the driver and a slow client.
const FRAMES_AHEAD: usize = 64;

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
        wait_over: None,
        poll_at: None,
        cap: None,
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
    wait_over: Option<Instant>,
    poll_at: Option<(Instant, Seq)>,
    cap: Option<u64>,
    replayed: bool,
}

impl Drive {
    async fn run(mut self) {
        let stuck = self.host.is_stuck();
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
        self.host.registry().forget(self.place, self.id);
    }

    /// The next thing that happens.
    async fn next(&mut self) -> Event {
        let poll_at = self.poll_at.map(|p| p.0);
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
            Action::Take(seq) => self.host.registry().take(self.place, self.id, seq),
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
                }
                let mark = Delivered { run, seq, attempt, count, replayed };
                drop(self.host.store.submit(mark.into(), Durability::Lazy));
            }
        }
        None
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
            retry_count: call.retry_count,
            answered_with_error: registry.taken.has_error(self.place),
            behind: registry.waiters.is_behind(seat.run, self.id),
            active_ms,
            request: call.payload(),
        };
        registry.waiters.decides(self.place, self.id);
        // Submitted under the lock: what the registries said is what the store decides on, in order.
        self.admitting = Some(match registry.is_alone() {
            true => self.host.store.ask_here(admit, Durability::Synced),
            false => self.host.store.ask(admit, Durability::Synced),
        });
    }

    fn open(&mut self, seq: Seq, cap: Option<u64>) -> Event {
        self.cap = cap;
        let live = Live::new(seq, self.instance);
        let key = (self.place.run, seq);
        self.host.registry().exchanges.insert(key, live.clone());
        let progress = live.subscribe();
        tokio::spawn(live::carry(self.host.clone(), live.clone(), self.call.clone(), cap));
        self.source = Source::Live(live, progress);
        Event::Progress(self.progress())
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

    /// Forwards what became visible.
    async fn send(&mut self, visible: Visible) -> Option<Event> {
        let (frames, head, whole) = match &self.source {
            Source::Nothing => return None,
            Source::Live(live, _) => {
                let log = live.log();
                let upto = match visible {
                    Visible::Nothing => return None,
                    Visible::Frames(n) => n.min(log.frames.len()),
                    Visible::Whole => log.frames.len(),
                };
                let frames: Vec<Bytes> = log.frames.get(self.sent..upto).unwrap_or_default().to_vec();
                self.sent = upto;
                let whole = visible == Visible::Whole && !log.streamed;
                (frames, (log.status, log.headers.clone()), whole)
            }
            Source::Stored(answer) => {
                let whole = answer.frames.len() <= 1;
                (answer.frames.clone(), (answer.status, answer.headers.clone()), whole)
            }
        };
        if let Some(to) = self.head.take() {
            let driver = Driver { id: self.id, wire: self.wire.clone() };
            let (body, out) = if whole {
                (AnswerBody::whole(concat(frames), driver), None)
            } else {
                let (tx, rx) = mpsc::channel(FRAMES_AHEAD);
                (AnswerBody::frames(rx, driver), Some((tx, frames)))
            };
            let response = self.response(head.0, head.1, body);
            if to.send(response).is_err() {
                return Some(Event::ClientGone);
            }
            if let (Source::Live(live, _), false) = (&self.source, whole) {
                self.host.saw(Seen::Streaming { seq: live.seq });
            }
            let (tx, frames) = out?;
            self.out = Some(tx);
            return self.forward(frames).await;
        }
        self.forward(frames).await
    }

    async fn forward(&mut self, frames: Vec<Bytes>) -> Option<Event> {
        let out = self.out.as_ref()?;
        for frame in frames.into_iter().filter(|f| !f.is_empty()) {
            if out.send(Piece::Frame(frame)).await.is_err() {
                return Some(Event::ClientGone);
            }
        }
        None
    }

    fn response(&self, status: StatusCode, headers: HeaderMap, body: AnswerBody) -> Response<AnswerBody> {
        let mut response = Response::new(body);
        *response.status_mut() = status;
        *response.headers_mut() = headers;
        let headers = response.headers_mut();
        if let Ok(id) = HeaderValue::from_str(self.call.seat.id.as_str()) {
            headers.insert("x-outlast-run", id);
        }
        if self.replayed {
            headers.insert("x-outlast-replayed", HeaderValue::from_static("true"));
        }
        if let Some(cap) = self.cap {
            headers.insert("x-outlast-clamped", HeaderValue::from(cap));
        }
        response
    }

    fn refuse(&mut self, refused: &Refused) {
        let refusal = Refusal::of(refused, self.call.seat.id.as_str());
        self.host.saw(Seen::Refused {
            code: refusal.code.clone(),
            message: refusal.message.clone(),
            hint: refusal.hint.clone(),
        });
        let mut response = refusal.response(self.call.dialect.upstream());
        if let Ok(id) = HeaderValue::from_str(self.call.seat.id.as_str()) {
            response.headers_mut().insert("x-outlast-run", id);
        }
        if let Some(head) = self.head.take() {
            // A client that left does not need it.
            let _ = head.send(response);
        }
    }

    async fn break_off(&mut self, why: Broken) {
        if let Some(out) = self.out.take() {
            let frame = error_frame(self.call.dialect.upstream(), why.code(), &why.to_string());
            // The body breaks off behind it, because its sender is gone.
            let _ = out.send(Piece::Frame(frame)).await;
        }
    }
}

fn concat(mut frames: Vec<Bytes>) -> Bytes {
    if frames.len() == 1 {
        return frames.remove(0);
    }
    let mut all = BytesMut::with_capacity(frames.iter().map(Bytes::len).sum());
    frames.iter().for_each(|f| all.extend_from_slice(f));
    all.freeze()
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
