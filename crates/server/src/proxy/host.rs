//! What the proxy keeps in memory: the registries of the call machine, runs' bases, seats.

use std::{
    collections::{HashMap, HashSet, VecDeque},
    ops::Deref,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering},
    },
    time::Duration,
};

use bytes::Bytes;
use outlast_core::{
    body::{Base, BodyBases, BodyRecord, Restoring},
    call::{ConnectionId, Taken, Waiters, rate::Rate, taken::Place},
    clock::{Clock, Entropy},
    digest::Digest,
    id::{AttemptNo, Micros, RunId, RunNo, Seq},
    journal::Role,
    masks::Masks,
    price::PriceTable,
    run::Policy,
    status::Status,
    store::{Error, Store},
    token::TokenKey,
    unit::Limits,
};
use tokio::sync::{mpsc, watch};

use super::{
    call::{Call, Seat},
    drive::Signal,
    gates::Gates,
    kept::Kept,
    live::Live,
    metrics::Metrics,
    rates::Rates,
    rules,
    sleep::Reading,
    unrecorded::Unrecorded,
    upstream::{Pool, Providers},
    who::Access,
};
use crate::node::Node;

/// How the proxy is set up.
#[derive(Clone)]
pub struct Config {
    pub access: Access,
    pub providers: Providers,
    pub prices: PriceTable,
    pub price_hash: Arc<str>,
    /// Of runs that a header names first.
    pub default_limits: Limits,
    pub default_policy: Policy,
    pub admit_wait: Duration,
    pub settle_wait: Duration,
    pub first_byte_timeout: Duration,
    pub idle_timeout: Duration,
    /// Bytes of a request, as it came and decoded.
    pub max_body: usize,
    /// Bytes of an answer that is no stream.
    pub max_answer: usize,
    /// Bytes of answers kept in memory, in all, while they cannot be recorded.
    pub max_unrecorded: u64,
    /// After a suspend an upstream that stays silent for this long is given up.
    pub silence_after_suspend: Duration,
    /// How many calls may be on their way to one upstream at once, over all runs of this server.
    pub upstream_concurrency: Option<usize>,
    /// How many requests and tokens a minute one upstream is asked, over all runs of this server, unless it has a rate
    /// of its own.
    pub upstream_rate: Rate,
    /// How often a call is sent again at most, after its upstream refused it for the moment or was not reached, and
    /// within `admit_wait`. Not for clients that do so themselves.
    pub upstream_retries: u32,
    /// What does not count in the requests of runs that a header names first.
    pub masks: Option<Masks>,
}

/// What a supervisor may watch.
#[derive(Clone, Debug, PartialEq)]
pub enum Seen {
    Request,
    /// A new call is on its way.
    Opened {
        seq: Seq,
    },
    /// The first bytes of a stream went to a client.
    Streaming {
        seq: Seq,
    },
    Settled {
        seq: Seq,
        status: Status,
        /// With a 2xx.
        answered: bool,
    },
    /// The upstream refuses whatever is asked until then: said after its `Settled`, before the client hears.
    Limited {
        seq: Seq,
        until: Micros,
    },
    Replayed {
        seq: Seq,
    },
    Refused {
        code: String,
        message: String,
        hint: Option<String>,
    },
    Diverged {
        untaken: i64,
    },
    /// A CLI agent named its session. `agent` is what it was told to send in `X-Outlast-Agent`.
    Session {
        run: RunNo,
        attempt: AttemptNo,
        id: String,
        agent: Option<String>,
    },
}

/// Told of everything, at once and on the proxy's own threads: it must not block.
pub type Observer = Arc<dyn Fn(&Seen) + Send + Sync>;

/// The proxy under one configuration. A new one begins beside it, on the same memory: a call ends under the
/// configuration that it began with.
pub struct Host {
    pub config: Config,
    memory: Arc<Memory>,
}

impl Deref for Host {
    type Target = Memory;

    fn deref(&self) -> &Memory {
        &self.memory
    }
}

