//! Whether a resumed session still has what its model had read.
//!
//! A session's file may be whole, and its program load less of it. So the first request of a resumed attempt is held
//! against the last one recorded before it.

use std::{
    collections::{HashMap, HashSet},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    time::Duration,
};

use outlast_core::{
    body,
    journal::{Entry, Kind},
    store::{self, Store},
    words::id::{AttemptNo, RunNo},
};
use outlast_server::dialect::conversation;
use serde_json::Value;

use super::truth::{self, InFlight};
use crate::{program::say::say, render};

/// Number of newest calls of earlier attempts whose requests are read.
const CALLS: usize = 8;

/// Interval at which the first request is looked for.
const EVERY: Duration = Duration::from_secs(3);

/// Names of the tools that a request offers. An agent and its sub-agents offer different ones.
type Tools = Vec<String>;

/// Requirements on a resumed attempt's first request.
pub struct Resumption {
    run: RunNo,
    attempt: AttemptNo,
    session: Option<String>,
    /// Ids of the calls whose results the newest request with these tools had.
    had: HashMap<Tools, HashSet<String>>,
    compared: AtomicBool,
}

impl Resumption {
    /// Reads what the requests before `attempt` had, in this session where they name it.
    pub fn before(
        store: &dyn Store,
        (run, attempt): (RunNo, AttemptNo),
        session: Option<&str>,
    ) -> Result<Resumption, store::Error> {
        let session = session.map(str::to_owned);
        let mut before =
            Resumption { run, attempt, session, had: HashMap::new(), compared: AtomicBool::new(false) };
        let entries = truth::newest_entries(store, run)?;
        for entry in entries.iter().rev().filter(|e| e.kind == Kind::Call && e.attempt < attempt).take(CALLS)
        {
            if let Some((tools, results)) = before.request(store, entry)? {
                before.had.entry(tools).or_insert(results);
            }
        }
        Ok(before)
    }

    /// Takes note of calls that the model is told of: it does not need their results.
    pub fn told(&mut self, calls: &[InFlight]) {
        for had in self.had.values_mut() {
            had.retain(|id| calls.iter().all(|call| call.id != *id));
        }
    }

    /// Says once how many results the first request has lost. Returns whether there is such a request.
    pub fn tell(&self, store: &dyn Store, agent: &str) -> Result<bool, store::Error> {
        if self.compared.load(Relaxed) {
            return Ok(true);
        }
        let Some(lost) = self.lost(store)? else { return Ok(false) };
        if !self.compared.swap(true, Relaxed) && lost > 0 {
            let results = render::amount::some(lost as i64, "tool result");
            say(&format!(
                "{agent} went on without {results} that its model had read: tell it what `outlast show` says"
            ));
        }
        Ok(true)
    }

    /// Looks for the first request until it is there. An error is met again at the attempt's end.
    pub async fn follow(self: Arc<Self>, store: Arc<dyn Store>, agent: String) {
        while !self.tell(store.as_ref(), &agent).unwrap_or_default() {
            tokio::time::sleep(EVERY).await;
        }
    }

    /// Counts the results that the attempt's first request has lost; `None` as long as there is none to compare.
    fn lost(&self, store: &dyn Store) -> Result<Option<usize>, store::Error> {
        let entries = truth::newest_entries(store, self.run)?;
        let is_its = |e: &&Entry| {
            e.kind == Kind::Call && (e.attempt == self.attempt || e.delivered_to == Some(self.attempt))
        };
        for entry in entries.iter().filter(is_its) {
            if let Some(lost) = self.request(store, entry)?.and_then(|request| self.lost_by(&request)) {
                return Ok(Some(lost));
            }
        }
        Ok(None)
    }

    /// Counts the results that a request has lost; `None` if no request before it had its tools.
    fn lost_by(&self, (tools, results): &(Tools, HashSet<String>)) -> Option<usize> {
        Some(self.had.get(tools)?.difference(results).count())
    }

    /// Reads the tools and the results of a request; `None` if it is not kept, is another session's, or has no tools:
    /// titles and the like are asked so.
    fn request(
        &self,
        store: &dyn Store,
        entry: &Entry,
    ) -> Result<Option<(Tools, HashSet<String>)>, store::Error> {
        let Some(body) = body::stored(store, self.run, entry.seq)? else { return Ok(None) };
        let text = String::from_utf8_lossy(&body);
        if self.session.as_ref().is_some_and(|session| !text.contains(session.as_str())) {
            return Ok(None);
        }
        Ok(read(&body))
    }
}

fn read(body: &[u8]) -> Option<(Tools, HashSet<String>)> {
    let request: Value = serde_json::from_slice(body).ok()?;
    let tools = conversation::tools(&request);
    let results = conversation::request(&request);
    let ids = results.iter().flat_map(|turn| turn.results()).flat_map(|result| result.ids.clone()).collect();
    (!tools.is_empty()).then_some((tools, ids))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_is_known_by_its_tools_and_has_the_results_that_it_gives() {
        let body = br#"{"tools":[{"name":"Bash"},{"type":"function","function":{"name":"look"}}],
            "messages":[{"role":"user","content":[{"type":"tool_result","tool_use_id":"t1","content":"x"}]}]}"#;
        let (tools, results) = read(body).unwrap();
        assert_eq!(tools, ["Bash", "look"]);
        assert_eq!(results, HashSet::from(["t1".to_owned()]));
        for other in ["{}", r#"{"tools":[]}"#, "no json"] {
            assert_eq!(read(other.as_bytes()), None, "{other}");
        }
    }

    #[test]
    fn a_result_is_lost_if_no_note_tells_of_it_and_the_first_request_has_it_not() {
        let ids = |ids: &[&str]| ids.iter().map(|id| (*id).to_owned()).collect::<HashSet<_>>();
        let tools = || vec!["Bash".to_owned()];
        let mut resumption = Resumption {
            run: RunNo(1),
            attempt: AttemptNo(2),
            session: None,
            had: HashMap::from([(tools(), ids(&["t1", "t2", "t3"]))]),
            compared: AtomicBool::new(false),
        };
        resumption.told(&[InFlight {
            id: "t3".into(),
            name: "Bash".into(),
            input: "{}".into(),
            asked_at: outlast_core::words::id::Micros(0),
            outcome: truth::Outcome::Unknown,
            lost: None,
        }]);
        assert_eq!(resumption.lost_by(&(tools(), ids(&["t1", "t2"]))), Some(0));
        assert_eq!(resumption.lost_by(&(tools(), ids(&["t2", "t9"]))), Some(1));
        assert_eq!(resumption.lost_by(&(vec!["look".to_owned()], ids(&[]))), None, "a sub-agent's");
    }
}
