//! Tests over several verbs, and the bench that they and the verbs' own tests use.

pub(crate) mod bench;
mod lost_openings;
mod properties;
mod regressions;