/// The proxy's memory.
pub struct Memory {
    pub store: Arc<dyn Store>,
    pub node: Arc<Node>,
    pub clock: Arc<dyn Clock>,
    pub pool: Pool,
    pub metrics: Metrics,
    pub gates: Gates,
    pub rates: Arc<Rates>,
    draining: AtomicBool,
    arriving: AtomicUsize,
    pub token_keys: Vec<TokenKey>,
    registry: Mutex<Registry>,
    runs: Mutex<HashMap<RunNo, Arc<RunMemory>>>,
    pub(super) seats: Mutex<HashMap<(RunId, Option<String>), Seat>>,
    tokens: Mutex<HashMap<(RunNo, AttemptNo), Seat>>,
    pub(super) rules: Mutex<rules::Compiled>,
    next_connection: AtomicU64,
    nonce: AtomicU64,
    /// While there are such, new calls are refused.
    pub unrecorded: Unrecorded,
    suspends: watch::Sender<u64>,
    observer: Option<Observer>,
}

/// A request that is not with its driver yet.
pub struct Arriving(Arc<Host>);

impl Drop for Arriving {
    fn drop(&mut self) {
        self.0.arriving.fetch_sub(1, Ordering::SeqCst);
    }
}

/// Under one lock, as the call machine wants it.
#[derive(Default)]
pub struct Registry {
    pub taken: Taken,
    pub waiters: Waiters,
    pub inboxes: HashMap<ConnectionId, mpsc::UnboundedSender<Signal>>,
    pub exchanges: HashMap<(RunNo, Seq), Arc<Live>>,
    /// Whose clients are gone, and whose drivers do not know it yet: they take nothing any more.
    left: HashSet<ConnectionId>,
    /// Where answers are delivered, and their drivers have not marked them yet.
    marking: HashMap<Place, Marking>,
}

#[derive(Default)]
struct Marking {
    drivers: Vec<ConnectionId>,
    /// Identical requests, which are decided behind the marks.
    waiting: Vec<ConnectionId>,
}

impl Registry {
    /// Whether one client is all there is: its thread may do the store's work itself, for nobody else's
    /// request has to wait for it, and none could share its commit.
    pub fn is_alone(&self) -> bool {
        self.inboxes.len() <= 1 && self.exchanges.len() <= 1
    }

    pub fn take(&mut self, place: Place, id: ConnectionId, seq: Seq, replays: bool) {
        if !self.left.contains(&id) {
            self.taken.take(place, id, seq, replays);
        }
    }

    /// The client of `id` is gone: what it was receiving is given back at once, and not only when its
    /// driver gets to it. A client that asks again at once finds it.
    pub fn leave(&mut self, place: Place, id: ConnectionId) {
        if let Some(inbox) = self.inboxes.get(&id) {
            // One that is over has no use for it.
            let _ = inbox.send(Signal::Gone);
            self.left.insert(id);
            self.give_back(place, id);
        }
    }

    pub fn give_back(&mut self, place: Place, id: ConnectionId) {
        self.taken.give_back(place, id);
        self.tell(self.waiters.wake_identical(place), Signal::MayRetry);
    }

    /// Everything was flushed to the client of `id`.
    pub fn delivered(&mut self, place: Place, id: ConnectionId) {
        if let Some(inbox) = self.inboxes.get(&id) {
            let _ = inbox.send(Signal::Delivered);
            self.marking.entry(place).or_default().drivers.push(id);
        }
    }

    /// Whether a request of `place` has to wait for marks: it gets `Marked` then.
    pub fn waits_for_marks(&mut self, place: Place, id: ConnectionId) -> bool {
        match self.marking.get_mut(&place) {
            Some(marking) => {
                marking.waiting.push(id);
                true
            }
            None => false,
        }
    }

    /// The driver of `id` is over.
    pub fn forget(&mut self, place: Place, id: ConnectionId) {
        self.inboxes.remove(&id);
        self.left.remove(&id);
        if let Some(marking) = self.marking.get_mut(&place) {
            marking.drivers.retain(|driver| *driver != id);
            marking.waiting.retain(|waiter| *waiter != id);
            if marking.drivers.is_empty()
                && let Some(marking) = self.marking.remove(&place)
            {
                self.tell(marking.waiting, Signal::Marked);
            }
        }
    }

