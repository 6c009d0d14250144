//! Membership: a process's instance in its store, its heartbeat, and its verdicts on other instances.
//!
//! No verdict relies on a timestamp. A process is dead when that is certain (its pid is gone), or when its heartbeat
//! did not move for a whole lease by the observer's own clock. Silence counts only while the observer's own renewals
//! succeed: a store that is away, or frozen, silences everybody, and is no reason to declare anybody dead. On a store
//! that several machines share, what `/proc` shows only shortens the wait: clones of a machine have equal boot ids,
//! host names and process tables.
//!
//! A renewal is a compare-and-set: it names the heartbeats that this process wrote last, and writes a fresh random one.
//! Two clones of one process act under the same number: the first to renew goes on, and the other is fenced.
//!
//! A store that answered `CommitUnknown` may hold an open entry that no machine knows. The process then registers
//! anew and declares its old instance left: the open calls of that instance become `unknown`, and what its exchanges
//! still bring is settled under it.

use std::collections::{HashMap, VecDeque};

use crate::{
    engine::{self, Active, DeclareDead, Renew},
    run::{Identity, Instance, Life},
    store,
    words::InstanceNo,
};

/// Interval between two heartbeats of a process, in milliseconds.
pub const HEARTBEAT_MS: u64 = 1_000;

/// Time without a heartbeat after which an instance is dead on a store of one machine, in milliseconds of the
/// observer's clock. A process that could not renew for so long opens nothing.
pub const LEASE_MS: u64 = 5_000;

/// Durations of a lease, in milliseconds.
///
/// `trust_ms` is at most `length_ms`: a process has stopped acting before another one may take its runs over. Both
/// count from the submission of the last renewal that succeeded, or later.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Lease {
    /// Time without a heartbeat after which others declare an instance dead.
    pub length_ms: u64,
    /// Time without a renewal after which a process opens nothing; on a shared store its supervisor's agent is frozen.
    pub trust_ms: u64,
}

impl Lease {
    const ONE_MACHINE: Lease = Lease { length_ms: LEASE_MS, trust_ms: LEASE_MS };
    const BETWEEN_HOSTS: Lease = Lease { length_ms: 15_000, trust_ms: 8_000 };

    /// Returns the lease on a store. `is_shared`: whether processes on other machines may use it.
    pub const fn on(is_shared: bool) -> Lease {
        if is_shared { Lease::BETWEEN_HOSTS } else { Lease::ONE_MACHINE }
    }
}

/// Time without a heartbeat after which an instance is dead on a shared store, if its pid is gone as well: two
/// renewals, and half a one for their commits.
const GONE_MS: u64 = 5 * HEARTBEAT_MS / 2;

/// Longest time between two renewals of an observer for which the silence of other processes counts. After a
/// longer one the observer measures their silence from zero. Even with the longest unnoticed outage, other
/// processes have half a lease to renew.
const GAP_MS: u64 = 5 * HEARTBEAT_MS / 2;

/// Number of own heartbeats that a renewal accepts as its own. A crash of PostgreSQL loses the last unsynced ones.
const OWN: usize = 8;

/// Membership of one process: its instance in the store, its heartbeat, and its verdicts on others.
///
/// Pure: rows read and the time are passed in, in milliseconds of a clock that never goes back and counts the time
/// asleep (CLOCK_BOOTTIME), because others count it too.
#[derive(Debug, Default)]
pub struct Membership {
    instance: Option<InstanceNo>,
    /// Own earlier instances whose open entries no machine knows any more, the oldest first. Each is to be declared left.
    abandoned: VecDeque<InstanceNo>,
    /// Whether processes on other machines may use the store.
    is_shared: bool,
    heart: Heart,
    contact: Contact,
    /// Newest heartbeat seen of each other instance, and the time in milliseconds since which it has not changed.
    seen: HashMap<InstanceNo, (i64, u64)>,
}

