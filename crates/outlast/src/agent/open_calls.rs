//! Tool calls of an attempt whose results its model never got.
//!
//! Agents begin a tool as soon as its call is complete, before the answer that names it has ended. So four traces
//! count: the calls in the attempt's answers, ended or under way, less those whose results it had sent back; the entries
//! that hooks opened; the processes that were left, where they name their call; and calls without a result in the session's
//! file. For a session that goes on, a result counts as sent only if its file has it.
//!
//! Also whether a resumed session still has what its model had read: a session's file may be whole, and its program load
//! less of it. So the first request of a resumed attempt is held against the last one recorded before it.

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
    engine::tool::SCOPE,
    journal::{Entry, Kind, Role, State},
    store::{self, Store},
    words::{AttemptNo, Micros, RunNo, Seq},
};
use outlast_server::{
    dialect::conversation::{self, ToolCall},
    door::StoredAnswer,
};
use serde_json::{Value, json};

use super::{
    KeptCalls, ToolProcess,
    truth::{self, InFlight, Left},
};
use crate::{program::say::say, render};

/// Number of an attempt's last calls that are searched. A tool call in flight is in the last answer, or in
/// one concurrent with it.
const CALLS: usize = 8;

/// Prefix of the journal keys of agents that a script starts (`outlast agent`): their tool entries are no tool calls.
pub const AGENT: &str = "agent:";

/// Attempt, and session within it, whose tool calls are searched for.
pub struct SearchScope<'a> {
    pub run: RunNo,
    pub attempt: AttemptNo,
    /// Session of the agent, where several agents may share the attempt; `None`: any session.
    pub session: Option<&'a str>,
    /// Tool calls that the session's file has, where one is known: a model that goes on in the session has no other
    /// results.
    pub kept: Option<&'a KeptCalls>,
    /// Bytes so far of answers that still arrive, by their calls' entries; `None` if another process's proxy gets them.
    pub so_far: Option<&'a HashMap<Seq, Vec<u8>>>,
}

