//! Throttle: tells a stray refusal from a full quota, and paces calls under a full one.
//!
//! A provider that answers 429 now and then has room: the refused call waits, and no other. Under a full quota much of
//! what is sent is refused, so the share of refusals in a window of time tells the two apart. Calls are then spaced at
//! the rate at which the provider took them, which grows window by window until refusals set it anew (additive increase,
//! multiplicative decrease). While a provider takes nothing, nobody asks before the time that it named. Pure: the time is
//! passed in, in milliseconds from any start.

/// Share of refusals in a window from which a quota is taken for full, or a pace for too fast.
const FULL: f64 = 0.3;

/// Least time of a window in milliseconds.
const WINDOW_MS: u64 = 1_000;

/// Number of calls for which a window with refusals lasts, but not for longer than `LONGEST_MS`. Of fewer calls none is found
/// full.
const FEW: u64 = 20;
const LONGEST_MS: u64 = 60_000;

/// Number of refusals, with nothing taken in the window, after which nobody asks for a while.
const CLOSES: u64 = 5;

/// Rate with which a pace begins, as a part of the rate at which calls were taken: refusals correct what is too fast, and
/// nothing corrects a pace that leaves a quota unused.
const BEGIN: f64 = 1.3;

/// Growth of a pace in the first window without a full quota, as a part of what it began with; twice that in the second one,
/// and so on.
const GROWTH: f64 = 0.5;

/// Least part of a pace that a window with too many refusals leaves: of several processes one may meet all refusals.
const LEAST: f64 = 0.7;

/// Number of windows without a full quota after which calls are not paced any more.
const CALM: u32 = 5;

/// Throttle of calls that share a provider's quota. See the module.
#[derive(Debug, Default)]
pub struct Throttle {
    window: Window,
    pace: Option<Pace>,
    /// Time before which nobody asks, because nothing is taken.
    closed_until_ms: u64,
}

/// Calls that left within a span of time.
#[derive(Debug, Default)]
struct Window {
    began_ms: u64,
    sent: u64,
    refused: u64,
}

/// Pace of calls under a full quota.
#[derive(Debug)]
struct Pace {
    /// Calls per millisecond that the provider took when the quota was found full.
    begun: f64,
    /// Calls per millisecond that may go now.
    rate: f64,
    next_at_ms: f64,
    /// Windows since the quota was found full.
    calm: u32,
}

impl Throttle {
    /// Returns the time from which the next call may go.
    pub fn ready_at(&self) -> u64 {
        self.pace.as_ref().map_or(0, |pace| pace.next_at_ms as u64).max(self.closed_until_ms)
    }

    /// Counts a call that may go now.
    pub fn goes(&mut self, now_ms: u64) {
        if let Some(pace) = &mut self.pace {
            pace.next_at_ms = pace.next_at_ms.max(now_ms as f64) + 1.0 / pace.rate;
        }
    }

    /// Uncounts a call that did not leave.
    pub fn take_back(&mut self) {
        if let Some(pace) = &mut self.pace {
            pace.next_at_ms -= 1.0 / pace.rate;
        }
    }

    /// Notes that a call leaves.
    pub fn leaves(&mut self, now_ms: u64) {
        self.end_window(now_ms);
        self.window.sent += 1;
    }

    /// Notes that the call that left at `left_ms` was refused, and asked to wait for `wait_ms`; 0 where no time is named.
    pub fn refused(&mut self, left_ms: u64, wait_ms: u64, now_ms: u64) {
        // What left before says nothing of the pace that holds now.
        if left_ms < self.window.began_ms {
            return;
        }
        self.window.refused += 1;
        if self.window.refused >= CLOSES && self.window.refused == self.window.sent {
            self.closed_until_ms = now_ms + if wait_ms == 0 { WINDOW_MS } else { wait_ms };
            self.window = Window { began_ms: self.closed_until_ms, ..Window::default() };
        }
    }

