//! Time of a decision: the database's clock, which all servers share. Tests inject another.

use std::sync::Arc;

use outlast_core::{
    store::Error,
    words::{Clock, Micros},
};

/// Expression for the database's clock in microseconds. Read under the lock, so that time does not go back between
/// servers.
pub const NOW: &str = "(extract(epoch FROM clock_timestamp()) * 1000000)::bigint";

/// Source of `now`. An injected clock overrides the database's, which is read in either case.
#[derive(Clone)]
pub struct Time(pub Option<Arc<dyn Clock>>);

impl Time {
    /// Returns the `now` of a decision. `told` is the database's answer to `NOW`.
    pub fn now(&self, told: Option<Micros>) -> Result<Micros, Error> {
        let told =
            told.ok_or_else(|| Error::Unavailable { why: "the database did not tell its time".into() })?;
        Ok(self.0.as_ref().map_or(told, |clock| clock.now()))
    }
}
