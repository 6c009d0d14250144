//! Driver of one client's request: carries out what the desk decides for it, and reports the results.

mod reply;

use std::{sync::Arc, time::Duration};

use http::Response;
use outlast_core::{
    call::{
        Broken, ConnectionId, Refused, RequestKey,
        connection::Event,
        desk::{self, Admitting, ForClient},
        plan::Verdict,
        rates::{Later, Why},
    },
    engine::{self, Actor, Admission, Admit, Delivered, GiveBack, Halt, Received, Receiver, StorePart},
    envelope,
    journal::{Opening, Payload, Role, State, payload::PART_LEN},
    store::{Ask as _, Durability, Error, News, Pending},
    words::{InstanceNo, Seq},
};
use tokio::{
    sync::oneshot,
    time::{Instant, sleep_until},
};
use tracing::{Instrument as _, Span, debug_span, field};

use self::reply::{Reply, Source};
use super::{
    busy_waiting,
    call::{Call, Judged},
    config::Seen,
    host::Host,
    live::{self, Errand},
    log::{Inbox, Live},
    or_never,
    plans::{self, Ticket},
    record::Answer,
    registry::{Registry, Task},
};
use crate::{
    hints::Ear,
    wire::{
        body::AnswerBody,
        refuse::Refusal,
        socket::{Client, Wire},
    },
};

/// Longest pause before a call that waits for its upstream's rate asks for admission again.
const ASK_AGAIN: Duration = Duration::from_secs(1);

/// Pause before a call that waits for other calls' answers about the plan asks again, in milliseconds.
const PLAN_AGAIN_MS: u64 = 250;

/// Starts the driver of a request. The receiver gets the response: its head, and a body that streams.
pub fn start(host: Arc<Host>, mut call: Call, wire: Wire) -> (oneshot::Receiver<Response<AnswerBody>>, Gone) {
    let (head, response) = oneshot::channel();
    let registry = host.registry.clone();
    let place = RequestKey { run: call.seat.run, attempt: call.seat.attempt, key: call.match_key };
    let (id, inbox) = registry.arrives(desk::Request {
        place,
        retry_count: call.retry_count,
        has_idempotency_key: call.idempotency_key.is_some(),
        patience: live::patience(&host.config, &call, || host.nonce()),
        wants: Arc::new(call.wants(&host.config)),
    });
    wire.answering(Client { registry: registry.clone(), id });
    let drive = Drive {
        reply: Reply::new(id, wire, head, host.watch.clone(), call.seat.clone()),
        host,
        id,
        inbox,
        request: call.payload.take(),
        call: Arc::new(call),
        admission: None,
        wait_over: None,
        joined: None,
        later: None,
        ticket: None,
        closed: None,
    };
    let (run, attempt) = (drive.call.seat.run.0, drive.call.seat.attempt.0);
    let span = debug_span!("call", run, attempt, seq = field::Empty, phase = field::Empty);
    tokio::spawn(drive.run().instrument(span));
    (response, Gone { client: Some((registry, id)) })
}

/// Guard that reports, when dropped, that the client left before it took the response.
pub struct Gone {
    client: Option<(Arc<Registry>, ConnectionId)>,
}

impl Gone {
    /// Disarms the guard, because the client took the response: from here on the response's body reports a lost client.
    pub fn disarm(mut self) {
        self.client = None;
    }
}

impl Drop for Gone {
    fn drop(&mut self) {
        if let Some((registry, id)) = self.client.take() {
            registry.client(id, Event::ClientGone);
        }
    }
}

struct Drive {
    host: Arc<Host>,
    id: ConnectionId,
    inbox: Arc<Inbox<Task>>,
    call: Arc<Call>,
    reply: Reply,
    /// Admission that the store is deciding now; `None` if there is none.
    admission: Option<PendingAdmission>,
    /// Request body as the journal stores it, until it is stored; `None` after that, and if it is not stored.
    request: Option<Payload>,
    wait_over: Option<Instant>,
    /// Call of another process whose answer this request waits for; `None` if there is none.
    joined: Option<Joined>,
    /// Time at which the call asks again for its turn, and the reason why it waits; `None` while it does not
    /// wait for its upstream's rate.
    later: Option<(Instant, Later)>,
    /// Ticket of the call in the plan of its login, held while the admission is decided; `None` otherwise.
    ticket: Option<Ticket>,
    /// Verdict that keeps this call, and every later one, from being sent: a ceiling on the plan is reached, or the
    /// plan's use is not reported. `None` otherwise.
    closed: Option<Verdict>,
}

/// Admission that was submitted to the store.
struct PendingAdmission {
    as_whom: InstanceNo,
    began: Instant,
    pending: Pending<Admit>,
}