/// Heartbeat of this process.
#[derive(Debug, Default)]
struct Heart {
    /// Heartbeats of this process that the store recorded, the newest last.
    written: VecDeque<i64>,
    /// Time, in milliseconds, at which the newest heartbeat was submitted. Other processes count this one's silence
    /// from then at the earliest.
    written_ms: u64,
    /// Time, in milliseconds, at which the store had confirmed the newest heartbeat.
    confirmed_ms: u64,
    /// Heartbeat that was submitted and not confirmed yet, and the time of its first submission; `None` if
    /// there is none. It is submitted again until the store has recorded it: a renewal that failed may have
    /// written it.
    next: Option<(i64, u64)>,
}

/// Time over which the process's own renewals succeeded without a gap.
#[derive(Debug, Default)]
struct Contact {
    since_ms: u64,
    last_ms: u64,
}

impl Contact {
    fn made(&mut self, now_ms: u64) {
        if now_ms.saturating_sub(self.last_ms) > GAP_MS {
            self.since_ms = now_ms;
        }
        self.last_ms = now_ms;
    }

    /// Returns the part of the time since `since_ms` that lies between two renewals of this process, without
    /// a gap.
    fn watched_ms(&self, since_ms: u64) -> u64 {
        self.last_ms.saturating_sub(since_ms.max(self.since_ms))
    }
}

impl Membership {
    /// Creates the membership of a process that has not registered yet. `is_shared`: whether processes on other
    /// machines may use the store.
    pub fn new(is_shared: bool) -> Membership {
        Membership { is_shared, ..Membership::default() }
    }

    /// Returns the instance that this process acts as; `None` when the process has to register first.
    pub fn instance(&self) -> Option<InstanceNo> {
        self.instance
    }

    /// Notes the instance number that the store gave the process.
    pub fn registered(&mut self, no: InstanceNo, now_ms: u64) {
        self.goes_on_as(no, 0, now_ms);
    }

    /// Notes that the process acts as instance `no` from now on and renews it. `heartbeat` is the one in the store.
    pub fn goes_on_as(&mut self, no: InstanceNo, heartbeat: i64, now_ms: u64) {
        self.instance = Some(no);
        self.heart =
            Heart { written: [heartbeat].into(), written_ms: now_ms, confirmed_ms: now_ms, next: None };
        self.contact.made(now_ms);
    }

    /// Returns the renewal to submit now; `None` when the process has to register first. `fresh` is a random number,
    /// from which a new heartbeat is made.
    pub fn renewal(&mut self, active: Vec<Active>, fresh: u64, now_ms: u64) -> Option<Renew> {
        let instance = self.instance?;
        let fresh = i64::try_from(fresh >> 1).unwrap_or_default();
        let (next, _) = *self.heart.next.get_or_insert((fresh, now_ms));
        let own = self.heart.written.iter().copied().collect();
        let since = |ms: u64| now_ms.saturating_sub(ms);
        let since_own_ms = Some((since(self.heart.confirmed_ms), since(self.heart.written_ms)));
        Some(Renew { instance, own, next, since_own_ms, active })
    }

    /// Notes that the store recorded the heartbeat `next`.
    pub fn renewed(&mut self, next: i64, now_ms: u64) {
        if let Some((_, submitted_ms)) = self.heart.next.take_if(|n| n.0 == next) {
            self.heart.written.push_back(next);
            if self.heart.written.len() > OWN {
                self.heart.written.pop_front();
            }
            self.heart.written_ms = submitted_ms;
            self.heart.confirmed_ms = now_ms;
        }
        self.contact.made(now_ms);
    }

    /// Notes that the store could be read, for an observer that is no instance and renews nothing.
    pub fn looked(&mut self, now_ms: u64) {
        self.contact.made(now_ms);
    }

    /// Notes that an operation submitted as instance `as_whom` failed. If the instance was declared dead (a suspended
    /// machine, a stopped process) or a commit is in doubt, the process has to register anew and claim again what it
    /// drove.
    pub fn failed(&mut self, as_whom: InstanceNo, why: &store::Error) {
        let is_in_doubt = matches!(why, store::Error::CommitUnknown { .. });
        let is_dead = matches!(why, store::Error::Engine(engine::Error::InstanceDead));
        if self.instance == Some(as_whom) && (is_dead || is_in_doubt) {
            self.instance = None;
            self.abandoned.extend(is_in_doubt.then_some(as_whom));
        }
    }

