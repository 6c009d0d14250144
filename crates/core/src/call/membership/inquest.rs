//! Wait for the verdicts on all who may be dead.

use std::collections::HashMap;

use super::{HEARTBEAT_MS, Membership};
use crate::{
    run::{Identity, Instance},
    words::InstanceNo,
};

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
            || observer.contact.watched_ms(self.began_ms) > observer.lease.length_ms + 2 * HEARTBEAT_MS
    }
}
