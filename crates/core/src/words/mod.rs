//! Words shared by every other module: ids, times, sizes, money, digests. Its types are named at this door, not by
//! the files that hold them.

pub mod blob;
pub mod calendar;
pub mod class;
pub mod clock;
pub mod digest;
pub mod duration;
pub mod id;
pub mod map;
pub mod money;
pub mod named;
pub mod outage;
pub mod row;
pub mod size;
pub mod usage;

pub use blob::Blob;
pub use class::Class;
pub use clock::{Clock, Entropy, JumpFilter, ManualClock, SeededEntropy};
pub use digest::{BadHex, Digest, MatchKey, RequestDigest};
pub use id::{
    AttemptNo, BadRunId, BudgetNo, EnvelopeNo, Fence, InstanceNo, Micros, OpNo, RunId, RunNo, Seq, Slot,
};
pub use map::Map;
pub use money::{BadAmount, NanoUsd, PicoUsdPerToken};
pub use outage::{Cause, Outage};
pub use row::{Row, Touch};
pub use usage::{ServiceTier, Usage};
