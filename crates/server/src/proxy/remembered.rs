//! Memory of a process about its runs: bases of bodies, billed tokens, ids of kept answers, time in flight.

use std::{
    collections::{BTreeSet, HashMap, HashSet, VecDeque},
    sync::Arc,
};

use bytes::Bytes;
use outlast_core::{
    body::{Base, BodyBases, BodyRecord},
    call::busy_waiting::Conversations,
    journal::Role,
    price::Usual,
    reads::entries::{damaged, request_record, restored},
    store::{Error, Store},
    words::{AttemptNo, Clock, Digest, Map, RunNo, Seq, Usage},
};
use parking_lot::Mutex;

use super::seat::Seat;

/// Most models of a run whose usual output is remembered.
const MOST_MODELS: usize = 64;

/// Memory of one run in this process: bases of bodies, billed tokens, ids of stored answers, time in flight.
pub type RunMemory = Mutex<Remembered>;

#[derive(Default)]
pub struct Remembered {
    pub bases: BodyBases,
    billed: VecDeque<Billed>,
    /// Usual length of each model's answers, by upstream and model name.
    usual: HashMap<(String, String), Usual>,
    pub kept: Kept,
    pub conversations: Conversations,
    /// Newest attempt, and the number of its calls that were settled.
    pub first_calls: (Option<AttemptNo>, u32),
    /// By undriven attempt: calls in flight, and the monotonic time in ms up to which active time is posted.
    in_flight: Map<AttemptNo, (usize, u64)>,
}

/// Tokens that one call was billed, as its model counts them.
struct Billed {
    seq: Seq,
    upstream: String,
    model: String,
    input: u64,
    output: u64,
}

impl Billed {
    fn new(seq: Seq, upstream: String, model: String, usage: &Usage) -> Billed {
        Billed { seq, upstream, model, input: usage.input_total(), output: usage.output }
    }
}

/// Returns whether the memory holds more than the store can restore: active time of calls in flight.
fn is_needed(memory: &RunMemory) -> bool {
    memory.try_lock().is_none_or(|m| !m.in_flight.is_empty())
}

impl Remembered {
    fn bill(&mut self, billed: Billed) {
        let model = (billed.upstream.clone(), billed.model.clone());
        // A client may name any number of models.
        if self.usual.len() < MOST_MODELS || self.usual.contains_key(&model) {
            self.usual.entry(model).or_default().saw(billed.output);
        }
        self.billed.push_back(billed);
        if self.billed.len() > 16 {
            self.billed.pop_front();
        }
    }

    /// Returns the usual output cap for a model's answers, in tokens; `None` if too few of them are known.
    pub fn usual(&self, upstream: &str, model: &str) -> Option<u64> {
        self.usual.get(&(upstream.to_owned(), model.to_owned()))?.cap()
    }

    /// Returns the input tokens that call `seq` was billed; `None` if another model or upstream counted them, or they
    /// are not known.
    pub fn billed(&self, seq: Seq, upstream: &str, model: &str) -> Option<u64> {
        let same = |b: &&Billed| b.seq == seq && b.upstream == upstream && b.model == model;
        self.billed.iter().find(same).map(|b| b.input).filter(|n| *n > 0)
    }
}

/// Ids of answers stored at the upstream that a run's journal is known to hold.
#[derive(Default)]
pub struct Kept {
    ids: HashSet<String>,
    /// Range of entries that were searched for ids: after the first, up to and including the second. A further search
    /// begins at one of its ends, so it has no gaps. `None`: none were searched.
    pub read: Option<(Seq, Seq)>,
    /// Calls that were in flight when they were searched for ids, and must be searched again.
    pub open: BTreeSet<Seq>,
}

impl Kept {
    pub fn add(&mut self, ids: &[String]) {
        self.ids.extend(ids.iter().cloned());
    }

    pub fn lacks<'i>(&self, ids: &'i [String]) -> Option<&'i String> {
        ids.iter().find(|id| !self.ids.contains(*id))
    }

    pub fn note(&mut self, seq: Seq, told: AnswerIds) {
        self.open.remove(&seq);
        match told {
            AnswerIds::Ids(ids) => self.ids.extend(ids),
            AnswerIds::NotYet => drop(self.open.insert(seq)),
        }
    }

    pub fn has_read(&mut self, above: Seq, upto: Seq) {
        let (low, high) = self.read.unwrap_or((above, upto));
        self.read = Some((low.min(above), high.max(upto)));
    }
}

/// Ids of stored answers that one journal entry holds.
pub enum AnswerIds {
    Ids(Vec<String>),
    /// The call is in flight, so its ids are not known yet.
    NotYet,
}

