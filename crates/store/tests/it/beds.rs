//! More beds: a PostgreSQL database, and one handle of any store; and how tests open a store.

use std::{path::Path, sync::Arc, time::Duration};

use outlast_core::{
    reads::forked::Forked,
    store::{Error, Store},
    words::clock::{Clock, ManualClock, SeededEntropy},
};
use outlast_store::{Durability, Options, STORE_WAIT, open, postgres::PostgresStore};

use crate::{
    bed::{BEGINNING, Bed},
    private_postgres::Database,
};

/// Opens the store, durably, under a clock that stands still.
pub fn open_at(place: &str, create: bool) -> Result<Arc<dyn Store>, Error> {
    open(place, options(Arc::new(ManualClock::new(BEGINNING)), create))
}

/// Opens the store as [`open_at`] does, under a clock that the test moves.
pub fn open_by(clock: Arc<ManualClock>, place: &str) -> Arc<dyn Store> {
    open(place, options(clock, true)).unwrap()
}

/// Opens the store as [`open_at`] does. Operations wait so long for a database that is away.
pub fn open_waiting(place: &str, store_wait: Duration) -> Arc<dyn Store> {
    let options = options(Arc::new(ManualClock::new(BEGINNING)), true);
    open(place, Options { store_wait, ..options }).unwrap()
}

/// Opens the store, which has a key of its own for each `seed` if it is made.
pub fn open_of(place: &str, seed: u64) -> Arc<dyn Store> {
    let options = options(Arc::new(ManualClock::new(BEGINNING)), true);
    open(place, Options { entropy: Arc::new(SeededEntropy::new(seed)), ..options }).unwrap()
}

/// Opens a PostgreSQL store whose transactions take the time from `clock`.
pub fn open_under(clock: Arc<dyn Clock>, url: &str, create: bool) -> Arc<dyn Store> {
    let options = options(clock.clone(), create);
    Arc::new(Forked::new(Arc::new(PostgresStore::open_under(clock, url, options).unwrap())))
}

fn options(clock: Arc<dyn Clock>, create: bool) -> Options {
    Options {
        durability: Durability::Full,
        clock,
        entropy: Arc::new(SeededEntropy::new(7)),
        create,
        store_wait: STORE_WAIT,
    }
}

/// A path as a store's place.
pub fn place(path: &Path) -> &str {
    path.to_str().unwrap()
}

/// One handle of a store that is open already.
pub struct Opened(pub Arc<dyn Store>);

impl Bed for Opened {
    fn open(&self) -> Arc<dyn Store> {
        self.0.clone()
    }

    fn reopen(&self, before: Arc<dyn Store>) -> Arc<dyn Store> {
        before
    }

    fn clock(&self) -> Option<&ManualClock> {
        None
    }
}

/// A database of its own.
pub struct Postgres {
    database: Database,
    /// Instead of the database's.
    clock: Option<Arc<ManualClock>>,
}

impl Postgres {
    /// Time is the database's, as in use.
    pub fn new() -> Postgres {
        Postgres { database: Database::new(), clock: None }
    }

    /// For stories that move time.
    pub fn under_a_clock() -> Postgres {
        Postgres { database: Database::new(), clock: Some(Arc::new(ManualClock::new(BEGINNING))) }
    }

    fn store(&self, create: bool) -> Arc<dyn Store> {
        let url = self.database.url();
        match &self.clock {
            None => open_at(&url, create).unwrap(),
            Some(clock) => open_under(clock.clone(), &url, create),
        }
    }
}

impl Bed for Postgres {
    fn open(&self) -> Arc<dyn Store> {
        self.store(true)
    }

    fn reopen(&self, before: Arc<dyn Store>) -> Arc<dyn Store> {
        drop(before);
        self.store(false)
    }

    fn clock(&self) -> Option<&ManualClock> {
        self.clock.as_deref()
    }
}