    pub fn tell(&self, who: impl IntoIterator<Item = ConnectionId>, signal: Signal) {
        for id in who {
            if let Some(inbox) = self.inboxes.get(&id) {
                // One that is over has no use for it.
                let _ = inbox.send(signal);
            }
        }
    }
}

/// A run's memory in this process.
pub struct RunMemory(Mutex<Remembered>);

#[derive(Default)]
pub struct Remembered {
    pub bases: BodyBases,
    billed: VecDeque<Billed>,
    pub(super) kept: Kept,
    /// Undriven attempts: calls in flight, and up to when their time is posted.
    in_flight: HashMap<AttemptNo, (usize, u64)>,
}

/// What a call's input was billed at: in its own model's tokens.
struct Billed {
    seq: Seq,
    upstream: String,
    model: String,
    input_tokens: u64,
}

impl RunMemory {
    /// Whether more would be lost with it than can be read again.
    fn is_needed(&self) -> bool {
        self.0.try_lock().map_or(true, |m| !m.in_flight.is_empty())
    }

    pub fn lock(&self) -> MutexGuard<'_, Remembered> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Remembered {
    fn bill(&mut self, billed: Billed) {
        self.billed.push_back(billed);
        if self.billed.len() > 16 {
            self.billed.pop_front();
        }
    }

    /// The input tokens that call `seq` was billed, if this model of this upstream counted them.
    pub fn billed(&self, seq: Seq, upstream: &str, model: &str) -> Option<u64> {
        let same = |b: &&Billed| b.seq == seq && b.upstream == upstream && b.model == model;
        self.billed.iter().find(same).map(|b| b.input_tokens).filter(|n| *n > 0)
    }
}

impl Host {
    pub fn new(
        node: Arc<Node>,
        entropy: &dyn Entropy,
        config: Config,
        observer: Option<Observer>,
    ) -> Result<Arc<Host>, Error> {
        let store = node.store().clone();
        let token_keys = store.token_keys()?;
        let unrecorded = Unrecorded::new(config.max_unrecorded);
        let nonce = u64::from_le_bytes(outlast_core::clock::random(entropy));
        let memory = Memory {
            clock: node.clock().clone(),
            store,
            node,
            pool: Pool::new(),
            metrics: Metrics::default(),
            gates: Gates::default(),
            rates: Arc::default(),
            draining: AtomicBool::new(false),
            arriving: AtomicUsize::new(0),
            token_keys,
            registry: Mutex::default(),
            runs: Mutex::default(),
            seats: Mutex::default(),
            tokens: Mutex::default(),
            rules: Mutex::default(),
            next_connection: AtomicU64::new(1),
            nonce: AtomicU64::new(nonce),
            unrecorded,
            suspends: watch::Sender::default(),
            observer,
        };
        Ok(Arc::new(Host { config, memory: Arc::new(memory) }))
    }

    /// The same under another configuration. What bounds memory in all stays as it was.
    pub fn under(&self, config: Config) -> Arc<Host> {
        Arc::new(Host { config, memory: self.memory.clone() })
    }

    /// From here on nothing new is begun.
    pub fn drain(&self) {
        self.draining.store(true, Ordering::SeqCst);
    }

    pub fn is_draining(&self) -> bool {
        self.draining.load(Ordering::SeqCst)
    }

    /// A request comes in: until this is dropped it is somebody a drain waits for. Taken before the look at
    /// [`Host::is_draining`], so that whoever was not refused is seen.
    pub fn arrives(self: &Arc<Host>) -> Arriving {
        self.arriving.fetch_add(1, Ordering::SeqCst);
        Arriving(self.clone())
    }

    /// Whether nobody waits for anything any more: no request comes in, no call is on its way, and no client
    /// waits for its answer.
    pub fn is_at_rest(&self) -> bool {
        if self.arriving.load(Ordering::SeqCst) > 0 {
            return false;
        }
        let registry = self.registry();
        registry.exchanges.is_empty() && registry.inboxes.is_empty()
    }

    pub fn registry(&self) -> MutexGuard<'_, Registry> {
        self.registry.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub fn connection_id(&self) -> ConnectionId {
        ConnectionId(self.next_connection.fetch_add(1, Ordering::Relaxed))
    }