    /// Returns the operation that declares an old instance of this process dead, once a new instance is registered.
    /// `None` if there is none to declare. `row` reads an instance's row from the store.
    ///
    /// The same operation is returned until the store says that the old instance is gone: submitting it may fail.
    pub fn farewell<E>(
        &mut self,
        row: impl Fn(InstanceNo) -> Result<Option<Instance>, E>,
    ) -> Result<Option<DeclareDead>, E> {
        while let Some(&old) = self.abandoned.front().filter(|_| self.instance.is_some()) {
            let goodbye = row(old)?.and_then(|row| verdict(&row, true));
            if goodbye.is_some() {
                return Ok(goodbye);
            }
            self.abandoned.pop_front();
        }
        Ok(None)
    }

    /// Returns the time at which the newest heartbeat that is in the store was submitted, in milliseconds.
    pub fn written_ms(&self) -> u64 {
        self.heart.written_ms
    }

    /// Returns whether a heartbeat is in the store that was submitted so lately that nobody can have declared the
    /// process dead ([`Lease::trust_ms`]).
    pub fn is_writing(&self, now_ms: u64) -> bool {
        now_ms.saturating_sub(self.heart.written_ms) < Lease::on(self.is_shared).trust_ms
    }

    /// Returns whether the process may open new work: not while its renewals have failed, or hung, for so long that
    /// others may have declared it dead.
    pub fn may_open(&self, now_ms: u64) -> bool {
        self.heart.next.is_none() || self.is_writing(now_ms)
    }

    /// Observes the heartbeats of `live`, and returns verdicts on instances that are certainly gone or did not renew
    /// for a whole lease. `is_gone` tells whether a process has ended, as this machine sees it; `None` if that cannot
    /// be seen from here.
    pub fn verdicts(
        &mut self,
        live: &[Instance],
        is_gone: impl Fn(&Identity) -> Option<bool>,
        now_ms: u64,
    ) -> Vec<DeclareDead> {
        let me = self.instance;
        let is_in_contact = now_ms.saturating_sub(self.contact.last_ms) <= GAP_MS;
        self.seen.retain(|no, _| live.iter().any(|i| i.no == *no));
        let mut verdicts = Vec::new();
        for other in live.iter().filter(|i| Some(i.no) != me) {
            let seen = self.seen.entry(other.no).or_insert((other.heartbeat, now_ms));
            if seen.0 != other.heartbeat {
                *seen = (other.heartbeat, now_ms);
            }
            let silent_ms = if is_in_contact { self.contact.watched_ms(seen.1) } else { 0 };
            let is_dead = match is_gone(&other.identity) {
                Some(true) => !self.is_shared || silent_ms >= GONE_MS,
                Some(false) if !self.is_shared => false,
                _ => silent_ms >= Lease::on(self.is_shared).length_ms,
            };
            if is_dead {
                verdicts.extend(verdict(other, false));
            }
        }
        verdicts
    }
}

/// Returns the operation that declares an instance dead, from its row; `None` if it is dead already. `left`: its process
/// exits by itself.
pub fn verdict(row: &Instance, left: bool) -> Option<DeclareDead> {
    let verdict = DeclareDead { instance: row.no, heartbeat_seen: row.heartbeat, left, heir: None };
    (row.life == Life::Live).then_some(verdict)
}

/// Wait until it is known of each other instance whether its process lives, where only heartbeats show that:
/// of processes in other containers and on other hosts, and of all on a shared store.
#[derive(Debug)]
pub struct Inquest {
    began_ms: u64,
    first_seen: HashMap<InstanceNo, i64>,
}

impl Inquest {
    pub fn new(now_ms: u64) -> Inquest {
        Inquest { began_ms: now_ms, first_seen: HashMap::new() }
    }