/// Call in flight at another process.
struct Joined {
    seq: Seq,
    ear: Ear,
    /// Pause before the next look at it; `None` while a look is decided on.
    next: Option<Duration>,
}

impl Drive {
    async fn run(mut self) {
        loop {
            while let Some(task) = self.inbox.pop() {
                if task.deed == ForClient::Over {
                    return self.host.registry.leaves(self.id);
                }
                if let Some(phase) = task.deed.phase() {
                    Span::current().record("phase", phase);
                }
                self.act(task).await;
            }
            self.next().await;
        }
    }

    /// Waits until the inbox has a task, and reports other events to the desk meanwhile.
    async fn next(&mut self) {
        tokio::select! {
            // The inbox comes first: when the client left before its call went out, the call need not be sent.
            biased;
            () = self.inbox.filled() => {}
            admitted = or_never(self.admission.as_mut().map(|a| &mut a.pending)) => self.admitted(admitted).await,
            () = or_never(self.wait_over.map(sleep_until)) => {
                self.wait_over = None;
                self.report(Event::WaitOver);
            }
            () = or_never(self.later.as_ref().map(|l| sleep_until(l.0))) => {
                self.later.iter_mut().for_each(|l| l.0 += ASK_AGAIN);
                self.report(Event::MayRetry);
            }
            seq = due(&mut self.joined) => {
                self.joined.iter_mut().for_each(|joined| joined.next = None);
                let polled = self.poll(seq);
                self.report(Event::Polled(polled));
            }
        }
    }

    fn report(&self, event: Event) {
        self.host.registry.client(self.id, event);
    }

    async fn act(&mut self, Task { deed, live }: Task) {
        match deed {
            ForClient::Admit(admitting) => self.ask(admitting).await,
            ForClient::Wait => {
                let is_held = self.later.as_ref().is_some_and(|(_, later)| later.is_outage());
                let wait = Duration::from_millis(self.call.hold_ms);
                let wait = match &self.closed {
                    Some(_) => Duration::ZERO,
                    None if is_held => wait,
                    None => self.host.config.admit_wait,
                };
                self.wait_over = Some(Instant::now() + wait);
            }
            ForClient::WaitNoMore => self.wait_over = None,
            ForClient::Open { opening, cap } => {
                Span::current().record("seq", opening.seq.0);
                self.keep_request(opening);
                self.carry(live.as_ref(), Errand::Send { cap });
                self.reply.source = live.map_or(Source::Nothing, Source::Live);
            }
            ForClient::Drop(_) => self.carry(live.as_ref(), Errand::Settle),
            ForClient::Attach(_) => {
                self.reply.replayed = true;
                self.reply.source = live.map_or(Source::Nothing, Source::Live);
            }
            ForClient::Poll(seq) => {
                let pause = Duration::from_millis(50 + self.host.nonce() % 50);
                match &mut self.joined {
                    Some(joined) if joined.seq == seq => joined.next = Some(pause),
                    // The first look comes at once: the call may have ended before anybody here listened.
                    _ => {
                        let ear = self.host.node.hints().ear(News::JOINED);
                        self.joined = Some(Joined { seq, ear, next: Some(Duration::ZERO) });
                    }
                }
            }
            ForClient::Load(seq) => {
                let loaded = self.load(seq).map(|answer| self.reply.source = Source::Stored(answer));
                self.report(Event::Loaded(loaded));
            }
            ForClient::Send(visible) => {
                if self.reply.send(visible).await.is_err() {
                    self.report(Event::ClientGone);
                }
            }
            ForClient::Finish => self.reply.finish().await,
            ForClient::Refuse(refused) => self.refuse(&refused).await,
            ForClient::BreakOff(why) => self.reply.break_off(why, &self.call).await,
            ForClient::GiveBack(seq) => {
                let (run, attempt) = (self.call.seat.run, self.call.seat.attempt);
                let give_back = GiveBack(Received { run, seq, attempt, connection: self.id.0 });
                drop(self.host.store.submit(give_back.into(), Durability::Committed));
            }
            ForClient::Mark { seq, count, replayed } => self.mark(seq, count, replayed),
            ForClient::Over => {}
        }
    }

    /// Asks the login's plan, and then submits the admission. A call that the plan holds back is submitted as
    /// waiting behind others: a recorded answer may serve it.
    async fn ask(&mut self, mut admitting: Admitting) {
        self.closed = None;
        if !admitting.behind {
            let (verdict, ticket) = match plans::enter(&self.host, &self.call, admitting.instance).await {
                Ok(entered) => entered,
                Err(e) => return self.report(Event::Admitted(Err(e))),
            };
            self.ticket = ticket;
            match verdict {
                Verdict::Go => {}
                Verdict::Wait => admitting.later = Some(Later { after_ms: PLAN_AGAIN_MS, why: Why::Plan }),
                closed => self.closed = Some(closed),
            }
            admitting.behind = self.closed.is_some() || admitting.later.is_some();
        }
        self.admit(admitting);
    }

