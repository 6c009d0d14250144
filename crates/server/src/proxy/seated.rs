//! Seats: for whom requests are made. Found once for a header's name or a token, and kept.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use outlast_core::{
    run::{Record, masks::Rules},
    words::id::{AttemptNo, RunId, RunNo, Seq, Slot},
};

/// Beyond so many seats of a kind those in memory are found anew.
const MANY: usize = 4096;

/// For whom the request is made.
#[derive(Clone, Debug)]
pub struct Seat {
    pub run: RunNo,
    pub id: RunId,
    pub attempt: AttemptNo,
    pub slot: Slot,
    pub scope: Arc<str>,
    /// The open item or step it is made in.
    pub within: Option<Seq>,
    pub record: Record,
    /// What does not count in its run's requests.
    pub rules: Arc<Rules>,
    /// A header attempt: it has no driver, and counts active time only while a call is in flight.
    pub undriven: bool,
    /// The shared run of the day: nothing is replayed or joined.
    pub shared: bool,
}

/// A header's name for an attempt: its run, and its label.
pub type Name = (RunId, Option<String>);

/// The seats of one process.
#[derive(Default)]
pub struct Seats {
    by_name: Mutex<HashMap<Name, Seat>>,
    by_token: Mutex<HashMap<(RunNo, AttemptNo), Seat>>,
}

impl Seats {
    pub fn of_name(&self, name: &Name) -> Option<Seat> {
        lock(&self.by_name).get(name).cloned()
    }

    pub fn of_token(&self, run: RunNo, attempt: AttemptNo) -> Option<Seat> {
        lock(&self.by_token).get(&(run, attempt)).cloned()
    }

    /// Keeps the seat of a name. Returns those of the attempts that it ended.
    pub fn keep_name(&self, name: Name, seat: Seat) -> Vec<Seat> {
        keep(&mut lock(&self.by_name), name, seat)
    }

    /// Keeps the seat of a token. Returns those of the attempts that it ended.
    pub fn keep_token(&self, seat: Seat) -> Vec<Seat> {
        keep(&mut lock(&self.by_token), (seat.run, seat.attempt), seat)
    }

    pub fn forget(&self, name: &Name) {
        lock(&self.by_name).remove(name);
    }

    /// Forgets all named seats of a run, and returns them.
    pub fn forget_run(&self, run: RunNo) -> Vec<Seat> {
        lock(&self.by_name).extract_if(|_, seat| seat.run == run).map(|(_, seat)| seat).collect()
    }
}

/// A new attempt has ended the one before it in its slot.
fn keep<K: Eq + std::hash::Hash>(seats: &mut HashMap<K, Seat>, key: K, seat: Seat) -> Vec<Seat> {
    let ended = |s: &Seat| s.run == seat.run && s.slot == seat.slot && s.attempt < seat.attempt;
    let all_ended = seats.extract_if(|_, s| ended(s)).map(|(_, s)| s).collect();
    if seats.len() > MANY {
        seats.clear();
    }
    seats.insert(key, seat);
    all_ended
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
