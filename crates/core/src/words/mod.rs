//! Words shared by every other module: ids, times, sizes, money, digests.

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