    /// A number that no other request of any process has.
    pub fn nonce(&self) -> u64 {
        self.nonce.fetch_add(1, Ordering::Relaxed)
    }

    pub fn saw(&self, seen: Seen) {
        if let Some(observer) = &self.observer {
            observer(&seen);
        }
    }

    pub fn suspends(&self) -> watch::Receiver<u64> {
        self.suspends.subscribe()
    }

    /// The machine was asleep.
    fn note_suspend(&self) {
        self.suspends.send_modify(|n| *n += 1);
    }

    /// Room may have come back: every run's first waiter decides again.
    pub fn wake(&self) {
        let registry = self.registry();
        registry.tell(registry.waiters.wake(), Signal::MayRetry);
    }

    /// Wakes waiters now and then: room can come back in another process, which tells nobody here.
    pub async fn poll_for_others(self: Arc<Self>) {
        let mut before = Reading::of(self.clock.as_ref());
        loop {
            let jitter = self.nonce().wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 57;
            tokio::time::sleep(Duration::from_millis(150 + jitter)).await;
            {
                let registry = self.registry();
                let firsts: Vec<ConnectionId> = registry.waiters.firsts().collect();
                registry.tell(firsts, Signal::MayRetry);
            }
            let now = Reading::of(self.clock.as_ref());
            if before.was_asleep_until(now) {
                self.note_suspend();
            }
            before = now;
        }
    }

    /// An exchange is settled, or will never be: connections that ask for it look at the store.
    pub fn exchange_over(&self, call: &Call, live: &Live) {
        self.call_ends(&call.seat);
        self.registry().exchanges.remove(&(call.seat.run, live.seq));
        self.wake();
    }

    /// A call of an undriven attempt goes out.
    pub fn call_begins(&self, seat: &Seat) {
        if seat.undriven {
            let now = self.clock.monotonic_ms();
            let memory = self.memory(seat.run);
            memory.lock().in_flight.entry(seat.attempt).or_insert((0, now)).0 += 1;
        }
    }

    /// It is over, or never went.
    pub fn call_ends(&self, seat: &Seat) {
        if !seat.undriven {
            return;
        }
        let memory = self.memory(seat.run);
        let mut memory = memory.lock();
        if let Some(f) = memory.in_flight.get_mut(&seat.attempt) {
            f.0 = f.0.saturating_sub(1);
            if f.0 == 0 {
                memory.in_flight.remove(&seat.attempt);
            }
        }
    }

    /// Active time of an undriven attempt since it was last posted, and takes it as posted.
    pub fn active_since(&self, seat: &Seat) -> i64 {
        if !seat.undriven {
            return 0;
        }
        let now = self.clock.monotonic_ms();
        let memory = self.memory(seat.run);
        let mut memory = memory.lock();
        let Some(f) = memory.in_flight.get_mut(&seat.attempt) else { return 0 };
        let ms = now.saturating_sub(f.1);
        f.1 = now;
        i64::try_from(ms).unwrap_or(i64::MAX)
    }

    /// Active time of an undriven attempt that is not posted yet.
    pub fn unposted_ms(&self, seat: &Seat) -> i64 {
        if !seat.undriven {
            return 0;
        }
        let now = self.clock.monotonic_ms();
        let memory = self.memory(seat.run);
        let since = memory.lock().in_flight.get(&seat.attempt).map_or(now, |f| f.1);
        i64::try_from(now.saturating_sub(since)).unwrap_or(i64::MAX)
    }

    pub fn remember_billed(&self, call: &Call, seq: Seq, input_tokens: u64) {
        let memory = self.memory(call.seat.run);
        let mut memory = memory.lock();
        let (upstream, model) = (call.upstream_name().to_owned(), call.request.model.clone());
        memory.bill(Billed { seq, upstream, model, input_tokens });
    }

