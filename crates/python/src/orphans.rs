//! Instances that this process could not deregister, because their store had failed when they were closed.
//!
//! While the process lives, other processes take them for alive, so they keep their runs and items. Only this process
//! knows better: it declares them dead when it opens that store again.

use outlast_core::{
    store::{Error, Store},
    words::InstanceNo,
};
use outlast_process::identity;
use outlast_server::node::declare_dead;
use parking_lot::Mutex;

/// Place, instance and process id of each. A process forked from that one does not own them.
static ORPHANS: Mutex<Vec<(String, InstanceNo, u32)>> = Mutex::new(Vec::new());

/// Remembers that this process no longer uses `instance` of the store at `place`, but could not deregister it there.
pub fn left_behind(place: String, instance: InstanceNo) {
    ORPHANS.lock().push((place, instance, std::process::id()));
}

/// Declares dead the instances left behind at `place`, before this process registers there again. Synced.
///
/// An instance whose identity is not this process's is left alone: another store may be at that place by now.
pub fn bury(store: &dyn Store, place: &str) -> Result<(), Error> {
    let mine = |orphan: &(String, InstanceNo, u32)| orphan.0 == place && orphan.2 == std::process::id();
    let orphans: Vec<_> = {
        let mut all = ORPHANS.lock();
        all.extract_if(.., |orphan| mine(orphan)).collect()
    };
    // Registering reports what is wrong with /proc.
    let Ok(me) = identity::of_self() else { return Ok(()) };
    for (_, no, _) in orphans {
        let found = store.instance(no)?.map(|instance| instance.identity);
        if found.is_some_and(|it| {
            (it.boot_id, it.pid, it.start_time) == (me.boot_id.clone(), me.pid, me.start_time)
        }) {
            declare_dead(store, no, false)?;
        }
    }
    Ok(())
}
