//! Membership: a process's instance in its store, its heartbeat, and its verdicts on other instances.
//!
//! No verdict relies on a timestamp. A process is dead when that is certain (its pid is gone), or when its heartbeat
//! did not move for a whole lease by the observer's own clock.
//!
//! A store that answered `CommitUnknown` may hold an open entry that no machine knows. The process then registers
//! anew and declares its old instance left: the open calls of that instance become `unknown`, and what its exchanges
//! still bring is settled under it.

use std::collections::HashMap;

use crate::{
    engine::{self, run::declare_dead::DeclareDead},
    run::instance::{Identity, Instance, Life},
    store,
    words::id::InstanceNo,
};

/// Interval between two heartbeats of a process, in milliseconds.
pub const HEARTBEAT_MS: u64 = 1_000;

/// Time without a heartbeat after which an instance is dead, in milliseconds of the observer's monotonic clock.
pub const LEASE_MS: u64 = 5_000;

/// Membership of one process. Pure: rows read and monotonic milliseconds are passed in.
#[derive(Debug, Default)]
pub struct Membership {
    instance: Option<InstanceNo>,
    /// Own earlier instance whose open entries no machine knows any more. It is to be declared left.
    abandoned: Option<InstanceNo>,
    /// Time at which a heartbeat was last written.
    written_ms: u64,
    /// Heartbeats of other instances, and the time since which each has stood still.
    seen: HashMap<InstanceNo, (i64, u64)>,
}

impl Membership {
    /// Returns the instance to act as; `None` when the process has to register first.
    pub fn instance(&self) -> Option<InstanceNo> {
        self.instance
    }

    /// Notes the instance number that the store gave the process.
    pub fn registered(&mut self, no: InstanceNo, now_ms: u64) {
        self.instance = Some(no);
        self.written_ms = now_ms;
    }

    /// Notes that the store took a heartbeat.
    pub fn renewed(&mut self, now_ms: u64) {
        self.written_ms = now_ms;
    }

    /// Notes that an operation of `as_whom` failed. If the instance was declared dead (a suspended machine, a stopped
    /// process) or a commit is in doubt, the process has to register anew and claim again what it drove.
    pub fn failed(&mut self, as_whom: InstanceNo, why: &store::Error) {
        let is_in_doubt = matches!(why, store::Error::CommitUnknown { .. });
        let is_dead = matches!(why, store::Error::Engine(engine::Error::InstanceDead));
        if self.instance == Some(as_whom) && (is_dead || is_in_doubt) {
            self.instance = None;
            self.abandoned = is_in_doubt.then_some(as_whom).or(self.abandoned);
        }
    }

    /// Returns the declaration that the process's old instance left, once another is registered. `row` reads its row.
    ///
    /// Returned again until the old instance is gone, because declaring it may fail.
    pub fn farewell<E>(
        &mut self,
        row: impl FnOnce(InstanceNo) -> Result<Option<Instance>, E>,
    ) -> Result<Option<DeclareDead>, E> {
        let Some(old) = self.abandoned.filter(|_| self.instance.is_some()) else { return Ok(None) };
        let goodbye = row(old)?.as_ref().and_then(goodbye);
        if goodbye.is_none() {
            self.abandoned = None;
        }
        Ok(goodbye)
    }

    /// Returns whether the store took a heartbeat within the last lease.
    pub fn is_writing(&self, now_ms: u64) -> bool {
        now_ms.saturating_sub(self.written_ms) < LEASE_MS
    }

    /// Observes the heartbeats of `live`, and returns verdicts on instances that are certainly gone or did not renew
    /// for a whole lease. `is_gone` tells what can be known at once of a process.
    pub fn verdicts(
        &mut self,
        live: &[Instance],
        is_gone: impl Fn(&Identity) -> Option<bool>,
        now_ms: u64,
    ) -> Vec<DeclareDead> {
        let me = self.instance;
        self.seen.retain(|no, _| live.iter().any(|i| i.no == *no));
        let mut verdicts = Vec::new();
        for other in live.iter().filter(|i| Some(i.no) != me) {
            let seen = self.seen.entry(other.no).or_insert((other.heartbeat, now_ms));
            if seen.0 != other.heartbeat {
                *seen = (other.heartbeat, now_ms);
            }
            let silent = now_ms.saturating_sub(seen.1) >= LEASE_MS;
            if is_gone(&other.identity).unwrap_or(silent) {
                verdicts.push(DeclareDead {
                    instance: other.no,
                    heartbeat_seen: other.heartbeat,
                    left: false,
                });
            }
        }
        verdicts
    }
}

/// Returns the declaration with which a process leaves, from its own row.
pub fn goodbye(row: &Instance) -> Option<DeclareDead> {
    let verdict = DeclareDead { instance: row.no, heartbeat_seen: row.heartbeat, left: true };
    (row.life == Life::Live).then_some(verdict)
}

/// Wait until all other instances are judged that only their silence can tell of (other containers and hosts).
#[derive(Debug)]
pub struct Inquest {
    began_ms: u64,
    first_seen: HashMap<InstanceNo, i64>,
}

impl Inquest {
    pub fn new(now_ms: u64) -> Inquest {
        Inquest { began_ms: now_ms, first_seen: HashMap::new() }
    }

