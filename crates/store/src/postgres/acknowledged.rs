//! Commits that this process has acknowledged, and the search for those that the database no longer has.
//!
//! Each commit of a process writes the number of its last operation into the process's own row. The first transaction of
//! each session reads that row where it begins, and a number that went back tells which commits are gone, whatever took
//! them. Behind a pooler every transaction reads it.
//!
//! An epoch is the life of the server that answers, by which the cause of a loss is told. A crash restart may keep all that
//! is read of one, so that an epoch alone proves nothing: a loss is found by what the process's own row no longer counts.

use std::{
    collections::VecDeque,
    sync::{Arc, Mutex, PoisonError},
};

use outlast_core::store::{Loss, Losses};

use crate::postgres::prelude::*;

/// Number of newest commits that are remembered. A server makes some thousand in a second at most.
const KEPT: usize = 16_384;

/// Commit of a group.
#[derive(Clone, Copy, Debug)]
pub struct Commit {
    pub instance: InstanceNo,
    /// Time at which the instance was registered, if this commit registers it; else `None`.
    pub registered_at: Option<Micros>,
    /// Number of the last operation in the group that was committed.
    pub counter: i64,
    pub at: Micros,
    pub synced: bool,
}

/// This process's own row in the database, as a transaction read it when it began.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Witness {
    pub counter: i64,
    pub registered_at: Micros,
}

/// Newest commits of this process's instance that the database acknowledged.
#[derive(Default)]
pub struct Acknowledged {
    /// Instance of this process and the time of its registration; `None` until the registration was
    /// acknowledged.
    instance: Option<(InstanceNo, Micros)>,
    commits: VecDeque<Commit>,
    /// Whether the oldest commits of the instance were dropped from `commits`.
    is_cut: bool,
    /// Epoch of the server that acknowledged the newest commit.
    epoch: Epoch,
    found: Found,
}

/// Losses that were found, shared with the store's readers.
pub type Found = Arc<Mutex<Losses>>;

impl Acknowledged {
    pub fn new(found: Found) -> Acknowledged {
        Acknowledged { found, ..Acknowledged::default() }
    }

    /// Returns the instance whose row the next transaction is to read; `None` if none is registered.
    pub fn witness(&self) -> Option<InstanceNo> {
        self.instance.map(|(no, _)| no)
    }

    /// Returns whether a row with the number of this process's instance is its own: another process may have been given
    /// the number by a database that came back without the registration.
    pub fn is_own(&self, row: &Instance) -> bool {
        self.instance.is_none_or(|(no, registered_at)| row.no != no || row.registered_at == registered_at)
    }

    /// Notes a commit that the database has acknowledged.
    pub fn add(&mut self, commit: Commit, epoch: &Epoch) {
        if let Some(at) = commit.registered_at {
            self.instance = Some((commit.instance, at));
            self.commits.clear();
            self.is_cut = false;
        }
        if self.witness() != Some(commit.instance) {
            return;
        }
        if self.epoch != *epoch {
            self.epoch = epoch.clone();
        }
        if self.commits.len() == KEPT {
            self.commits.pop_front();
            self.is_cut = true;
        }
        self.commits.push_back(commit);
    }

