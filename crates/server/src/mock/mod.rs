//! TODO

pub(crate) mod refusal;
