//! The store of another machine, read over its server's `/v1/rows` and changed by its routes of a person's acts.
//!
//! Commands that look at runs take a store; given this one, they print what the other machine's store has. What has no
//! route is refused by name, and nothing is kept between two looks but payloads, which never change.

mod acts;
mod download;
mod line;
mod state;

use std::{
    collections::BTreeMap,
    sync::{Mutex, PoisonError},
};

use bytes::Bytes;
use outlast_core::{
    engine::op::Op,
    envelope::{Envelope, budget::BudgetView},
    events::{self, Event, Mark, delivery::Delivery},
    journal::{Entry, Role, job::ItemRow, payload::Payload},
    run::{attempt::Attempt, instance::Instance, status::Status, token::TokenKey},
    store::{
        Durability, Error, LedgerLine, Page, RunFilter, RunView, Sought, StepRow, Store, Ticket,
        filter::ApprovalFilter,
    },
    words::id::{EnvelopeNo, InstanceNo, Micros, RunId, RunNo, Seq},
};
use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};
use serde::de::DeserializeOwned;
use serde_json::Value;

use self::line::{Line, differs, refused};
pub use self::{
    download::download,
    line::{Address, BadAddress},
};
use crate::{
    api::read::rows::{self, RunRow},
    proxy::upstream::Key,
    wire::network::Network,
};

/// Most rows that one request asks for.
const PAGE: usize = 2_000;

/// Largest size of the payloads kept because an earlier answer brought them along, in bytes; beyond it they
/// are dropped.
const KEPT: usize = 64 << 20;

/// A store behind a server. Blocks; not for async code.
pub struct Remote {
    line: Line,
    kept: Mutex<Kept>,
}

#[derive(Default)]
struct Kept {
    payloads: BTreeMap<(RunNo, i64, Seq), Bytes>,
    len: usize,
}

impl Remote {
    /// Reaches the server, and checks that its rows have the shapes that are known here.
    ///
    /// Errors: `server_unreachable`, `server_denied`, `server_differs`.
    pub fn reach(server: Address, token: Option<&Key>, network: &Network) -> Result<Remote, Error> {
        let remote = Remote { line: Line::new(server, token, network)?, kept: Mutex::default() };
        let told = remote.about()?;
        let (had, theirs) =
            (told["shapes"].as_i64().unwrap_or(0), told["version"].as_str().unwrap_or("unknown"));
        if had != rows::SHAPES {
            let why = format!(
                "its version is {theirs}, its rows have shape {had}, and {} is known here",
                rows::SHAPES
            );
            return Err(differs(remote.line.server(), &why));
        }
        Ok(remote)
    }

    fn about(&self) -> Result<Value, Error> {
        self.line.get("/v1/rows/store")?.json()
    }

    fn rows<T: DeserializeOwned>(&self, what: &str, query: &[(&str, String)]) -> Result<T, Error> {
        let mut told = self.line.get(&target(what, query))?.json()?;
        serde_json::from_value(told["rows"].take()).map_err(|e| differs(self.line.server(), &e))
    }

    /// Requests pages of at most [`PAGE`] rows until `limit` rows are read; `after` adds the parameter with
    /// which the next page begins.
    fn pages<T: DeserializeOwned>(
        &self,
        what: &str,
        query: &[(&str, String)],
        limit: usize,
        after: impl Fn(&T) -> (&'static str, String),
    ) -> Result<Vec<T>, Error> {
        let mut found: Vec<T> = Vec::new();
        while found.len() < limit {
            let wanted = PAGE.min(limit - found.len());
            let mut query = query.to_vec();
            if let Some((name, value)) = found.last().map(&after) {
                query.retain(|(had, _)| *had != name);
                query.push((name, value));
            }
            query.push(("limit", wanted.to_string()));
            let page: Vec<T> = self.rows(what, &query)?;
            let last = page.len() < wanted;
            found.extend(page);
            if last {
                break;
            }
        }
        Ok(found)
    }

    /// Error of an operation for which the server has no route.
    fn no_route<T>(&self, what: &str) -> Result<T, Error> {
        let message = format!("{} has no route for {what}", self.line.server());
        let hint = "type the command on the machine that has the store".to_owned();
        Err(refused("not_over_a_server", message, Some(hint)))
    }
}

/// Returns the path and query of a read.
fn target(what: &str, query: &[(&str, String)]) -> String {
    let plain = |text: &str| utf8_percent_encode(text, NON_ALPHANUMERIC).to_string();
    let pairs: Vec<String> = query.iter().map(|(name, value)| format!("{name}={}", plain(value))).collect();
    format!("/v1/rows/{what}?{}", pairs.join("&"))
}

/// Returns an enum value in the spelling of the stored JSON.
fn word(of: impl serde::Serialize) -> String {
    serde_json::to_value(of).ok().and_then(|value| value.as_str().map(str::to_owned)).unwrap_or_default()
}

impl Store for Remote {
    fn submit(&self, op: Op, _: Durability) -> Ticket {
        Ticket::ready(self.act(op))
    }

    fn run_no(&self, id: &RunId) -> Result<Option<RunNo>, Error> {
        self.rows("run_no", &[("id", id.to_string())])
    }

    fn run(&self, no: RunNo) -> Result<Option<RunView>, Error> {
        let found: Option<RunRow> = self.rows("run", &[("run", no.to_string())])?;
        Ok(found.map(RunView::from))
    }

