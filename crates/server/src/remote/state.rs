//! Reads of the state, which commands over a server do not make: the state has clients of its own.

use outlast_core::{
    state::{Committed, Item, Listed, Namespace, Position, ResumePoint},
    store::{
        Error, Which,
        state::{EventPage, EventRange, History, Reads, Scan},
    },
};

use super::Remote;

const STATE: &str = "these reads of the state (see /v1/state)";

impl Reads for Remote {
    fn state(&self, _: &str, _: &str, _: &str) -> Result<Option<Item>, Error> {
        self.no_route(STATE)
    }
    fn state_at(&self, _: &str, _: &str, _: &str, _: Which) -> Result<Option<Item>, Error> {
        self.no_route(STATE)
    }
    fn state_history(&self, _: &str, _: &str, _: &str, _: i64, _: usize) -> Result<History, Error> {
        self.no_route(STATE)
    }
    fn state_keys(&self, _: &Scan) -> Result<Vec<Listed>, Error> {
        self.no_route(STATE)
    }
    fn state_scan(&self, _: &Scan) -> Result<Vec<Item>, Error> {
        self.no_route(STATE)
    }
    fn state_events(&self, _: &EventRange) -> Result<EventPage, Error> {
        self.no_route(STATE)
    }
    fn resume_point(&self, _: &str, _: &str, _: &str) -> Result<ResumePoint, Error> {
        self.no_route(STATE)
    }
    fn state_position(&self) -> Result<Position, Error> {
        self.no_route(STATE)
    }
    fn namespace(&self, _: &str) -> Result<Option<Namespace>, Error> {
        self.no_route(STATE)
    }
    fn namespaces(&self, _: Option<&str>, _: usize) -> Result<Vec<Namespace>, Error> {
        self.no_route(STATE)
    }
    fn agents(&self, _: &str, _: Option<&str>, _: usize) -> Result<Vec<String>, Error> {
        self.no_route(STATE)
    }
    fn transaction_outcome(&self, _: &str) -> Result<Option<Committed>, Error> {
        self.no_route(STATE)
    }
}
