//! Words shared by every other module: ids, times, sizes, money, digests. Its types are named at this door, not by
//! the files that hold them.

pub mod bad;
pub mod blob;
pub mod calendar;
pub mod class;
pub mod clock;
pub mod digest;
pub mod duration;
pub mod id;
pub mod members;
pub mod money;
pub mod named;
pub mod outage;
pub mod row;
pub mod size;
pub mod usage;

use std::collections::HashMap;

pub use bad::BadText;
pub use blob::Blob;
pub use class::Class;
pub use clock::{Clock, Entropy, JumpFilter, ManualClock, SeededEntropy};
pub use digest::{BadHex, Digest, MatchKey, RequestDigest};
pub use id::{AttemptNo, BudgetNo, EnvelopeNo, Fence, InstanceNo, Micros, OpNo, RunId, RunNo, Seq, Slot};
pub use members::Members;
pub use money::{NanoUsd, PicoUsdPerToken};
pub use outage::{Cause, OutSince, Outage};
pub use row::{Row, Touch};
pub use usage::{ServiceTier, Usage};

/// Map whose keys are ids that Outlast gives out. Nobody outside chooses them, so a fast hash does.
pub type Map<K, V> = HashMap<K, V, foldhash::fast::RandomState>;

/// Returns whether a value is its type's default: such a value is left out where it is stored.
pub fn is_default<T: Default + PartialEq>(value: &T) -> bool {
    *value == T::default()
}
