//! More beds: a PostgreSQL database, and one handle of any store; and how tests open a store.

use std::{path::Path, sync::Arc};

use outlast_core::{
    store::{Error, Store},
    words::clock::{ManualClock, SeededEntropy},
};
use outlast_store::{Durability, Options, open};

use crate::{
    bed::{BEGINNING, Bed},
    private_postgres::Database,
};

/// Opens the store, durably, under a clock that stands still.
pub fn open_at(place: &str, create: bool) -> Result<Arc<dyn Store>, Error> {
    let clock = Arc::new(ManualClock::new(BEGINNING));
    let entropy = Arc::new(SeededEntropy::new(7));
    open(place, Options { durability: Durability::Full, clock, entropy, create })
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

/// A database of its own. Its clock is the database's.
pub struct Postgres(Database);

impl Postgres {
    pub fn new() -> Postgres {
        Postgres(Database::new())
    }
}

impl Bed for Postgres {
    fn open(&self) -> Arc<dyn Store> {
        open_at(&self.0.url(), true).unwrap()
    }

    fn reopen(&self, before: Arc<dyn Store>) -> Arc<dyn Store> {
        drop(before);
        open_at(&self.0.url(), false).unwrap()
    }

    fn clock(&self) -> Option<&ManualClock> {
        None
    }
}
