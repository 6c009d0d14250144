//! The LLM proxy: admission, upstream, settlement and replay of calls.

pub(crate) mod by_model;
pub(crate) mod call;
pub(crate) mod drive;
pub(crate) mod gates;
pub(crate) mod host;
pub(crate) mod kept;
pub(crate) mod live;
pub(crate) mod named;
pub(crate) mod prices;
pub(crate) mod rates;
pub(crate) mod record;
pub(crate) mod registry;
pub(crate) mod remembered;
pub(crate) mod rules;
pub(crate) mod seat;
pub(crate) mod sleep;
pub(crate) mod unrecorded;
pub(crate) mod upstream;
