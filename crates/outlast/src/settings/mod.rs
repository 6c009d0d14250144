//! Settings from files and variables: keys, prices, budgets, policies and upstreams.

pub(crate) mod budgets;
pub mod env_file;
pub mod file;
pub mod flags;
pub mod keys;
pub(crate) mod masks;
pub mod no_proxy;
pub mod policies;
pub mod prices;
pub mod store_address;
pub mod surroundings;
pub mod trust;
pub(crate) mod upstreams;
pub mod values;
