//! Number of the stored format, the range this program can read, and the migration of a format to the next: what both
//! databases share.

use std::{fs, os::unix::fs::MetadataExt as _};

use outlast_core::{
    journal::LedgerLine,
    run::{Identity, Instance},
    store::Error,
    words::Micros,
};
use rustix::process::Pid;

use crate::{
    query,
    rows::{Column, Dialect, Stored as _, Write},
    tables::{CALL, FAILED, UNKNOWN, line_key},
};

/// Silence, in milliseconds, after which a process that is listed as live no longer prevents a migration of
/// its store.
const SILENT_MS: i64 = 15_000;

/// Format in which the schemas of both databases create their tables. What came later is in [`ADDED`].
pub const CREATED: i64 = 4;

/// Columns that were added to the tables: the format that has them first, the table, and the column with its type and its
/// default in older rows. `{int}` is the database's integer type.
///
/// - 4: the operation that opened an entry. Entries of format 3 have none: 0.
/// - 5: who receives an entry's answer, and how many recorded answers an attempt is receiving.
/// - 6: sums of a run's own calls, which [`added_since`] fills in.
///
/// Format 7 added the ledger's lines, and a count of estimates to the own sums.
const ADDED: [(i64, &str, &str); 4] = [
    (4, "entries", "opened_by {int} NOT NULL DEFAULT 0"),
    (5, "entries", "taken TEXT"),
    (5, "attempts", "receiving TEXT"),
    (6, "runs", "own TEXT"),
];

/// Returns the SQL that adds what tables of format `found` lack.
pub fn added_since(d: Dialect, found: i64) -> String {
    let prefix = d.schema();
    let int = if d == Dialect::Sqlite { "INTEGER" } else { "bigint" };
    let lacking = ADDED.into_iter().filter(|(format, ..)| *format > found);
    let add = |(_, table, column): (i64, &str, &str)| {
        format!("ALTER TABLE {prefix}{table} ADD COLUMN {};\n", column.replace("{int}", int))
    };
    let mut sql: String = lacking.map(add).collect();
    if found < 7 {
        sql.push_str(&own_sums(prefix));
        sql.push_str(&ledger(d, int));
    }
    sql
}

/// Returns the SQL that makes the ledger's lines and the index of its calls by time, of the calls that are there.
fn ledger(d: Dialect, int: &str) -> String {
    let (prefix, key, fill) = (d.schema(), line_key(d), query::summing(d));
    let (name, primary, unique) = match d {
        Dialect::Sqlite => ("TEXT", format!(", PRIMARY KEY ({key})) WITHOUT ROWID"), String::new()),
        Dialect::Postgres | Dialect::PostgresRow => {
            ("bytea", ")".to_owned(), format!("CREATE UNIQUE INDEX sums_by_key ON {prefix}sums ({key});\n"))
        }
    };
    let counts = LedgerLine::COLUMNS.iter().filter(|column| column.write == Write::Always);
    let counts: String = counts.map(|Column { name, .. }| format!(", {name} {int} NOT NULL")).collect();
    format!(
        "CREATE TABLE {prefix}sums (run_no {int} NOT NULL, upstream {name} NOT NULL, model {name} NOT NULL, \
         day {int} NOT NULL{counts}{primary};\n{unique}{fill};\n\
         CREATE INDEX calls_in_time ON {prefix}entries (opened_at) WHERE kind = {CALL};\n"
    )
}

