//! Seats: the run, attempt and scope that a request belongs to. Looked up once per run header or token, and cached.
//!
//! Compiled masks, under which the requests of a run are compared. A run keeps the masks that it was created with.

use std::{
    collections::{BTreeMap, HashMap},
    sync::Arc,
};

use outlast_core::{
    envelope::Ceilings,
    reads,
    run::{Masks, NoProgress, Record, Unpriced, masks::Rules},
    store::{Error, RunView, Store},
    words::{AttemptNo, RunId, RunNo, Seq, Slot},
};
use parking_lot::Mutex;

/// Number of cached seats, by name or by token, above which that cache is emptied.
const MANY: usize = 4096;

/// Run, attempt and scope that a request belongs to.
#[derive(Clone, Debug)]
pub struct Seat {
    pub run: RunNo,
    pub id: RunId,
    pub attempt: AttemptNo,
    pub slot: Slot,
    pub scope: Arc<str>,
    /// Open item or step inside which the request is made; `None`: outside of both.
    pub within: Option<Seq>,
    pub record: Record,
    /// Masks of the run: parts of a request that do not count when requests are compared.
    pub rules: Arc<Rules>,
    /// Ceilings on the plan of the calls' login: the run's own and those of its ancestors.
    pub plan: Arc<Ceilings>,
    /// Policy for busy waiting, the strictest of the run and those above.
    pub no_progress: NoProgress,
    /// Rule of the run for models without a known price.
    pub unpriced: Unpriced,
    /// Whether a header opened the attempt. It has no driver, and counts active time only while a call is in flight.
    pub undriven: bool,
    /// Whether a login's subscription pays for the calls: their cost is a list price.
    pub is_listed: bool,
    /// Tags of the run.
    pub tags: Arc<BTreeMap<String, String>>,
    /// Whether the run is the shared one of the day, for requests that name no run. It has no replay and no join.
    pub shared: bool,
}

/// Name of an attempt in headers: the run's id, and the attempt's label if there is one.
pub type Name = (RunId, Option<String>);

/// Cache of the seats of one process.
#[derive(Default)]
pub struct Seats {
    by_name: Mutex<HashMap<Name, Seat>>,
    by_token: Mutex<HashMap<(RunNo, AttemptNo), Seat>>,
}

impl Seats {
    pub fn of_name(&self, name: &Name) -> Option<Seat> {
        self.by_name.lock().get(name).cloned()
    }

    pub fn of_token(&self, run: RunNo, attempt: AttemptNo) -> Option<Seat> {
        self.by_token.lock().get(&(run, attempt)).cloned()
    }

    /// Stores the seat of a name. Removes and returns the seats of earlier attempts that it has ended.
    pub fn keep_name(&self, name: Name, seat: Seat) -> Vec<Seat> {
        keep(&mut self.by_name.lock(), name, seat)
    }

    /// Stores the seat of a token. Removes and returns the seats of earlier attempts that it has ended.
    pub fn keep_token(&self, seat: Seat) -> Vec<Seat> {
        keep(&mut self.by_token.lock(), (seat.run, seat.attempt), seat)
    }

    pub fn forget(&self, name: &Name) {
        self.by_name.lock().remove(name);
    }

    /// Removes the seats of a run that was named by headers, and returns them.
    pub fn forget_run(&self, run: RunNo) -> Vec<Seat> {
        self.by_name.lock().extract_if(|_, seat| seat.run == run).map(|(_, seat)| seat).collect()
    }
}

/// Inserts `seat`, and removes the seats of earlier attempts in its slot, which the new attempt has ended.
/// Returns those.
fn keep<K: Eq + std::hash::Hash>(seats: &mut HashMap<K, Seat>, key: K, seat: Seat) -> Vec<Seat> {
    let ended = |s: &Seat| s.run == seat.run && s.slot == seat.slot && s.attempt < seat.attempt;
    let all_ended = seats.extract_if(|_, s| ended(s)).map(|(_, s)| s).collect();
    if seats.len() > MANY {
        seats.clear();
    }
    seats.insert(key, seat);
    all_ended
}

/// Number of cached sets of masks at which the cache is emptied.
const MANY_RULES: usize = 64;

/// Cache of compiled masks, shared by all runs with the same masks.
#[derive(Default)]
pub struct Compiled(Mutex<BTreeMap<Masks, Arc<Rules>>>);

impl Compiled {
    /// Returns the masks of the run, compiled. Errors: the store's; masks that cannot be compiled.
    pub fn of(&self, store: &dyn Store, view: &RunView) -> Result<Arc<Rules>, Error> {
        let masks = reads::runs::masks(store, view)?;
        if let Some(rules) = self.0.lock().get(&masks) {
            return Ok(rules.clone());
        }
        let rules = Arc::new(masks.compile()?);
        let mut all = self.0.lock();
        if all.len() >= MANY_RULES {
            all.clear();
        }
        all.insert(masks, rules.clone());
        Ok(rules)
    }
}