    /// Returns whether every other instance of `live` was seen to renew, or all of them had time enough to be declared
    /// dead: a little more than a lease, over which `observer` renewed without a gap.
    pub fn is_over(
        &mut self,
        observer: &Membership,
        live: &[Instance],
        is_gone: impl Fn(&Identity) -> Option<bool>,
    ) -> bool {
        let mut all_renewed = true;
        for other in live.iter().filter(|i| Some(i.no) != observer.instance) {
            if observer.is_shared || is_gone(&other.identity).is_none() {
                all_renewed &= *self.first_seen.entry(other.no).or_insert(other.heartbeat) != other.heartbeat;
            }
        }
        all_renewed
            || observer.contact.watched_ms(self.began_ms)
                > Lease::on(observer.is_shared).length_ms + 2 * HEARTBEAT_MS
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::words::Micros;

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
        let mut m = Membership::new(false);
        m.registered(ME, 0);
        m
    }

    /// Renews at `now_ms`, and the store takes it at once.
    fn renew(m: &mut Membership, now_ms: u64) {
        let renew = m.renewal(Vec::new(), now_ms << 1, now_ms).unwrap();
        m.renewed(renew.next, now_ms);
    }

    /// Renews once a second from `from_ms` to `to_ms`, and then judges the other one, whose heartbeat is `heartbeat`.
    fn judge(m: &mut Membership, heartbeat: i64, (from_ms, to_ms): (u64, u64)) -> usize {
        (from_ms..=to_ms).step_by(HEARTBEAT_MS as usize).for_each(|now_ms| renew(m, now_ms));
        renew(m, to_ms);
        m.verdicts(&[live(ME, 0), live(OTHER, heartbeat)], |_| None, to_ms).len()
    }

    #[test]
    fn a_renewal_tells_between_which_times_the_one_before_was_decided() {
        let mut m = member();
        let held = m.renewal(Vec::new(), 8, 1000).unwrap();
        assert_eq!(held.since_own_ms, Some((1000, 1000)));
        m.renewed(held.next, 605_000);
        assert_eq!(m.renewal(Vec::new(), 9, 606_000).unwrap().since_own_ms, Some((1000, 605_000)));
    }

    #[test]
    fn who_is_silent_for_a_lease_is_dead_and_who_renews_is_not() {
        let mut m = member();
        assert_eq!(judge(&mut m, 7, (0, 0)), 0, "not seen before: its lease begins now");
        assert_eq!(judge(&mut m, 7, (0, LEASE_MS - 1)), 0);
        assert_eq!(judge(&mut m, 8, (LEASE_MS, LEASE_MS)), 0, "it renewed");
        assert_eq!(judge(&mut m, 8, (LEASE_MS, 2 * LEASE_MS - 1)), 0);
        assert_eq!(judge(&mut m, 8, (2 * LEASE_MS, 2 * LEASE_MS)), 1);
        // One that was away meanwhile is observed anew.
        assert!(m.verdicts(&[], |_| None, 10_000).is_empty());
        assert_eq!(judge(&mut m, 8, (10_000, 20_000)), 0);
    }

    /// Bug: after an outage of the database of 5 s the first server back declared all others dead.
    /// Consequence: their calls in flight became `unknown`, their runs were interrupted, and each executed the others.
    /// Cause: silence was the time between two reads, whatever the observer's own renewals did meanwhile.
    #[test]
    fn silence_during_an_outage_of_the_observer_itself_counts_for_nothing() {
        for away_ms in [GAP_MS + 1, LEASE_MS, 8_000, 86_400_000] {
            let mut m = member();
            judge(&mut m, 7, (0, 4_000));
            // The store is away, or frozen: nobody's renewal comes through. This process is the first one back.
            let back_ms = 4_000 + away_ms;
            assert_eq!(judge(&mut m, 7, (back_ms, back_ms)), 0, "after {away_ms} ms");
            assert_eq!(judge(&mut m, 7, (back_ms, back_ms + LEASE_MS - 1)), 0, "its lease begins anew");
            assert_eq!(
                judge(&mut m, 7, (back_ms + LEASE_MS, back_ms + LEASE_MS)),
                1,
                "it is dead all the same"
            );
        }
        // An outage that the observer cannot notice leaves the others time: they renew as soon as it is over.
        let mut m = member();
        judge(&mut m, 7, (0, 1_000));
        assert_eq!(judge(&mut m, 7, (1_000 + GAP_MS, 1_000 + GAP_MS)), 0);
    }

