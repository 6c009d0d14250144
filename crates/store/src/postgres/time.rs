//! A decision's `now`: the database's clock, which all servers share. Tests inject another.

use std::sync::Arc;

use outlast_core::{
    store::Error,
    words::{clock::Clock, id::Micros},
};

/// The microseconds of the database's clock: read under the lock, so that they do not go back
/// between servers.
pub const NOW: &str = "SELECT (extract(epoch FROM clock_timestamp()) * 1000000)::bigint";

/// The source of `now`. A clock within overrules the database's, which is asked either way.
#[derive(Clone)]
pub struct Time(pub Option<Arc<dyn Clock>>);

impl Time {
    /// The decision's `now`, where the database answered `NOW` with `told`.
    pub fn now(&self, told: Option<Micros>) -> Result<Micros, Error> {
        let told =
            told.ok_or_else(|| Error::Unavailable { why: "the database did not tell its time".into() })?;
        Ok(self.0.as_ref().map_or(told, |clock| clock.now()))
    }
}