    fn runs(&self, filter: &RunFilter) -> Result<Vec<RunView>, Error> {
        let mut query = vec![("jobs", filter.jobs.to_string())];
        query.extend(filter.status.map(|status| ("status", word(status))));
        query.extend(filter.before.map(|no| ("before", no.to_string())));
        query.extend(filter.command_key.clone().map(|key| ("command_key", key)));
        let next = |row: &RunRow| ("before", row.run.no.to_string());
        Ok(self.pages("runs", &query, filter.limit, next)?.into_iter().map(RunView::from).collect())
    }

    fn approvals(&self, filter: &ApprovalFilter) -> Result<Vec<Entry>, Error> {
        let mut query =
            vec![("open", filter.open.to_string()), ("limit", PAGE.min(filter.limit).to_string())];
        query.extend(filter.run.map(|no| ("run", no.to_string())));
        self.rows("approvals", &query)
    }

    fn attempts(&self, run: RunNo) -> Result<Vec<Attempt>, Error> {
        self.rows("attempts", &[("run", run.to_string())])
    }

    fn entry(&self, run: RunNo, seq: Seq) -> Result<Option<Entry>, Error> {
        self.rows("entry", &[("run", run.to_string()), ("seq", seq.0.max(0).to_string())])
    }

    fn entries(&self, run: RunNo, after: Seq, limit: usize) -> Result<Vec<Entry>, Error> {
        let query = [("run", run.to_string()), ("after", after.0.max(0).to_string())];
        self.pages("entries", &query, limit, |e: &Entry| ("after", e.seq.to_string()))
    }

    fn newest(&self, run: RunNo, sought: &Sought<'_>) -> Result<Option<Entry>, Error> {
        let mut query = vec![
            ("run", run.to_string()),
            ("kind", word(sought.kind)),
            ("key", sought.key.to_owned()),
            ("done", sought.done.to_string()),
            ("upto", sought.upto.to_string()),
        ];
        query.extend(sought.scope.map(|scope| ("scope", scope.to_owned())));
        self.rows("newest", &query)
    }

    fn payload(&self, run: RunNo, seq: Seq, role: Role) -> Result<Option<Payload>, Error> {
        let key = (run, role.code(), seq);
        let corrupt = |e: &dyn std::fmt::Display| differs(self.line.server(), e);
        let known = self.kept.lock().unwrap_or_else(PoisonError::into_inner).payloads.get(&key).cloned();
        let bytes = match known {
            Some(bytes) => Some(bytes),
            None => {
                let query =
                    [("run", run.to_string()), ("seq", seq.0.max(0).to_string()), ("role", word(role))];
                let found = rows::read_payloads(self.line.get(&target("payloads", &query))?.body);
                let found = found.ok_or_else(|| corrupt(&"payloads that are cut short"))?;
                let mut kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
                if kept.len > KEPT {
                    *kept = Kept::default();
                }
                for (at, bytes) in &found {
                    kept.len += bytes.len();
                    kept.payloads.insert((run, role.code(), *at), bytes.clone());
                }
                found.into_iter().find(|(at, _)| *at == seq).map(|(_, bytes)| bytes)
            }
        };
        bytes.map(Payload::from_bytes).transpose().map_err(|e| corrupt(&e))
    }

    fn instance(&self, no: InstanceNo) -> Result<Option<Instance>, Error> {
        self.rows("instance", &[("instance", no.to_string())])
    }

    fn now(&self) -> Result<Micros, Error> {
        let told = self.about()?;
        told["now"].as_i64().map(Micros).ok_or_else(|| differs(self.line.server(), &"no time of its store"))
    }

    fn place(&self) -> String {
        self.line.server().to_string()
    }

    fn is_shared(&self) -> bool {
        true
    }

    fn is_remote(&self) -> bool {
        true
    }

    fn statuses(&self) -> Result<Vec<(Status, i64)>, Error> {
        self.no_route("the number of runs of each status")
    }

    fn envelope(&self, _: EnvelopeNo) -> Result<Option<Envelope>, Error> {
        self.no_route("an envelope's row")
    }

    fn budgets(&self) -> Result<Vec<BudgetView>, Error> {
        self.rows("budgets", &[])
    }

    fn items(&self, run: RunNo, page: &Page) -> Result<Vec<(ItemRow, Option<Payload>)>, Error> {
        if page.values {
            return self.no_route("the items of a job with their values");
        }
        let query = [
            ("run", run.to_string()),
            ("after", page.after.0.max(0).to_string()),
            ("upto", page.upto.to_string()),
        ];
        let found =
            self.pages("items", &query, page.limit, |row: &ItemRow| ("after", row.seq.to_string()))?;
        Ok(found.into_iter().map(|row| (row, None)).collect())
    }

    fn steps(&self, _: RunNo, _: Seq, _: usize) -> Result<Vec<(StepRow, Option<Payload>)>, Error> {
        self.no_route("the rows of steps")
    }

    fn newest_request(&self, _: RunNo) -> Result<Option<Seq>, Error> {
        self.no_route("the newest stored request")
    }

    fn events(&self, _: &events::EventQuery) -> Result<Vec<Event>, Error> {
        self.no_route("the rows of events")
    }

    fn newest_event(&self) -> Result<Mark, Error> {
        self.no_route("the newest event's row")
    }

    fn deliveries(&self) -> Result<Vec<Delivery>, Error> {
        self.no_route("the standing of deliveries")
    }

    fn live_instances(&self) -> Result<Vec<Instance>, Error> {
        self.no_route("the live processes")
    }

    fn ledger(&self, since: Micros, until: Micros) -> Result<Vec<LedgerLine>, Error> {
        self.rows("ledger", &[("since", since.0.max(0).to_string()), ("until", until.0.max(0).to_string())])
    }

    fn token_keys(&self) -> Result<Vec<TokenKey>, Error> {
        self.no_route("the keys that sign run tokens")
    }
}
