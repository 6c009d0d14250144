//! Reads of the state. Commands over a server make none but those of plans and of snapshots: the state has clients of its
//! own.

use outlast_core::{
    call::plan::Plan,
    run::snapshot,
    state::{Committed, Item, Listed, Namespace, Position, ResumePoint, own::Table},
    store::{
        Error, Which,
        state::{EventPage, EventRange, History, Reads, Scan},
    },
    words::id::Micros,
};

use serde::Serialize;

use super::Remote;

/// Returns an item that has nothing but its value.
fn item(namespace: &str, agent: &str, key: &str, value: &impl Serialize) -> Result<Item, Error> {
    let value = serde_json::to_vec(value).map_err(|e| Error::Corrupt { what: e.to_string() })?;
    Ok(Item {
        namespace: namespace.to_owned(),
        agent: agent.to_owned(),
        key: key.to_owned(),
        version: 0,
        value: Some(value.into()),
        commit: 0,
        at: Micros(0),
        run: None,
        attempt: None,
        position: Position(0),
    })
}

const STATE: &str = "these reads of the state (see /v1/state)";

impl Reads for Remote {
    fn state(&self, namespace: &str, agent: &str, key: &str) -> Result<Option<Item>, Error> {
        let Some(run) = snapshot::run_of(namespace).filter(|_| agent == snapshot::AGENT) else {
            return self.no_route(STATE);
        };
        let query = [("id", run.to_owned()), ("key", key.to_owned())];
        let found: Option<snapshot::Kept> = self.rows("snapshot", &query)?;
        found.map(|kept| item(namespace, agent, key, &kept)).transpose()
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
        if scan.namespace != Table::Plans.namespace() {
            return self.no_route(STATE);
        }
        let plans: Vec<(String, Plan)> = self.rows("plans", &[])?;
        plans.iter().map(|(login, plan)| item(&scan.namespace, &scan.agent, login, plan)).collect()
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
