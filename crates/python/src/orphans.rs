//! Instances that this process could not take leave of: their store had failed when they were closed.
//!
//! The process lives, so that to everybody else they seem to live, too, and hold their runs and items. Only this
//! process knows better: it says so when it opens that store again.

use std::sync::{Mutex, PoisonError};

use outlast_core::{
    engine::{self, run::declare_dead::DeclareDead},
    store::{Ask as _, Durability, Error, Store},
    words::id::InstanceNo,
};

/// Place, instance, and the process it was of: one forked from that one has not left them behind.
static ORPHANS: Mutex<Vec<(String, InstanceNo, u32)>> = Mutex::new(Vec::new());

/// Nobody acts as `instance` of the store at `place` any more, and it could not be said there.
pub fn left_behind(place: String, instance: InstanceNo) {
    ORPHANS.lock().unwrap_or_else(PoisonError::into_inner).push((place, instance, std::process::id()));
}

/// Says of those that were left behind at `place` that they are dead. Synced.
pub fn bury(store: &dyn Store, place: &str) -> Result<(), Error> {
    let mine = |orphan: &(String, InstanceNo, u32)| orphan.0 == place && orphan.2 == std::process::id();
    let orphans: Vec<_> = {
        let mut all = ORPHANS.lock().unwrap_or_else(PoisonError::into_inner);
        all.extract_if(.., |orphan| mine(orphan)).collect()
    };
    orphans.into_iter().try_for_each(|(_, instance, _)| declare_dead(store, instance))
}

/// Gives the verdict on an instance that may still renew its heartbeat meanwhile. Synced.
pub fn declare_dead(store: &dyn Store, no: InstanceNo) -> Result<(), Error> {
    loop {
        let Some(instance) = store.instance(no)? else { return Ok(()) };
        let verdict = DeclareDead { instance: no, heartbeat_seen: instance.heartbeat, left: false };
        match store.ask(verdict, Durability::Synced).wait() {
            Err(Error::Engine(engine::Error::HeartbeatMoved { .. })) => {}
            told => return told.map(drop),
        }
    }
}
