//! Limit on the calls that are in flight to one upstream at once, over all runs of this server, or this server's share of
//! the limit.

use std::{collections::HashMap, sync::Arc};

use outlast_core::call::{rates::Parts, shares::Part};
use parking_lot::Mutex;
use tokio::sync::Notify;

/// Gates of all upstreams, by name: the number of calls in flight to each.
#[derive(Default)]
pub struct Gates {
    gates: Mutex<HashMap<String, Arc<Gate>>>,
    /// Parts of the limits that this process may use; `None`: it may use the limits whole.
    parts: Mutex<Option<Arc<Parts>>>,
}

#[derive(Default)]
struct Gate {
    inside: Mutex<usize>,
    /// Notified for each place that becomes free. Calls are woken in the order in which they came.
    freed: Notify,
}

/// Place of one call among those in flight to an upstream. Dropping it frees the place.
pub struct Inside(Arc<Gate>);

impl Gates {
    /// Waits until fewer than `limit` calls are in flight to `upstream`, and takes a place. `None`: no limit.
    ///
    /// All calls in flight count, also those that were let in under another limit.
    pub async fn enter(&self, upstream: &str, limit: Option<usize>) -> Inside {
        let gate = self.gate(upstream);
        loop {
            // Created before the count is read: a place that is freed between the two is not missed.
            let freed = gate.freed.notified();
            {
                let mut inside = gate.inside.lock();
                let limit = limit.map(|limit| limit.min(self.part(upstream)));
                if limit.is_none_or(|limit| *inside < limit) {
                    *inside += 1;
                    break;
                }
            }
            freed.await;
        }
        Inside(gate)
    }

    /// Lets this process have no more calls in flight than these parts of the upstreams' limits, from now on.
    pub fn share(&self, parts: Arc<Parts>) {
        *self.parts.lock() = Some(parts);
        self.gates.lock().values().for_each(|gate| gate.freed.notify_waiters());
    }

    /// Returns the number of calls in flight to `upstream`.
    pub fn inside(&self, upstream: &str) -> usize {
        *self.gate(upstream).inside.lock()
    }

    fn gate(&self, upstream: &str) -> Arc<Gate> {
        let mut gates = self.gates.lock();
        match gates.get(upstream) {
            Some(gate) => gate.clone(),
            None => gates.entry(upstream.to_owned()).or_default().clone(),
        }
    }

    /// Returns the number of calls in flight to `upstream` that this process may have.
    fn part(&self, upstream: &str) -> usize {
        let parts = self.parts.lock();
        let Some(parts) = parts.as_ref() else { return usize::MAX };
        let Part { now, .. } = parts.get(upstream).copied().unwrap_or_default();
        usize::try_from(now.calls.unwrap_or(0)).unwrap_or(usize::MAX)
    }
}

impl Drop for Inside {
    fn drop(&mut self) {
        let mut inside = self.0.inside.lock();
        *inside = inside.saturating_sub(1);
        drop(inside);
        self.0.freed.notify_one();
    }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt as _;
    use outlast_core::call::shares::Pace;

    use super::*;

    #[tokio::test]
    async fn no_more_are_inside_than_the_limit_and_who_leaves_lets_the_next_in() {
        let gates = Gates::default();
        let first = gates.enter("a", Some(2)).await;
        let second = gates.enter("a", Some(2)).await;
        let third = gates.enter("a", Some(2));
        let mut third = Box::pin(third);
        assert!((&mut third).now_or_never().is_none());
        // Another upstream has its own gate, and without a limit a call enters at once.
        assert!(gates.enter("b", Some(1)).now_or_never().is_some());
        let beyond = gates.enter("a", None).now_or_never().unwrap();
        drop(first);
        assert!((&mut third).now_or_never().is_none(), "two are inside still");
        drop(second);
        assert!((&mut third).now_or_never().is_some());
        drop(beyond);
    }

    #[tokio::test]
    async fn a_server_keeps_to_its_share_of_a_limit_and_goes_on_when_the_share_grows() {
        let gates = Gates::default();
        let share = |calls| {
            let now = Pace { calls: Some(calls), ..Pace::default() };
            gates.share(Arc::new([("a".into(), Part { now, full: now })].into()));
        };
        share(1);
        let first = gates.enter("a", Some(4)).now_or_never().unwrap();
        let mut second = Box::pin(gates.enter("a", Some(4)));
        assert!((&mut second).now_or_never().is_none());
        assert!(gates.enter("b", Some(4)).now_or_never().is_none(), "no share of this one yet");
        assert!(gates.enter("b", None).now_or_never().is_some());
        share(2);
        let second = (&mut second).now_or_never().unwrap();
        share(1);
        drop(first);
        let mut third = Box::pin(gates.enter("a", Some(4)));
        assert!((&mut third).now_or_never().is_none(), "the second is inside still");
        assert_eq!(gates.inside("a"), 1);
        drop(second);
        assert!((&mut third).now_or_never().is_some());
    }
}