    /// The run's memory; after a restart its newest stored body is the first base.
    pub fn memory(&self, run: RunNo) -> Arc<RunMemory> {
        if let Some(m) = lock(&self.runs).get(&run) {
            return m.clone();
        }
        let remembered = self.load_base(run).unwrap_or_else(|e| {
            // A base only saves space and gives a closer bound: without it everything still holds.
            tracing::warn!(run = run.0, error = %e, "the newest body cannot be read as a base");
            Remembered::default()
        });
        let mut runs = lock(&self.runs);
        if runs.len() > 1024 {
            runs.retain(|_, m| m.is_needed());
        }
        runs.entry(run).or_insert_with(|| Arc::new(RunMemory(Mutex::new(remembered)))).clone()
    }

    fn load_base(&self, run: RunNo) -> Result<Remembered, String> {
        let mut remembered = Remembered::default();
        let newest = self.store.newest_request(run).map_err(|e| e.to_string())?;
        let Some(seq) = newest else { return Ok(remembered) };
        let newest = self.stored_body(run, seq)?;
        let mut restoring = Restoring::new(&newest).map_err(|e| e.to_string())?;
        while let Some(wanted) = restoring.wants() {
            restoring.give(&self.stored_body(run, wanted)?).map_err(|e| e.to_string())?;
        }
        let body = restoring.finish().map_err(|e| e.to_string())?;
        remembered.bases.push(Base::new(seq, &newest, body.into()));
        if let Some(billed) = self.stored_bill(run, seq)? {
            remembered.bill(billed);
        }
        Ok(remembered)
    }

    fn stored_body(&self, run: RunNo, seq: Seq) -> Result<BodyRecord, String> {
        let payload = self.store.payload(run, seq, Role::Request).map_err(|e| e.to_string())?;
        let payload = payload.ok_or_else(|| format!("body {seq} is missing"))?;
        let bytes = payload.decode().map_err(|e| e.to_string())?;
        BodyRecord::from_bytes(bytes).map_err(|e| e.to_string())
    }

    fn stored_bill(&self, run: RunNo, seq: Seq) -> Result<Option<Billed>, String> {
        let entry = self.store.entry(run, seq).map_err(|e| e.to_string())?;
        Ok(entry.and_then(|e| e.call).and_then(|call| {
            let input_tokens = call.usage?.input_total();
            Some(Billed { seq, upstream: call.upstream, model: call.model, input_tokens })
        }))
    }

    /// A replayed request is a base again, as entry `seq` has it stored: with its place in that entry's
    /// chain, and with what it was billed, so that the next new call gets the bound it would have got
    /// without the restart. A repetition that differs in what the digest leaves out is none.
    pub fn recall(&self, run: RunNo, seq: Seq, body: &Bytes) {
        let memory = self.memory(run);
        let known = memory.lock().bases.get(seq).cloned();
        if let Some(base) = known {
            return memory.lock().bases.push(base);
        }
        let stored = self.stored_body(run, seq).and_then(|r| Ok((r, self.stored_bill(run, seq)?)));
        match stored {
            Ok((record, billed)) if record.sha256 == Digest::of(body).0 => {
                let mut memory = memory.lock();
                memory.bases.push(Base::new(seq, &record, body.clone()));
                if let Some(billed) = billed {
                    memory.bill(billed);
                }
            }
            Ok(_) => {}
            Err(e) => {
                tracing::warn!(run = run.0, %seq, error = %e, "a replayed body cannot be read as a base");
            }
        }
    }

    /// The seat of a run token, looked up once.
    pub(super) fn token_seat(&self, run: RunNo, attempt: AttemptNo) -> Option<Seat> {
        lock(&self.tokens).get(&(run, attempt)).cloned()
    }

    pub(super) fn keep_token_seat(&self, seat: Seat) {
        let mut tokens = lock(&self.tokens);
        // A new attempt has ended the one before it in its slot: nobody retries that one's errors.
        let ended = |s: &Seat| s.run == seat.run && s.slot == seat.slot && s.attempt < seat.attempt;
        for (_, ended) in tokens.extract_if(|_, s| ended(s)) {
            self.registry().taken.forget(ended.run, ended.attempt);
        }
        if tokens.len() > 4096 {
            tokens.clear();
        }
        tokens.insert((seat.run, seat.attempt), seat);
    }
}

pub(super) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
