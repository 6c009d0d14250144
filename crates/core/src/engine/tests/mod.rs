//! Tests over several verbs, and the bench that they and the verbs' own tests stand on.

pub(crate) mod bench;
mod properties;
mod regressions;