    fn admit(&mut self, admitting: Admitting) {
        let (call, seat) = (&self.call, &self.call.seat);
        // `ASK_AGAIN` at the latest: other calls may give unused capacity back before `after_ms` is over.
        self.later = admitting.later.map(|later| {
            let after = Duration::from_millis(later.after_ms).min(ASK_AGAIN);
            (Instant::now() + after, later)
        });
        let as_whom = admitting.instance;
        let admit = Admit {
            actor: Actor { run: seat.run, attempt: seat.attempt, instance: as_whom },
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
            unknown_fee: call.priced.unknown_fee(),
            caller: call.caller.clone(),
            usual_cap: self.usual_cap(),
            taken: admitting.taken,
            connection: self.id.0,
            retry_count: call.retry_count,
            answered_with_error: admitting.answered_with_error,
            behind: admitting.behind,
            active_ms: self.host.memories.unposted_ms(seat),
            waits: call.judged.as_ref().map_or(0, Judged::waits),
            request: self.request.clone().filter(|body| body.bytes.len() <= PART_LEN),
        };
        let began = Instant::now();
        let pending = match self.host.registry.is_alone() {
            true => self.host.store.ask_here(admit, Durability::Synced),
            false => self.host.store.ask(admit, Durability::Synced),
        };
        self.admission = Some(PendingAdmission { as_whom, began, pending });
    }

    /// Returns the usual cap of the run's answers, for a request that names none. What a request names is its client's choice.
    fn usual_cap(&self) -> Option<u64> {
        let call = &self.call;
        let unnamed = call.request.cap.is_none();
        let memory = unnamed.then(|| self.host.memories.of(call.seat.run))?;
        memory.lock().usual(call.upstream_name(), &call.request.model)
    }

    async fn admitted(&mut self, result: Result<Admission, Error>) {
        let Some(PendingAdmission { as_whom, began, .. }) = self.admission.take() else { return };
        self.host.metrics.committed(began.elapsed());
        match (self.ticket.take(), &result) {
            (Some(ticket), Ok(Admission::Go { opening, .. })) => {
                self.host.plans.opened((self.call.seat.run, opening.seq), ticket);
            }
            (Some(ticket), _) => ticket.over(&self.host, true),
            (None, _) => {}
        }
        match result {
            // It may wait already, for what calls in flight tell: now there is nothing to wait for.
            Ok(Admission::Wait { .. }) if self.closed.is_some() => self.wait_over = Some(Instant::now()),
            Ok(Admission::Wait { .. }) => {}
            _ => self.later = None,
        }
        match &result {
            Ok(Admission::Go { opening, diverged, .. }) => {
                let seq = opening.seq;
                self.host.saw(Seen::Opened { seq });
                if let Some(d) = diverged {
                    self.host.saw(Seen::Diverged { untaken: d.untaken });
                }
                if let Some(base) = self.call.base(seq) {
                    self.host.memories.of(self.call.seat.run).lock().bases.push(base);
                }
                self.host.memories.call_begins(&self.call.seat);
                busy_waiting::left(&self.host, &self.call, seq);
            }
            Ok(Admission::Replay { seq }) => {
                self.reply.replayed = true;
                if self.call.chain.is_some() {
                    self.host.memories.recall(self.call.seat.run, *seq, &self.call.body);
                }
            }
            // The process was stopped for longer than its lease, or a commit of it is in doubt: it goes on under a new
            // instance number.
            Err(e @ (Error::Engine(engine::Error::InstanceDead) | Error::CommitUnknown { .. })) => {
                if let Err(e) = self.host.node.goes_on_after(e, as_whom).await {
                    tracing::error!(error = %e, "cannot register anew");
                }
            }
            _ => {}
        }
        self.report(Event::Admitted(result));
    }

    /// Starts the task that carries the call's exchange. A task of its own, because the answer outlives the client.
    fn carry(&self, live: Option<&Arc<Live>>, errand: Errand) {
        if let Some(live) = live {
            let carried = live::carry(self.host.clone(), live.clone(), self.call.clone(), errand);
            tokio::spawn(carried.instrument(debug_span!("exchange")));
        }
    }

    /// Stores a request body that is too long for its admission's commit.
    ///
    /// Nothing waits for it: the body serves as a base for later bodies, whose admissions come after it in the store's
    /// order.
    fn keep_request(&mut self, opening: Opening) {
        let Some(body) = self.request.take().filter(|body| body.bytes.len() > PART_LEN) else { return };
        for part in body.into_parts() {
            drop(
                self.host.store.ask(StorePart { opening, role: Role::Request, part }, Durability::Committed),
            );
        }
    }