    /// Compares this process's own row, which a transaction read when it began, with the commits that were
    /// acknowledged. Reports a loss once, and remembers from then on only the commits that the database still
    /// has.
    pub fn compare(&mut self, row: Option<Witness>, now: Micros, epoch: &Epoch) {
        let Some((_, registered_at)) = self.instance else { return };
        let own = row.filter(|row| row.registered_at == registered_at);
        let counter = own.map_or(i64::MIN, |row| row.counter);
        let kept = self.commits.partition_point(|commit| commit.counter <= counter);
        let lost = self.commits.split_off(kept);
        let (Some(oldest), Some(newest)) = (lost.front(), lost.back()) else { return };
        let loss = Loss {
            commits: lost.len() as u64,
            synced: lost.iter().filter(|commit| commit.synced).count() as u64,
            is_least: kept == 0 && self.is_cut,
            is_unregistered: own.is_none(),
            ages_us: (now.0 - oldest.at.0, now.0 - newest.at.0),
            cause: self.epoch.until(epoch),
        };
        if own.is_none() {
            self.instance = None;
        }
        let but = if loss.is_unregistered { "; this process's registration is gone too" } else { "" };
        tracing::warn!(
            commits = loss.commits,
            synced = loss.synced,
            "{loss}{but}; the ledger lacks what they recorded: compare it with the providers' bills of that time"
        );
        let mut found = self.found.lock().unwrap_or_else(PoisonError::into_inner);
        found.commits += loss.commits;
        found.newest = Some(loss);
    }
}

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
            *part = client.word(sql).await.ok().flatten().unwrap_or_default();
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
    use outlast_core::run::Life;

    use super::*;

    const ME: InstanceNo = InstanceNo(3);

    fn commit(counter: i64) -> Commit {
        let registered_at = (counter == 1).then_some(Micros(10));
        Commit { instance: ME, registered_at, counter, at: Micros(counter * 10), synced: counter % 2 == 0 }
    }

    fn rig(upto: i64) -> (Acknowledged, Found) {
        let found = Found::default();
        let mut all = Acknowledged::new(found.clone());
        (1..=upto).for_each(|counter| all.add(commit(counter), &Epoch::default()));
        (all, found)
    }

    fn row(counter: i64, registered_at: i64) -> Option<Witness> {
        Some(Witness { counter, registered_at: Micros(registered_at) })
    }

    #[track_caller]
    fn lost(found: &Found, commits: u64, synced: u64) -> Loss {
        let losses = found.lock().unwrap().clone();
        let newest = losses.newest.unwrap();
        assert_eq!((newest.commits, newest.synced), (commits, synced), "{newest}");
        newest
    }

    #[test]
    fn what_the_own_row_no_longer_counts_is_lost_and_told_once() {
        let (mut all, found) = rig(9);
        all.compare(row(9, 10), Micros(100), &Epoch::default());
        assert_eq!(*found.lock().unwrap(), Losses::default());
        all.compare(row(6, 10), Micros(100), &Epoch::default());
        let loss = lost(&found, 3, 1);
        assert_eq!((loss.ages_us, loss.is_least, loss.is_unregistered), ((30, 10), false, false));
        all.compare(row(6, 10), Micros(100), &Epoch::default());
        assert_eq!(found.lock().unwrap().commits, 3, "told once");
        // Numbers go on behind those that are gone.
        all.add(commit(10), &Epoch::default());
        all.compare(row(6, 10), Micros(200), &Epoch::default());
        lost(&found, 1, 1);
        assert_eq!(found.lock().unwrap().commits, 4);
    }

    /// Bug: after an unclear commit, a group that was gone with a failover was told as committed.
    /// Consequence: a paid answer was acknowledged that the journal did not have.
    /// Cause: whoever had the instance's number by then was believed for its counter.
    #[test]
    fn a_row_of_another_process_under_the_number_is_not_the_own_one() {
        let (all, _) = rig(3);
        let registered = |no: InstanceNo, at: i64| Instance {
            no,
            identity: Default::default(),
            life: Life::Live,
            heartbeat: 0,
            registered_at: Micros(at),
            last_seen: Micros(at),
            op_counter: 1 << 40,
        };
        assert!(all.is_own(&registered(ME, 10)));
        assert!(!all.is_own(&registered(ME, 11)));
        assert!(all.is_own(&registered(InstanceNo(4), 11)), "nothing is known of it");
    }

    #[test]
    fn a_registration_that_is_gone_or_anothers_takes_all_along() {
        for gone in [None, row(99, 11)] {
            let (mut all, found) = rig(4);
            assert_eq!(all.witness(), Some(ME));
            all.compare(gone, Micros(100), &Epoch::default());
            assert!(lost(&found, 4, 2).is_unregistered);
            assert_eq!(all.witness(), None, "it registers anew");
            all.add(commit(1), &Epoch::default());
            all.compare(row(1, 10), Micros(100), &Epoch::default());
            assert_eq!(found.lock().unwrap().commits, 4);
        }
    }

    #[test]
    fn a_loss_beyond_what_is_remembered_is_told_as_at_least_so_much() {
        let (mut all, found) = rig(KEPT as i64 + 5);
        all.compare(row(2, 10), Micros(100), &Epoch::default());
        let loss = lost(&found, KEPT as u64, KEPT as u64 / 2);
        assert!(loss.is_least);
    }

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
