//! Reads of the state. Commands over a server make none but that of the plans: the state has clients of its own.

use outlast_core::{
    call::plan::Plan,
    reads::plans,
    state::{Committed, Item, Listed, Namespace, Position, ResumePoint},
    store::{
        Error, Which,
        state::{EventPage, EventRange, History, Reads, Scan},
    },
    words::id::Micros,
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
    fn state_scan(&self, scan: &Scan) -> Result<Vec<Item>, Error> {
        if scan.namespace != plans::NAMESPACE {
            return self.no_route(STATE);
        }
        let plans: Vec<(String, Plan)> = self.rows("plans", &[])?;
        let item = |(login, plan): (String, Plan)| {
            let value = serde_json::to_vec(&plan).map_err(|e| Error::Corrupt { what: e.to_string() })?;
            Ok(Item {
                namespace: scan.namespace.clone(),
                agent: scan.agent.clone(),
                key: login,
                version: 0,
                value: Some(value.into()),
                commit: 0,
                at: Micros(0),
                run: None,
                attempt: None,
                position: Position(0),
            })
        };
        plans.into_iter().map(item).collect()
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