    /// Sets the pace by what became of the window's calls, if it is over.
    fn end_window(&mut self, now_ms: u64) {
        let age_ms = now_ms.saturating_sub(self.window.began_ms);
        let Window { sent, refused, .. } = self.window;
        let lasts = refused > 0 && sent < FEW && age_ms < LONGEST_MS;
        if age_ms < WINDOW_MS || lasts {
            return;
        }
        self.window = Window { began_ms: now_ms, ..Window::default() };
        // A provider refuses at once, so that what is still in flight was taken.
        let taken = sent.saturating_sub(refused).max(1) as f64 / age_ms as f64;
        let is_full = sent >= FEW && refused as f64 >= FULL * sent as f64;
        self.pace = match self.pace.take() {
            None if is_full => {
                Some(Pace { begun: taken, rate: BEGIN * taken, next_at_ms: now_ms as f64, calm: 0 })
            }
            Some(pace) if is_full => {
                let begun = taken.max(pace.rate * LEAST);
                Some(Pace { begun, rate: BEGIN * begun, calm: 0, ..pace })
            }
            Some(pace) if pace.calm < CALM => Some(Pace {
                rate: pace.rate + GROWTH * pace.begun * f64::from(pace.calm + 1),
                calm: pace.calm + 1,
                ..pace
            }),
            _ => None,
        };
    }

    /// Returns whether calls go as they come.
    pub fn is_idle(&self, now_ms: u64) -> bool {
        self.pace.is_none() && self.closed_until_ms <= now_ms
    }
}

#[cfg(test)]
mod tests {
    use std::{
        cmp::Reverse,
        collections::{BinaryHeap, VecDeque},
    };

    use super::*;

    const LATENCY_MS: u64 = 40;

    /// Provider that refuses calls, and asks them to wait for `wait_ms`.
    #[derive(Clone, Copy, Debug)]
    struct Provider {
        /// Share of calls that are refused though there is room.
        stray: f64,
        /// Bucket: calls per millisecond that flow into it, and the most that are in it.
        bucket: Option<(f64, f64)>,
        wait_ms: u64,
        seed: u64,
    }

    #[derive(Debug)]
    struct Outcome {
        took_ms: u64,
        refused: usize,
    }

    #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
    enum Step {
        Asks,
        Answered { left_ms: u64, is_refused: bool },
    }

    /// Plays `processes` of `workers` each, which do `items` in all; each has a throttle of its own, unless it is plain.
    fn play(provider: Provider, items: usize, processes: usize, workers: usize, is_plain: bool) -> Outcome {
        let mut seed = provider.seed;
        let mut chance = move || {
            seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (seed >> 33) as f64 / f64::from(1_u32 << 31)
        };
        let mut throttles: Vec<Throttle> = (0..processes).map(|_| Throttle::default()).collect();
        let mut lines: Vec<VecDeque<usize>> = vec![VecDeque::new(); processes];
        let (mut level, mut filled_at) = (provider.bucket.map_or(0.0, |(_, most)| most), 0);
        let (mut left, mut done, mut refused) = (items, 0, 0);
        let mut due: BinaryHeap<Reverse<(u64, usize, Step)>> = BinaryHeap::new();
        for worker in 0..processes * workers {
            left -= 1;
            due.push(Reverse((0, worker, Step::Asks)));
        }
        while let Some(Reverse((now, worker, step))) = due.pop() {
            let of = worker % processes;
            match step {
                Step::Asks => {
                    let ready = if is_plain { 0 } else { throttles[of].ready_at() };
                    if ready > now || lines[of].front().is_some_and(|first| *first != worker) {
                        if !lines[of].contains(&worker) {
                            lines[of].push_back(worker);
                        }
                        // Whoever is not the first is woken by the one before.
                        if lines[of].front() == Some(&worker) {
                            due.push(Reverse((ready, worker, Step::Asks)));
                        }
                        continue;
                    }
                    if lines[of].front() == Some(&worker) {
                        lines[of].pop_front();
                        if let Some(next) = lines[of].front() {
                            due.push(Reverse((now, *next, Step::Asks)));
                        }
                    }
                    throttles[of].goes(now);
                    throttles[of].leaves(now);
                    let is_full = provider.bucket.is_some_and(|(flow, most)| {
                        level = (level + flow * (now - filled_at) as f64).min(most);
                        filled_at = now;
                        level < 1.0
                    });
                    let is_refused = is_full || chance() < provider.stray;
                    if !is_refused {
                        level -= 1.0;
                    }
                    let after = if is_refused { 5 } else { LATENCY_MS };
                    due.push(Reverse((now + after, worker, Step::Answered { left_ms: now, is_refused })));
                }
                Step::Answered { left_ms, is_refused } => {
                    if is_refused {
                        throttles[of].refused(left_ms, provider.wait_ms, now);
                        refused += 1;
                        due.push(Reverse((now + provider.wait_ms, worker, Step::Asks)));
                        continue;
                    }
                    done += 1;
                    if done == items {
                        return Outcome { took_ms: now, refused };
                    }
                    if left > 0 {
                        left -= 1;
                        due.push(Reverse((now, worker, Step::Asks)));
                    }
                }
            }
        }
        unreachable!("every item is done some time")
    }