/// Memories of this process about all runs, one for each.
pub struct Memories {
    store: Arc<dyn Store>,
    clock: Arc<dyn Clock>,
    runs: Mutex<Map<RunNo, Arc<RunMemory>>>,
}

impl Memories {
    pub fn new(store: Arc<dyn Store>, clock: Arc<dyn Clock>) -> Memories {
        Memories { store, clock, runs: Mutex::default() }
    }

    /// Counts a call of an attempt that no supervisor drives as in flight. Does nothing for other attempts.
    pub fn call_begins(&self, seat: &Seat) {
        if seat.undriven {
            let now = self.clock.monotonic_ms();
            let memory = self.of(seat.run);
            memory.lock().in_flight.entry(seat.attempt).or_insert((0, now)).0 += 1;
        }
    }

    /// Counts a call of an attempt that no supervisor drives as over. Does nothing for other attempts.
    pub fn call_ends(&self, seat: &Seat) {
        if !seat.undriven {
            return;
        }
        let memory = self.of(seat.run);
        let mut memory = memory.lock();
        if let Some(f) = memory.in_flight.get_mut(&seat.attempt) {
            f.0 = f.0.saturating_sub(1);
            if f.0 == 0 {
                memory.in_flight.remove(&seat.attempt);
            }
        }
    }

    /// Returns the active time of an attempt that no supervisor drives, in milliseconds, as far as it is not posted
    /// yet, and marks it as posted. 0 for other attempts.
    pub fn active_since(&self, seat: &Seat) -> i64 {
        self.unposted(seat, true)
    }

    /// Returns the active time of an attempt that no supervisor drives, in milliseconds, as far as it is not posted
    /// yet. 0 for other attempts.
    pub fn unposted_ms(&self, seat: &Seat) -> i64 {
        self.unposted(seat, false)
    }

    fn unposted(&self, seat: &Seat, is_posted: bool) -> i64 {
        if !seat.undriven {
            return 0;
        }
        let now = self.clock.monotonic_ms();
        let memory = self.of(seat.run);
        let mut memory = memory.lock();
        let Some((_, since)) = memory.in_flight.get_mut(&seat.attempt) else { return 0 };
        let ms = now.saturating_sub(*since);
        if is_posted {
            *since = now;
        }
        i64::try_from(ms).unwrap_or(i64::MAX)
    }

    /// Records the usage for which a call to a model of an upstream was billed.
    pub fn bill(&self, run: RunNo, seq: Seq, upstream: &str, model: &str, usage: &Usage) {
        self.of(run).lock().bill(Billed::new(seq, upstream.to_owned(), model.to_owned(), usage));
    }

    /// Returns the run's memory. After a restart, the newest stored body is its first base.
    pub fn of(&self, run: RunNo) -> Arc<RunMemory> {
        if let Some(m) = self.runs.lock().get(&run) {
            return m.clone();
        }
        let remembered = self.load_base(run).unwrap_or_else(|e| {
            // A base only saves space and gives a closer bound: nothing is wrong without it.
            tracing::warn!(run = run.0, error = %e, "the newest body cannot be read as a base");
            Remembered::default()
        });
        let mut runs = self.runs.lock();
        if runs.len() > 1024 {
            runs.retain(|_, m| is_needed(m));
        }
        runs.entry(run).or_insert_with(|| Arc::new(Mutex::new(remembered))).clone()
    }

    fn load_base(&self, run: RunNo) -> Result<Remembered, Error> {
        let mut remembered = Remembered::default();
        let Some(seq) = self.store.newest_request(run)? else { return Ok(remembered) };
        let newest = self.stored_body(run, seq)?;
        let body = restored(&*self.store, run, seq, &newest)?;
        remembered.bases.push(Base::new(seq, &newest, body.into()));
        if let Some(billed) = self.stored_bill(run, seq)? {
            remembered.bill(billed);
        }
        Ok(remembered)
    }

    fn stored_body(&self, run: RunNo, seq: Seq) -> Result<BodyRecord, Error> {
        let record = request_record(&*self.store, run, seq)?;
        record.ok_or_else(|| damaged(seq, Role::Request, &"it is missing"))
    }

    fn stored_bill(&self, run: RunNo, seq: Seq) -> Result<Option<Billed>, Error> {
        let entry = self.store.entry(run, seq)?;
        Ok(entry
            .and_then(|e| e.call)
            .and_then(|call| Some(Billed::new(seq, call.upstream, call.model, &call.usage?))))
    }

    /// Makes a replayed request a base again, as entry `seq` stores it, with its billed input. The next new call then
    /// gets the bound that it would have got without the restart.
    ///
    /// A body that differs from the stored one, in parts that the digest leaves out, does not become a base.
    pub fn recall(&self, run: RunNo, seq: Seq, body: &Bytes) {
        let memory = self.of(run);
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
}