/// Returns the SQL that sums the own calls of each run.
fn own_sums(prefix: &str) -> String {
    let sums = [
        ("cost_nano_usd", "spent_cost".to_owned()),
        ("tokens", "spent_tokens".to_owned()),
        ("calls", "spent_calls".to_owned()),
        ("unpaid_calls", format!("CASE WHEN state = {FAILED} AND spent_cost = 0 THEN 1 ELSE 0 END")),
        ("doubt_nano_usd", format!("CASE WHEN state = {UNKNOWN} THEN held_cost ELSE 0 END")),
        // A key in quotes is in no text of `detail`, whose quotes are escaped.
        ("estimated_calls", r#"CASE WHEN detail LIKE '%"estimated":true%' THEN 1 ELSE 0 END"#.to_owned()),
    ];
    let members = sums.map(|(name, of)| format!("'\"{name}\":' || coalesce(sum({of}), 0)"));
    let object = members.join(" || ',' || ");
    format!(
        "UPDATE {prefix}runs AS r SET own = (SELECT '{{' || {object} || '}}' FROM {prefix}entries AS e \
         WHERE e.run_no = r.no AND e.kind = {CALL});\n"
    )
}

/// Checks that no process uses a store that is about to be migrated: an older version could not settle its calls in
/// flight.
///
/// `instances` are the store's instances listed as live. Errors: `Open`, which names the process.
pub fn is_idle(instances: &[Instance], now: Micros, place: &str) -> Result<(), Error> {
    let here = Here::look();
    let is_gone = |i: &Instance| {
        // Silence proves nothing where the process can be seen: a suspended one goes on writing when it wakes.
        here.has_ended(&i.identity).unwrap_or_else(|| now.ms_since(i.last_seen) > SILENT_MS)
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

/// Boot and pid namespace of this process: only there do pids name the same processes.
struct Here {
    boot_id: String,
    pid_ns: u64,
}

impl Here {
    fn look() -> Here {
        let boot_id = fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
        let pid_ns = fs::metadata("/proc/self/ns/pid").map(|ns| ns.ino()).unwrap_or_default();
        Here { boot_id: boot_id.trim().to_owned(), pid_ns }
    }

    /// Returns whether a process has ended; `None` if it cannot be seen from here.
    fn has_ended(&self, id: &Identity) -> Option<bool> {
        let is_here = !self.boot_id.is_empty() && self.pid_ns != 0;
        if !is_here || (id.boot_id.as_str(), id.pid_ns) != (self.boot_id.as_str(), self.pid_ns) {
            return None;
        }
        match start_time(id.pid) {
            Some(start_time) => Some(start_time != id.start_time),
            None => Pid::from_raw(id.pid.try_into().ok()?)
                .map(|pid| rustix::process::test_kill_process(pid) == Err(rustix::io::Errno::SRCH)),
        }
    }
}

/// Returns the time at which the process with this pid began; `None` if `/proc` shows none.
fn start_time(pid: u32) -> Option<u64> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The name before it is in parentheses, and may hold any character.
    stat.rsplit_once(')')?.1.split_whitespace().nth(19)?.parse().ok()
}

/// Format that this program writes. A change of the stored data needs a new number, and a migration step from the
/// previous format if a release has written that format.
pub const FORMAT: i64 = 7;

/// Oldest format that this program reads. Formats from before the first release have no migration.
pub const OLDEST: i64 = 3;

/// Checks that a store of format `found` can be read.
///
/// Errors: `Newer` and `Older` name both numbers.
pub fn readable(found: i64, place: &str) -> Result<(), Error> {
    let place = || place.to_owned();
    match found {
        n if n > FORMAT => Err(Error::Newer { place: place(), found, known: FORMAT }),
        n if n < OLDEST => Err(Error::Older { place: place(), found, oldest: OLDEST }),
        _ => Ok(()),
    }
}

/// Checks that an open store, whose format is `found` now, still has the format that this program writes: a process of
/// another version may have changed it meanwhile.
///
/// Errors: `Newer`, `Older`.
pub fn unchanged(found: i64, place: &str) -> Result<(), Error> {
    readable(found, place)?;
    match found {
        FORMAT => Ok(()),
        _ => Err(Error::Older { place: place.to_owned(), found, oldest: FORMAT }),
    }
}

#[cfg(test)]
mod tests {
    use outlast_core::run::Life;

    use super::*;

    /// Bug: a suspended process that was silent for 15 s was taken for gone, though its pid lived.
    /// Consequence: the store was migrated under it, and it wrote rows of the format before when it woke.
    #[test]
    fn a_store_in_use_is_not_migrated() {
        let here = Here::look();
        let own = |pid: u32| Identity {
            boot_id: here.boot_id.clone(),
            pid_ns: here.pid_ns,
            pid,
            start_time: start_time(pid).unwrap_or_default(),
            ..Identity::default()
        };
        let check = |identity: Identity, silent_ms: i64, idle: bool| {
            let user = Instance {
                no: Default::default(),
                identity,
                life: Life::Live,
                heartbeat: 1,
                registered_at: Micros(0),
                last_seen: Micros(0),
                op_counter: 0,
            };
            let had = is_idle(std::slice::from_ref(&user), Micros(silent_ms * 1000), "x.db");
            assert_eq!(had.is_ok(), idle, "{user:?} {silent_ms}: {had:?}");
        };
        let me = std::process::id();
        for silent_ms in [1_000, SILENT_MS + 1] {
            check(own(me), silent_ms, false);
            // No process has this pid: it is above the kernel's greatest.
            check(own(i32::MAX as u32), silent_ms, true);
            check(Identity { start_time: 0, ..own(me) }, silent_ms, true);
        }
        for elsewhere in [
            Identity { boot_id: "another".into(), ..own(me) },
            Identity { pid_ns: here.pid_ns + 1, ..own(i32::MAX as u32) },
            Identity::default(),
        ] {
            check(elsewhere.clone(), 1_000, false);
            check(elsewhere, SILENT_MS + 1, true);
        }
    }

    #[test]
    fn a_format_is_read_or_refused_by_its_number() {
        let check = |found: i64, want: Option<&str>| {
            assert_eq!(readable(found, "x.db").err().map(|e| e.code()), want, "{found}");
        };
        check(FORMAT, None);
        check(OLDEST, None);
        check(OLDEST - 1, Some("store_older"));
        check(-1, Some("store_older"));
        check(FORMAT + 1, Some("store_newer"));
    }
}