    fn poll(&self, seq: Seq) -> Result<State, Error> {
        let entry = self.host.store.entry(self.call.seat.run, seq)?;
        let entry = entry.ok_or_else(|| Error::Corrupt { what: format!("entry {seq} is gone") })?;
        Ok(entry.state)
    }

    /// Reads the stored answer of an entry. Reads in place: for a point read of a hot page a thread hop costs more.
    fn load(&mut self, seq: Seq) -> Result<Answer, Error> {
        self.reply.replayed = true;
        let answer = Answer::of(&*self.host.store, self.call.seat.run, seq)?;
        answer.ok_or_else(|| Error::Corrupt { what: format!("the answer of entry {seq} is missing") })
    }

    async fn refuse(&mut self, refused: &Refused) {
        let run = self.call.seat.id.to_string();
        let closed = self.closed.take().filter(|_| matches!(refused, Refused::AdmissionTimeout(_)));
        if let Some(refusal) = self.closed_by(closed).await {
            return self.refuse_by(refusal);
        }
        let refusal = match (refused, &self.later) {
            (Refused::AdmissionTimeout(_), Some((_, later))) if later.is_outage() => {
                Refusal::of(Broken::Outage.into(), &run)
            }
            (Refused::AdmissionTimeout(_), Some((_, later))) => Refusal::UpstreamRate {
                upstream: self.call.upstream_name().to_string(),
                waited_s: self.host.config.admit_wait.as_secs_f64().to_string(),
                why: later.why.to_string(),
                retry_after_s: u32::try_from(later.after_ms / 1_000 + 1).ok(),
            },
            _ => Refusal::of(refused.clone(), &run),
        };
        self.refuse_by(refusal);
    }

    /// Returns the refusal of a call that a ceiling on its login's plan holds back, and reports it to the
    /// run's supervisor.
    async fn closed_by(&mut self, closed: Option<Verdict>) -> Option<Refusal> {
        let run = self.call.seat.id.to_string();
        let now = self.host.clock.now();
        match closed? {
            Verdict::Rest(reached) => {
                let (until, why) = (reached.until, Box::new(envelope::Refusal::plan(reached, now)));
                self.host.saw(Seen::Rests { until, why: why.clone() });
                let wait_s = until.ms_since(self.host.clock.now()).max(0) / 1000 + 1;
                let retry_after_s = u32::try_from(wait_s).unwrap_or(u32::MAX);
                Some(Refusal::PlanCeiling { refusal: why, run, until, retry_after_s })
            }
            Verdict::Untold => {
                let refusal = envelope::Refusal::plain("plan_untold", now);
                let halt = Halt { run: self.call.seat.run, refusal: refusal.clone() };
                Some(match self.host.store.ask(halt, Durability::Synced).await {
                    Ok(_) => Refusal::of(Refused::Budget(refusal), &run),
                    Err(e) => e.into(),
                })
            }
            Verdict::Go | Verdict::Wait => None,
        }
    }

    fn refuse_by(&mut self, refusal: Refusal) {
        self.host.metrics.refused(refusal.code());
        self.host.saw_refused(&refusal);
        self.reply.refuse(refusal.response(self.call.to.shape()));
    }

    fn mark(&self, seq: Seq, count: u32, replayed: bool) {
        let seat = &self.call.seat;
        let receiver = Receiver::Connection(self.id.0);
        let mark = Delivered { run: seat.run, seq, attempt: seat.attempt, receiver, count, replayed };
        let (marked, run) = (self.host.store.submit(mark.into(), Durability::Lazy), seat.id.clone());
        tokio::spawn(async move {
            if let Err(e) = marked.await {
                tracing::warn!(%run, %seq, "that an answer was received is not recorded, and it may be given again: {e}");
            }
        });
        self.host.registry.on(desk::Event::Marked(self.id));
        if !replayed {
            return;
        }
        self.host.saw(Seen::Replayed { seq });
        // A read error only makes the counter of saved cost too low, so it is not reported here.
        let entry = self.host.store.entry(seat.run, seq).ok().flatten();
        let saved = entry.map_or(0, |e| e.spent.cost());
        self.host.metrics.replayed(saved);
        tracing::info!(
            run = %seat.id, seq = %seq, caller = self.call.caller.as_deref(), upstream = self.call.upstream_name(),
            model = %self.call.request.model, saved_nano_usd = saved, "replayed"
        );
    }
}

/// Waits until the joined call is to be looked at.
async fn due(joined: &mut Option<Joined>) -> Seq {
    match joined {
        Some(Joined { seq, ear, next: Some(pause) }) => {
            if !pause.is_zero() {
                let _ = ear.pause(*pause).await;
            }
            *seq
        }
        _ => std::future::pending().await,
    }
}
