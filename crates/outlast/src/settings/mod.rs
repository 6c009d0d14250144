//! Settings: files, variables, and what they say of keys, prices, budgets, policies and upstreams.

pub(crate) mod budgets;
pub mod config;
pub mod file;
pub mod keys;
pub(crate) mod masks;
pub mod place;
pub mod policies;
pub mod prices;
pub mod surroundings;
pub(crate) mod upstreams;
