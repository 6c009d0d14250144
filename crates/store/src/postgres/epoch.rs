//! Epoch of a database: the life of the server that answers, by which the cause of a loss is told.
//!
//! A crash restart may keep all that is read here, so that an epoch alone proves nothing: a loss is found by what the
//! process's own row no longer counts (`acknowledged`).

use tokio_postgres::SimpleQueryMessage;

use super::link::Link;

/// Identity of the server behind a connection. A part that the connection's role may not read is empty.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Epoch {
    /// Identifier that a cluster gets at `initdb`, and that its copies keep.
    system: String,
    /// Timeline: a promotion and a restore to a point in time begin a new one.
    timeline: String,
    /// Time at which the server started, as the server reports it.
    started: String,
}

/// Queries for the parts of an epoch. Some providers refuse one or another of them to an ordinary role.
const PARTS: [&str; 3] = [
    "SELECT system_identifier FROM pg_catalog.pg_control_system()",
    "SELECT substr(pg_catalog.pg_walfile_name(pg_catalog.pg_current_wal_lsn()), 1, 8) \
     WHERE NOT pg_catalog.pg_is_in_recovery()",
    "SELECT pg_catalog.pg_postmaster_start_time()",
];

impl Epoch {
    /// Reads the epoch of the server behind `client`. A part that cannot be read is left empty.
    pub async fn read(client: &Link) -> Epoch {
        let mut parts = [const { String::new() }; 3];
        for (part, sql) in parts.iter_mut().zip(PARTS) {
            let messages = client.simple_query(sql).await.unwrap_or_default();
            let found = messages.iter().find_map(|m| match m {
                SimpleQueryMessage::Row(row) => row.get(0).map(str::to_owned),
                _ => None,
            });
            *part = found.unwrap_or_default();
        }
        let [system, timeline, started] = parts;
        Epoch { system, timeline, started }
    }

    /// Returns the difference between this epoch and a later one, in words for a message.
    pub fn until(&self, now: &Epoch) -> String {
        let differ = |before: &str, now: &str| !before.is_empty() && !now.is_empty() && before != now;
        if differ(&self.system, &now.system) {
            return format!(
                "a server with another system identifier answers ({}, before {}): a dump was restored, or the address \
                 leads elsewhere",
                now.system, self.system
            );
        }
        if differ(&self.timeline, &now.timeline) {
            let number = |timeline: &str| i64::from_str_radix(timeline, 16).unwrap_or_default();
            return format!(
                "a standby was promoted, or a backup restored (timeline {}, before {})",
                number(&now.timeline),
                number(&self.timeline)
            );
        }
        if differ(&self.started, &now.started) {
            return format!("the server was started anew at {}", now.started);
        }
        "the server recovered from a crash".to_owned()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_greatest_change_between_two_epochs_is_told() {
        let epoch = |system: &str, timeline: &str, started: &str| Epoch {
            system: system.into(),
            timeline: timeline.into(),
            started: started.into(),
        };
        let before = epoch("7", "00000009", "noon");
        let check = |now: Epoch, wanted: &str| {
            let told = before.until(&now);
            assert!(told.contains(wanted), "{told}");
        };
        check(epoch("8", "00000001", "one"), "another system identifier answers (8, before 7)");
        check(epoch("7", "0000000A", "one"), "promoted, or a backup restored (timeline 10, before 9)");
        check(epoch("7", "00000009", "one"), "started anew at one");
        check(before.clone(), "recovered from a crash");
        // What a role may not read changes nothing.
        check(epoch("", "", "one"), "started anew at one");
        check(Epoch::default(), "recovered from a crash");
    }
}
