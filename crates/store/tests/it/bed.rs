//! Where stories are played: one bed for each kind of store.

use std::sync::Arc;

use outlast_core::{
    memory::MemoryStore,
    reads::forked::Forked,
    store::Store,
    words::{
        clock::{Clock, ManualClock, SeededEntropy},
        id::Micros,
    },
};

/// One empty store, and the ways a story handles it from outside.
pub trait Bed {
    /// The store, opened for the first time.
    fn open(&self) -> Arc<dyn Store>;
    /// The same store, opened anew after every process that had it open is gone.
    fn reopen(&self, before: Arc<dyn Store>) -> Arc<dyn Store>;
    /// The store's clock, where it is injected. Without one the stories that move time are not played.
    fn clock(&self) -> Option<&ManualClock>;
}

/// The strict reference store.
pub struct Memory {
    clock: Arc<ManualClock>,
    store: Arc<MemoryStore>,
}

/// 20 November 2026: a day that starts somewhere, so that ledger days are not zero.
pub const BEGINNING: Micros = Micros(1_795_132_800_000_000);

impl Memory {
    pub fn new() -> Memory {
        let clock = Arc::new(ManualClock::new(BEGINNING));
        let store = Arc::new(MemoryStore::new(clock.clone() as Arc<dyn Clock>));
        Memory { clock, store }
    }
}

impl Bed for Memory {
    fn open(&self) -> Arc<dyn Store> {
        Arc::new(Forked::new(self.store.clone()))
    }

    fn reopen(&self, _before: Arc<dyn Store>) -> Arc<dyn Store> {
        self.open()
    }

    fn clock(&self) -> Option<&ManualClock> {
        Some(&self.clock)
    }
}

/// A file in a directory of its own.
pub struct Sqlite {
    clock: Arc<ManualClock>,
    directory: tempfile::TempDir,
}

impl Sqlite {
    pub fn new() -> Sqlite {
        let directory = tempfile::tempdir().unwrap();
        Sqlite { clock: Arc::new(ManualClock::new(BEGINNING)), directory }
    }
}

impl Bed for Sqlite {
    fn open(&self) -> Arc<dyn Store> {
        let place = self.directory.path().join("outlast.db");
        let options = outlast_store::Options {
            durability: outlast_store::Durability::Process,
            clock: self.clock.clone(),
            entropy: Arc::new(SeededEntropy::new(1)),
            create: true,
            store_wait: outlast_store::STORE_WAIT,
        };
        outlast_store::open(place.to_str().unwrap(), options).unwrap()
    }

    /// The handle before may live on in the story's processes: several may share the file.
    fn reopen(&self, before: Arc<dyn Store>) -> Arc<dyn Store> {
        drop(before);
        self.open()
    }

    fn clock(&self) -> Option<&ManualClock> {
        Some(&self.clock)
    }
}

/// The stricter accounts of the reference store hold after each story, too.
impl Drop for Memory {
    fn drop(&mut self) {
        if !std::thread::panicking() {
            assert_eq!(self.store.tables().inconsistency(), None);
        }
    }
}