    /// Checks that 800 calls under a throttle take at most `most` times as long as without. Returns both outcomes.
    #[track_caller]
    fn check(provider: Provider, processes: usize, workers: usize, most: f64) -> (Outcome, Outcome) {
        let (plain, paced) =
            [true, false].map(|is_plain| play(provider, 800, processes, workers, is_plain)).into();
        let said = format!("{provider:?}, {processes} of {workers}: plain {plain:?}, paced {paced:?}");
        println!("{said}");
        assert!(paced.took_ms as f64 <= most * plain.took_ms as f64, "{said}");
        (plain, paced)
    }

    const NONE: Provider = Provider { stray: 0.0, bucket: None, wait_ms: 1_000, seed: 7 };

    #[test]
    fn stray_refusals_delay_nobody_but_the_calls_that_they_hit() {
        for stray in [0.0, 0.01, 0.03, 0.1] {
            for (processes, workers, seed) in
                [(1, 16, 1), (1, 16, 2), (1, 16, 3), (1, 64, 4), (2, 8, 5), (1, 3, 6), (1, 3, 7)]
            {
                check(Provider { stray, seed, ..NONE }, processes, workers, 1.1);
            }
        }
    }

    #[test]
    fn under_a_full_quota_calls_take_no_longer_and_fewer_are_refused() {
        // Calls in a second, and the most that the bucket holds.
        for (flow, most) in [(20.0, 20.0), (10.0, 1.0), (100.0, 50.0), (20.0, 200.0), (2.0, 5.0)] {
            for (processes, workers) in [(1, 16), (1, 64), (2, 8), (2, 32)] {
                let provider = Provider { bucket: Some((flow / 1_000.0, most)), ..NONE };
                let (plain, paced) = check(provider, processes, workers, 1.1);
                assert!(paced.refused <= plain.refused, "{plain:?}, {paced:?}");
            }
        }
    }

    #[test]
    fn a_provider_that_takes_nothing_is_left_alone_for_the_time_that_it_names() {
        let mut throttle = Throttle::default();
        for left in 0..5 {
            throttle.leaves(left);
        }
        for left in 0..4 {
            throttle.refused(left, 7_000, 10);
        }
        assert_eq!(throttle.ready_at(), 0, "one may yet be taken");
        throttle.refused(4, 7_000, 10);
        assert_eq!(
            (throttle.ready_at(), throttle.is_idle(7_009), throttle.is_idle(7_010)),
            (7_010, false, true)
        );
    }

    #[test]
    fn a_call_that_did_not_leave_gives_its_place_back() {
        let pace = Pace { begun: 0.1, rate: 0.1, next_at_ms: 0.0, calm: 0 };
        let mut throttle = Throttle { pace: Some(pace), ..Throttle::default() };
        throttle.goes(100);
        throttle.goes(100);
        assert_eq!(throttle.ready_at(), 120);
        throttle.take_back();
        assert_eq!(throttle.ready_at(), 110);
    }
}
