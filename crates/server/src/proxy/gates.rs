//! Limit on the calls that are in flight to one upstream at once, over all runs of this server.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use tokio::sync::Notify;

/// Gates of all upstreams, by name: the number of calls in flight to each.
#[derive(Default)]
pub struct Gates(Mutex<HashMap<String, Arc<Gate>>>);

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
        let gate = {
            let mut gates = lock(&self.0);
            match gates.get(upstream) {
                Some(gate) => gate.clone(),
                None => gates.entry(upstream.to_owned()).or_default().clone(),
            }
        };
        loop {
            // Created before the count is read: a place that is freed between the two is not missed.
            let freed = gate.freed.notified();
            {
                let mut inside = lock(&gate.inside);
                if limit.is_none_or(|limit| *inside < limit) {
                    *inside += 1;
                    break;
                }
            }
            freed.await;
        }
        Inside(gate)
    }
}

impl Drop for Inside {
    fn drop(&mut self) {
        let mut inside = lock(&self.0.inside);
        *inside = inside.saturating_sub(1);
        drop(inside);
        self.0.freed.notify_one();
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt as _;

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
}
