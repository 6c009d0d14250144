//! The LLM proxy: byte-faithful, budgeted, journaled, replaying. Its rules: ARCHITECTURE.md, "The proxy".
//!
//! A request is read into a [`call::Call`], its connection is driven by [`drive`], the answer of a
//! new call is carried by [`live`]. All decisions are in the core: the engine and the call machine.

pub(crate) mod by_model;
pub(crate) mod call;
pub(crate) mod config;
pub(crate) mod drive;
pub(crate) mod gates;
pub(crate) mod host;
pub(crate) mod inbox;
pub(crate) mod kept;
pub(crate) mod live;
pub(crate) mod log;
pub(crate) mod named;
pub(crate) mod pattern;
pub(crate) mod prices;
pub(crate) mod record;
pub(crate) mod registry;
pub(crate) mod remembered;
pub(crate) mod rules;
pub(crate) mod seat;
pub(crate) mod seated;
pub(crate) mod sleep;
pub(crate) mod upstream;