    /// Returns whether each of `live` but `me` was seen to renew, or all had time enough to be declared dead: a little
    /// more than a lease.
    pub fn is_over(
        &mut self,
        me: InstanceNo,
        live: &[Instance],
        is_gone: impl Fn(&Identity) -> Option<bool>,
        now_ms: u64,
    ) -> bool {
        let mut all_renewed = true;
        for other in live {
            if other.no != me && is_gone(&other.identity).is_none() {
                all_renewed &= *self.first_seen.entry(other.no).or_insert(other.heartbeat) != other.heartbeat;
            }
        }
        all_renewed || now_ms.saturating_sub(self.began_ms) > LEASE_MS + 2 * HEARTBEAT_MS
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::words::id::Micros;

    const ME: InstanceNo = InstanceNo(1);
    const OTHER: InstanceNo = InstanceNo(2);

    fn row(no: InstanceNo, heartbeat: i64, life: Life) -> Instance {
        let at = Micros(0);
        let identity = Identity { pid: no.0 as u32, ..Identity::default() };
        Instance { no, identity, life, heartbeat, registered_at: at, last_seen: at, op_counter: 0 }
    }

    fn live(no: InstanceNo, heartbeat: i64) -> Instance {
        row(no, heartbeat, Life::Live)
    }

    fn in_doubt() -> store::Error {
        store::Error::CommitUnknown { why: "gone".into() }
    }

    fn member() -> Membership {
        let mut m = Membership::default();
        m.registered(ME, 0);
        m
    }

    #[test]
    fn who_is_silent_for_a_lease_is_dead_and_who_renews_is_not() {
        let mut m = member();
        let judge = |m: &mut Membership, heartbeat, now_ms| {
            m.verdicts(&[live(ME, 0), live(OTHER, heartbeat)], |_| None, now_ms).len()
        };
        assert_eq!(judge(&mut m, 7, 0), 0, "not seen before: its lease begins now");
        assert_eq!(judge(&mut m, 7, LEASE_MS - 1), 0);
        assert_eq!(judge(&mut m, 8, LEASE_MS), 0, "it renewed");
        assert_eq!(judge(&mut m, 8, 2 * LEASE_MS - 1), 0);
        assert_eq!(judge(&mut m, 8, 2 * LEASE_MS), 1);
        // One that was away meanwhile is observed anew.
        assert!(m.verdicts(&[], |_| None, 30_000).is_empty());
        assert_eq!(judge(&mut m, 8, 40_000), 0);
    }

    #[test]
    fn what_is_certain_needs_no_lease() {
        for (known, now_ms, wanted) in [(Some(true), 0, 1), (Some(false), 100_000, 0), (None, 100_000, 0)] {
            let verdicts = member().verdicts(&[live(OTHER, 3)], |_| known, now_ms);
            assert_eq!(verdicts.len(), wanted, "{known:?}");
            assert!(verdicts.iter().all(|v| (v.instance, v.heartbeat_seen, v.left) == (OTHER, 3, false)));
        }
    }

    #[test]
    fn one_that_was_declared_dead_registers_anew_and_a_late_word_changes_nothing() {
        let dead = store::Error::from(engine::Error::InstanceDead);
        let mut m = member();
        m.failed(ME, &store::Error::Closed);
        assert_eq!(m.instance(), Some(ME));
        m.failed(ME, &dead);
        assert_eq!(m.instance(), None);
        m.registered(OTHER, 10);
        m.failed(ME, &dead);
        m.failed(ME, &in_doubt());
        assert_eq!(m.instance(), Some(OTHER));
        assert!(m.farewell(|_| Err("it is dead already")).unwrap().is_none());
    }

    #[test]
    fn after_a_commit_in_doubt_the_old_instance_is_declared_left_until_it_is() {
        let mut m = member();
        m.failed(ME, &in_doubt());
        assert_eq!(m.instance(), None);
        let alive = |no| Ok::<_, ()>(Some(live(no, 5)));
        assert!(m.farewell(alive).unwrap().is_none(), "not before it has another one");
        m.registered(OTHER, 20);
        for _ in 0..2 {
            let goodbye = m.farewell(alive).unwrap().unwrap();
            assert_eq!((goodbye.instance, goodbye.heartbeat_seen, goodbye.left), (ME, 5, true));
        }
        assert!(m.farewell(|no| Ok::<_, ()>(Some(row(no, 5, Life::Left)))).unwrap().is_none());
        assert!(m.farewell(alive).unwrap().is_none(), "it is done");
    }

    #[test]
    fn a_probe_sees_whether_the_store_takes_heartbeats() {
        let mut m = member();
        assert!(m.is_writing(LEASE_MS - 1) && !m.is_writing(LEASE_MS));
        m.renewed(4_000);
        m.failed(ME, &store::Error::Closed);
        assert!(m.is_writing(4_000 + LEASE_MS - 1) && !m.is_writing(4_000 + LEASE_MS));
    }

    #[test]
    fn an_inquest_ends_when_all_have_renewed_or_a_lease_is_over() {
        let unknown = |_: &Identity| None;
        let mut i = Inquest::new(0);
        assert!(Inquest::new(0).is_over(ME, &[live(ME, 0)], unknown, 0), "nobody to wait for");
        assert!(Inquest::new(0).is_over(ME, &[live(OTHER, 0)], |_| Some(false), 0), "it certainly lives");
        assert!(!i.is_over(ME, &[live(OTHER, 4)], unknown, 0));
        assert!(!i.is_over(ME, &[live(OTHER, 4)], unknown, LEASE_MS + 2 * HEARTBEAT_MS));
        assert!(i.is_over(ME, &[live(OTHER, 5)], unknown, 1_000));
        assert!(i.is_over(ME, &[live(OTHER, 4)], unknown, LEASE_MS + 2 * HEARTBEAT_MS + 1));
    }
}