    /// Bug: the first process back after an outage declared another one dead for its silence before the outage.
    /// Consequence: a process that had been cut off for a while could not renew before it was judged.
    /// Cause: silence that had been seen counted for ever, however long the observer itself was silent since.
    #[test]
    fn silence_seen_before_an_outage_is_no_verdict_after_it() {
        let mut m = member();
        judge(&mut m, 7, (0, 0));
        (0..=LEASE_MS).step_by(HEARTBEAT_MS as usize).for_each(|now_ms| renew(&mut m, now_ms));
        let others = [live(ME, 0), live(OTHER, 7)];
        assert!(m.verdicts(&others, |_| None, LEASE_MS + GAP_MS + 1).is_empty());
        assert_eq!(m.verdicts(&others, |_| None, LEASE_MS + GAP_MS).len(), 1);
    }

    #[test]
    fn reads_alone_show_no_silence() {
        let mut m = member();
        for now_ms in (0..60_000).step_by(500) {
            assert!(
                m.verdicts(&[live(OTHER, 3)], |_| None, now_ms).is_empty(),
                "commits may hang for everybody"
            );
        }
    }

    #[test]
    fn what_is_certain_needs_no_lease() {
        for (known, wanted) in [(Some(true), 1), (Some(false), 0), (None, 0)] {
            let verdicts = member().verdicts(&[live(OTHER, 3)], |_| known, 100_000);
            assert_eq!(verdicts.len(), wanted, "{known:?}");
            assert!(verdicts.iter().all(|v| (v.instance, v.heartbeat_seen, v.left) == (OTHER, 3, false)));
        }
    }

    /// Bug: two machines cloned from one memory image, on one PostgreSQL store, declared each other's processes dead.
    /// Consequence: the twin's calls became `unknown` and its runs were taken over while it worked.
    /// Cause: boot id, host and pid namespace are equal there, and a pid that is free here was believed at once.
    #[test]
    fn on_a_shared_store_what_is_certain_only_shortens_the_wait() {
        let wait_ms = |known: Option<bool>| {
            let mut m = Membership::new(true);
            m.registered(ME, 0);
            (0..20_000).step_by(500).find(|now_ms| {
                renew(&mut m, *now_ms);
                !m.verdicts(&[live(OTHER, 3)], |_| known, *now_ms).is_empty()
            })
        };
        assert_eq!(wait_ms(Some(true)), Some(GONE_MS));
        let lease_ms = Lease::BETWEEN_HOSTS.length_ms;
        assert_eq!(wait_ms(None), Some(lease_ms));
        assert_eq!(wait_ms(Some(false)), Some(lease_ms), "a twin of it may live here");
    }

    /// Bug: a process that was cut off from a shared store acted for its runs until the moment of its verdict.
    /// Consequence: what it did last stood beside what its successor did first.
    /// Cause: one duration was both the time that others wait and the time that the process itself goes on.
    #[test]
    fn on_a_shared_store_a_process_has_stopped_long_before_others_declare_it_dead() {
        let (mut m, mut other) = (Membership::new(true), Membership::new(true));
        m.registered(ME, 0);
        other.registered(OTHER, 0);
        m.renewal(Vec::new(), 2, 1).unwrap();
        let mut stopped_ms = None;
        for now_ms in (0..60_000).step_by(500) {
            renew(&mut other, now_ms);
            let is_dead = !other.verdicts(&[live(ME, 0)], |_| None, now_ms).is_empty();
            assert!(!is_dead || stopped_ms.is_some());
            if !m.may_open(now_ms) {
                stopped_ms = stopped_ms.or(Some(now_ms));
            }
            if is_dead {
                assert_eq!((stopped_ms, now_ms), (Some(8_000), 15_000));
                return;
            }
        }
        panic!("never declared dead");
    }

    #[test]
    fn a_renewal_whose_answer_is_lost_is_sent_again_with_the_same_heartbeat() {
        let mut m = member();
        let first = m.renewal(Vec::new(), 20, 1_000).unwrap();
        assert_eq!((first.own.clone(), first.next), (vec![0], 10));
        let again = m.renewal(Vec::new(), 40, 2_000).unwrap();
        assert_eq!((again.own, again.next), (first.own, first.next), "the first one may have been written");
        m.renewed(10, 3_000);
        m.renewed(10, 3_001);
        let next = m.renewal(Vec::new(), 60, 4_000).unwrap();
        assert_eq!((next.own, next.next), (vec![0, 10], 30));
        (0..20).for_each(|n| renew(&mut m, 5_000 + n));
        assert_eq!(m.renewal(Vec::new(), 0, 6_000).unwrap().own.len(), OWN);
    }

