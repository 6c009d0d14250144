//! The beds of the stores that keep things: SQLite in a file, PostgreSQL in a database.

use std::{path::Path, sync::Arc};

use outlast_core::{
    clock::{Clock, ManualClock, SeededEntropy},
    store::Store,
};
use outlast_store::{Options, open};

use crate::{
    bed::{BEGINNING, Bed},
    private_postgres::Database,
};

/// How tests open a store, under this clock.
pub fn options(clock: Arc<dyn Clock>, create: bool) -> Options {
    let entropy = Arc::new(SeededEntropy::new(7));
    Options { durability: Default::default(), clock, entropy, create }
}

/// Opens the store under a clock that stands still.
pub fn open_at(place: &str, create: bool) -> Result<Arc<dyn Store>, outlast_core::store::Error> {
    open(place, options(Arc::new(ManualClock::new(BEGINNING)), create))
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

/// A file in a directory of its own.
pub struct Sqlite {
    clock: Arc<ManualClock>,
    directory: tempfile::TempDir,
}

impl Sqlite {
    pub fn new() -> Sqlite {
        let clock = Arc::new(ManualClock::new(BEGINNING));
        Sqlite { clock, directory: tempfile::tempdir().unwrap() }
    }

    fn opened(&self, create: bool) -> Arc<dyn Store> {
        let path = self.directory.path().join("outlast.db");
        open(place(&path), options(self.clock.clone(), create)).unwrap()
    }
}

impl Bed for Sqlite {
    fn open(&self) -> Arc<dyn Store> {
        self.opened(true)
    }

    fn reopen(&self, before: Arc<dyn Store>) -> Arc<dyn Store> {
        drop(before);
        self.opened(false)
    }

    fn clock(&self) -> Option<&ManualClock> {
        Some(&self.clock)
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