impl<'a> SearchScope<'a> {
    pub fn new(run: RunNo, attempt: AttemptNo, session: Option<&'a str>) -> SearchScope<'a> {
        SearchScope { run, attempt, session, kept: None, so_far: None }
    }
}

/// Tool call of an attempt whose result was never sent to the model, or is not in the session that it goes on in.
#[derive(Debug)]
pub struct OpenToolCall {
    pub call: ToolCall,
    pub at: Micros,
    /// Result that was sent, and that the session's file has not.
    pub lost: Option<String>,
}

/// Tool calls of an attempt, as [`find`] returns them.
#[derive(Debug, Default)]
pub struct Found {
    /// Calls whose result the model did not get, the oldest first.
    pub in_flight: Vec<OpenToolCall>,
    /// Calls whose result the model got, though their tool entries are still open.
    pub answered: Vec<ToolCall>,
}

/// Finds the tool calls of an attempt that are in flight, and those whose result the model got but whose entries are
/// open. `left`: tools' processes that outlived the agent.
pub fn find(store: &dyn Store, of: &SearchScope<'_>, left: &[Left]) -> Result<Found, store::Error> {
    let entries = truth::newest_entries(store, of.run)?;
    let Answers { calls, answered, lost, newest } = answers(store, &entries, of)?;
    let mut found = Found { in_flight: calls, answered: Vec::new() };
    let is_known = |found: &Found, id: &str| found.in_flight.iter().any(|asked| asked.call.id == id);
    for entry in entries.iter().filter(|e| e.kind == Kind::Tool && &*e.scope == SCOPE) {
        let Some(id) = entry.key.as_deref().filter(|id| !id.starts_with(AGENT) && !is_known(&found, id))
        else {
            continue;
        };
        // What had ended when the agent asked again was told in that request.
        let may_be = entry.state == State::Open || entry.closed_at >= newest;
        let Some(call) = (if may_be { made(store, entry, id, of)? } else { None }) else { continue };
        match answered.contains(id) {
            false => {
                let lost = lost.get(id).cloned();
                found.in_flight.push(OpenToolCall { call, at: entry.opened_at, lost });
            }
            true if entry.state == State::Open => found.answered.push(call),
            true => {}
        }
    }
    let at = newest.or(entries.last().map(|e| e.opened_at)).unwrap_or(Micros(0));
    // The answer that named a call may be lost with its proxy. A process may be left or not, and tells less.
    let is_recorded = |id: &str| entries.iter().any(|e| e.kind == Kind::Tool && e.key.as_deref() == Some(id));
    let has_result = |kept: &KeptCalls, id: &str| kept.results.contains(id) && !kept.aborted.contains(id);
    let kept = of.kept.map(|kept| kept.calls.iter().filter(|call| !has_result(kept, &call.id)));
    for call in kept.into_iter().flatten().rev().take(CALLS) {
        if !answered.contains(&call.id) && !is_known(&found, &call.id) && !is_recorded(&call.id) {
            found.in_flight.push(OpenToolCall { call: call.clone(), at, lost: None });
        }
    }
    for process in left {
        let ToolProcess::Of(id) = &process.of else { continue };
        if !answered.contains(id) && !is_known(&found, id) {
            let input = json!({"command": process.command.trim()}).to_string();
            let call = ToolCall { id: id.clone(), name: "shell".into(), input };
            found.in_flight.push(OpenToolCall { call, at, lost: None });
        }
    }
    found.in_flight.sort_by_key(|asked| asked.at);
    Ok(found)
}

/// Returns the call of a tool entry, if this attempt and session made it.
fn made(
    store: &dyn Store,
    entry: &Entry,
    id: &str,
    of: &SearchScope<'_>,
) -> Result<Option<ToolCall>, store::Error> {
    let about = store.payload(of.run, entry.seq, Role::About)?;
    let about: Value =
        about.and_then(|kept| serde_json::from_slice(&kept.decode().ok()?).ok()).unwrap_or_default();
    // An older version gave an entry to the attempt that closed it: only the description says whose call it is.
    let attempt = about["attempt"].as_i64().map_or(entry.attempt, AttemptNo);
    let is_others = about["session"].as_str().zip(of.session).is_some_and(|(its, sought)| its != sought);
    if attempt != of.attempt || is_others {
        return Ok(None);
    }
    let text = |name: &str| about[name].as_str().unwrap_or_default().to_owned();
    let input = match about["shell"] == true {
        true => json!({"command": text("input")}).to_string(),
        false => text("input"),
    };
    Ok(Some(ToolCall { id: id.to_owned(), name: text("tool"), input }))
}

/// Tool calls that an attempt's last answers asked for, and the results that its requests gave.
#[derive(Default)]
struct Answers {
    calls: Vec<OpenToolCall>,
    answered: HashSet<String>,
    /// Results that the session's file has not, by their calls.
    lost: HashMap<String, String>,
    /// Time of the newest request; `None` if there is none.
    newest: Option<Micros>,
}

impl Answers {
    /// Reads the results in a request. Those that the session's file has not are lost: an agent may have sent a result to
    /// its model, and die before it is on disk.
    fn read_results(&mut self, body: &[u8], kept: Option<&KeptCalls>) {
        let given = conversation::results(body);
        // A sub-agent's conversation is in a file of its own: nothing of it is in this one.
        let kept = kept.map(|kept| &kept.results);
        let is_in =
            |kept: &HashSet<String>| given.iter().flat_map(|result| &result.ids).any(|id| kept.contains(id));
        let kept = kept.filter(|kept| kept.is_empty() || is_in(kept));
        for result in given {
            for id in result.ids {
                if kept.is_none_or(|kept| kept.contains(&id)) {
                    self.answered.insert(id);
                } else {
                    self.lost.entry(id).or_insert_with(|| result.text.clone());
                }
            }
        }
    }
}

/// Reads the tool calls in an attempt's last answers whose results are in none of its requests,
/// or lost.
fn answers(store: &dyn Store, entries: &[Entry], of: &SearchScope<'_>) -> Result<Answers, store::Error> {
    let is_its =
        |e: &&Entry| e.kind == Kind::Call && (e.attempt == of.attempt || e.delivered_to == Some(of.attempt));
    let mut out = Answers::default();
    // Newest first: a result is in a later request than the answer that asked for it.
    for entry in entries.iter().rev().filter(is_its).take(CALLS) {
        let body = match body::stored(store, of.run, entry.seq) {
            // `outlast verify` reports bodies that cannot be read.
            Err(store::Error::Corrupt { .. }) => None,
            body => body?,
        };
        let is_others = |body: &Vec<u8>| of.session.is_some_and(|id| !contains(body, id.as_bytes()));
        if body.as_ref().is_some_and(is_others) {
            continue;
        }
        out.newest = out.newest.max(Some(entry.opened_at));
        let mut calls = match (entry.state, of.so_far.and_then(|so_far| so_far.get(&entry.seq))) {
            (State::Done, _) => {
                let kept = store.payload(of.run, entry.seq, Role::Answer)?;
                let bytes = kept.and_then(|kept| kept.decode().ok());
                // `outlast verify` reports payloads that cannot be read; here they are only skipped.
                let answer = bytes.and_then(|bytes| StoredAnswer::from_bytes(bytes.to_vec().into()).ok());
                conversation::called(&answer.map(|a| a.body).unwrap_or_default())
            }
            (_, Some(so_far)) => conversation::called_so_far(so_far),
            _ => Vec::new(),
        };
        calls.retain(|call| !out.answered.contains(&call.id));
        calls.reverse();
        // The same function with the same arguments may be called again: an id that the model did not give is made one
        // of this answer's.
        for call in calls.iter_mut().filter(|call| call.id.starts_with(conversation::MADE_UP)) {
            call.id = format!("{}@{}", call.id, entry.seq);
        }
        let at = entry.closed_at.unwrap_or(entry.opened_at);
        for call in calls {
            let lost = out.lost.get(&call.id).cloned();
            out.calls.push(OpenToolCall { call, at, lost });
        }
        match &body {
            Some(body) => out.read_results(body, of.kept),
            // Without the body (prompts are not kept) all earlier calls count as answered: a request carries
            // their results.
            None => break,
        }
    }
    out.calls.reverse();
    Ok(out)
}

fn contains(text: &[u8], wanted: &[u8]) -> bool {
    text.windows(wanted.len().max(1)).any(|part| part == wanted)
}

/// Number of newest calls of earlier attempts whose requests are read.
const REQUESTS: usize = 8;

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
        for entry in
            entries.iter().rev().filter(|e| e.kind == Kind::Call && e.attempt < attempt).take(REQUESTS)
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
        Ok(tools_and_results(&body))
    }
}

/// Reads the tools that a request offers, and the ids of the calls whose results it has; `None` without tools.
fn tools_and_results(body: &[u8]) -> Option<(Tools, HashSet<String>)> {
    let request: Value = serde_json::from_slice(body).ok()?;
    let tools = conversation::tools(&request);
    let results = conversation::request(&request);
    let ids = results.iter().flat_map(|turn| turn.results()).flat_map(|result| result.ids.clone()).collect();
    (!tools.is_empty()).then_some((tools, ids))
}

#[cfg(test)]
mod tests_of_resumptions {
    use super::*;

    #[test]
    fn a_request_is_known_by_its_tools_and_has_the_results_that_it_gives() {
        let body = br#"{"tools":[{"name":"Bash"},{"type":"function","function":{"name":"look"}}],
            "messages":[{"role":"user","content":[{"type":"tool_result","tool_use_id":"t1","content":"x"}]}]}"#;
        let (tools, results) = tools_and_results(body).unwrap();
        assert_eq!(tools, ["Bash", "look"]);
        assert_eq!(results, HashSet::from(["t1".to_owned()]));
        for other in ["{}", r#"{"tools":[]}"#, "no json"] {
            assert_eq!(tools_and_results(other.as_bytes()), None, "{other}");
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
