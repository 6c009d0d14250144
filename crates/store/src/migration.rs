//! Migration of a stored format to the next: what both databases share.

use outlast_core::{run::instance::Instance, store::Error, words::id::Micros};

use crate::format::FORMAT;

/// Silence, in milliseconds, after which a process that is listed as live no longer prevents a migration of
/// its store.
const SILENT_MS: i64 = 15_000;

/// Returns the SQL that changes a store from format 3 to format 4. `prefix` comes before each table's name; `integer`
/// is the database's integer type.
///
/// Entries keep the number of the operation that opened them. Those of format 3 have none: 0.
pub fn from_3(prefix: &str, integer: &str) -> String {
    format!("ALTER TABLE {prefix}entries ADD COLUMN opened_by {integer} NOT NULL DEFAULT 0")
}

/// Checks that no process uses a store that is about to be migrated: an older version could not settle its calls in
/// flight.
///
/// `instances` are the store's instances listed as live. Errors: `Open`, which names the process.
pub fn is_idle(instances: &[Instance], now: Micros, place: &str) -> Result<(), Error> {
    let boot = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
    let is_gone = |i: &Instance| {
        let id = &i.identity;
        now.ms_since(i.last_seen) > SILENT_MS
            || (id.boot_id == boot.trim() && !std::path::Path::new(&format!("/proc/{}", id.pid)).exists())
    };
    let Some(user) = instances.iter().find(|i| !is_gone(i)) else { return Ok(()) };
    let id = &user.identity;
    Err(Error::Open {
        place: place.into(),
        why: format!(
            "its format is older than {FORMAT}, and {} (pid {} on {}) of that version uses it: wait until that has \
             ended, or stop it; the store is then brought to format {FORMAT}",
            id.program, id.pid, id.host
        ),
    })
}

#[cfg(test)]
mod tests {
    use outlast_core::run::instance::{Identity, Life};

    use super::*;

    #[test]
    fn a_store_in_use_is_not_migrated() {
        let boot = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
        let check = |boot_id: &str, pid: u32, silent_ms: i64, idle: bool| {
            let user = Instance {
                no: Default::default(),
                identity: Identity { boot_id: boot_id.trim().into(), pid, ..Identity::default() },
                life: Life::Live,
                heartbeat: 1,
                registered_at: Micros(0),
                last_seen: Micros(0),
                op_counter: 0,
            };
            let had = is_idle(&[user], Micros(silent_ms * 1000), "x.db");
            assert_eq!(had.is_ok(), idle, "{boot_id} {pid} {silent_ms}: {had:?}");
        };
        check(&boot, std::process::id(), 1_000, false);
        check("another", std::process::id(), 1_000, false);
        check("another", std::process::id(), SILENT_MS + 1, true);
        check(&boot, u32::MAX, 1_000, true);
    }
}
