//! Words that every noun is told in: ids, times, sizes, money, digests.

pub mod calendar;
pub mod clock;
pub mod digest;
pub mod duration;
pub mod id;
pub mod money;
pub mod size;
pub mod usage;