    /// Bug: a process that could not renew went on opening work.
    /// Consequence: it acted for a run that another process had taken over, for as long as its store was away.
    /// Cause: a failed renewal was a warning in the log.
    #[test]
    fn who_cannot_renew_for_a_lease_opens_nothing_until_it_can() {
        let mut m = member();
        assert!(m.may_open(60_000), "it was not asked to renew");
        renew(&mut m, 60_000);
        let waits = m.renewal(Vec::new(), 2, 61_000).unwrap();
        assert!(m.may_open(60_000 + LEASE_MS - 1));
        assert!(!m.may_open(60_000 + LEASE_MS), "others count from the last renewal that was written");
        m.renewed(waits.next, 90_000);
        assert!(m.may_open(90_000));
        // What was written may be as old as its first submission.
        m.renewal(Vec::new(), 4, 90_500);
        assert!(!m.may_open(90_500));
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

    /// Bug: of two commits in doubt, one after the other, only the later instance was declared left.
    /// Consequence: a call of the earlier one stayed open for as long as the process lived, and whoever joined it waited.
    /// Cause: the process remembered one abandoned instance, and the second took the place of the first.
    #[test]
    fn each_instance_that_a_commit_in_doubt_ended_is_declared_left() {
        let mut m = member();
        m.failed(ME, &in_doubt());
        m.registered(OTHER, 10);
        m.failed(OTHER, &in_doubt());
        m.registered(InstanceNo(3), 20);
        let left = |gone: &[InstanceNo], m: &mut Membership| {
            let life = |no| if gone.contains(&no) { Life::Left } else { Life::Live };
            let goodbye = m.farewell(|no| Ok::<_, ()>(Some(row(no, 5, life(no))))).unwrap();
            goodbye.map(|goodbye| goodbye.instance)
        };
        assert_eq!(left(&[], &mut m), Some(ME));
        assert_eq!(left(&[ME], &mut m), Some(OTHER));
        assert_eq!(left(&[ME, OTHER], &mut m), None);
    }

    #[test]
    fn a_probe_sees_whether_the_store_takes_heartbeats() {
        let mut m = member();
        assert!(m.is_writing(LEASE_MS - 1) && !m.is_writing(LEASE_MS));
        renew(&mut m, 4_000);
        m.failed(ME, &store::Error::Closed);
        assert!(m.is_writing(4_000 + LEASE_MS - 1) && !m.is_writing(4_000 + LEASE_MS));
    }

    #[test]
    fn an_inquest_ends_when_all_have_renewed_or_a_lease_is_over() {
        let unknown = |_: &Identity| None;
        let mut m = member();
        let fresh =
            |m: &Membership, who, known: Option<bool>| Inquest::new(0).is_over(m, &[live(who, 0)], |_| known);
        assert!(fresh(&m, ME, None), "nobody to wait for");
        assert!(fresh(&m, OTHER, Some(false)), "it certainly lives");
        let mut i = Inquest::new(0);
        assert!(!i.is_over(&m, &[live(OTHER, 4)], unknown));
        assert!(i.is_over(&m, &[live(OTHER, 5)], unknown));
        let enough_ms = LEASE_MS + 2 * HEARTBEAT_MS;
        judge(&mut m, 4, (0, enough_ms));
        assert!(!i.is_over(&m, &[live(OTHER, 4)], unknown));
        renew(&mut m, enough_ms + 1);
        assert!(i.is_over(&m, &[live(OTHER, 4)], unknown));
        // Time without contact is no time.
        renew(&mut m, 60_000);
        assert!(!i.is_over(&m, &[live(OTHER, 4)], unknown));
        let mut shared = Membership::new(true);
        shared.registered(ME, 0);
        assert!(!fresh(&shared, OTHER, Some(false)) && !fresh(&shared, OTHER, Some(true)));
    }
}
