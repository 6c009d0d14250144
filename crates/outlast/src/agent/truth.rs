//! Tool calls that a death cut off: what the model had asked for, and their outcome.
//!
//! The journal knows what the model asked: the calls in the answers that the attempt got, less those whose
//! results it had sent back. The outcome of a call comes from its tool entry, if hooks opened and closed it,
//! and from the processes that still lived when the agent had ended.

use std::{collections::HashSet, fs, io};

use outlast_core::{
    body::{BodyRecord, Restoring},
    engine::{
        actor::Actor,
        step::{
            record::Record,
            tool::{BeginTool, Tool},
        },
    },
    journal::{Entry, Kind, Opening, Role, State, payload::Payload},
    run::attempt::Attempt,
    store::{self, Ask as _, Durability, Store},
    words::{
        digest::Digest,
        id::{AttemptNo, Micros, RunNo, Seq, Slot},
    },
};
use outlast_server::{
    dialect::tool_calls::{self, ToolCall},
    door::StoredAnswer,
};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::{Adapter as _, ToolProcess, claude::Claude, codex::Codex, note};
use outlast_process::tree::Tree;

/// Number of an attempt's last calls that are searched. A tool call in flight is in the last answer, or in
/// one concurrent with it.
const CALLS: usize = 8;

/// Number of the journal's last entries in which these calls are searched.
const ENTRIES: i64 = 400;

/// Tool call without a result that the model could know.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InFlight {
    pub id: String,
    pub name: String,
    pub input: String,
    pub asked_at: Micros,
    pub outcome: Outcome,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "outcome", rename_all = "snake_case")]
pub enum Outcome {
    Finished {
        code: Option<i32>,
    },
    /// A process of the call was alive after the agent had ended, and was ended with the rest.
    EndedByOutlast,
    /// The call had begun, and none of its processes was left.
    Ended,
    Unknown,
}

/// Process of a tool that was alive when its agent had ended.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Left {
    pub pid: u32,
    pub of: ToolProcess,
    /// Arguments of the process.
    pub command: String,
}

/// Returns the command in a shell tool's input: Claude Code's, Codex's, and others' with the same field
/// names.
pub fn command(input: &str) -> Option<String> {
    let input: Value = serde_json::from_str(input).ok()?;
    let words = |v: &Value| {
        let words: Option<Vec<&str>> = v.as_array()?.iter().map(Value::as_str).collect();
        Some(words?.join(" "))
    };
    ["command", "cmd", "script"]
        .iter()
        .map(|key| &input[*key])
        .find_map(|v| v.as_str().map(str::to_owned).or_else(|| words(v)))
}

/// Returns the tools' processes among the survivors of an attempt. Call it before they are ended.
///
/// Errors: `/proc` is not readable.
pub fn look(tree: &Tree) -> io::Result<Vec<Left>> {
    let mut left = Vec::new();
    for found in tree.survivors()? {
        let Ok(environ) = fs::read(format!("/proc/{}/environ", found.pid)) else { continue };
        let variable = |name: &str| {
            let entries = environ.split(|b| *b == 0).filter_map(|e| std::str::from_utf8(e).ok());
            entries.filter_map(|e| e.split_once('=')).find(|(n, _)| *n == name).map(|(_, v)| v.to_owned())
        };
        // Codex names the exact call, also for a Claude Code that its tool runs.
        let Some(of) = Codex.tool_process(&variable).or_else(|| Claude.tool_process(&variable)) else {
            continue;
        };
        let arguments = fs::read(format!("/proc/{}/cmdline", found.pid)).unwrap_or_default();
        let command = String::from_utf8_lossy(&arguments).replace('\0', " ");
        // Our own hooks run in the same environment.
        if !command.contains(super::hooks::MARK) {
            left.push(Left { pid: found.pid, of, command });
        }
    }
    Ok(left)
}

/// Decides the outcome of a call that no hook saw end. Pure.
///
/// `begun`: a hook saw it begin. `alone`: it is the only command in flight.
pub fn judge(call: &ToolCall, begun: bool, alone: bool, left: &[Left]) -> Outcome {
    let shell = command(&call.input);
    let is_its = |l: &Left| match &l.of {
        ToolProcess::Of(id) => *id == call.id,
        ToolProcess::Some => {
            shell.as_ref().is_some_and(|command| alone || letters(&l.command).contains(&letters(command)))
        }
    };
    match (left.iter().any(is_its), begun, shell.is_some()) {
        (true, ..) => Outcome::EndedByOutlast,
        (false, true, true) => Outcome::Ended,
        // Work inside the agent's own process leaves nothing to look for.
        _ => Outcome::Unknown,
    }
}

/// Returns letters and digits only: a shell quotes its command anew, and these keep their order.
fn letters(text: &str) -> String {
    text.chars().filter(|c| c.is_alphanumeric()).collect()
}

/// Tool call whose result the attempt never sent.
struct Asked {
    call: ToolCall,
    at: Micros,
}

/// Records the outcome of the tool calls that attempt `of` left in flight. Call it after its agent has ended.
/// `actor` is the attempt under which entries are opened. Idempotent. Returns how many were in flight.
pub async fn settle(
    store: &dyn Store,
    actor: Actor,
    of: AttemptNo,
    session: Option<&str>,
    left: &[Left],
) -> Result<usize, store::Error> {
    let asked = asked(store, actor.run, of, session)?;
    let alone = asked.iter().filter(|a| command(&a.call.input).is_some()).count() == 1;
    for Asked { call, .. } in &asked {
        let begin = begin(actor, &call.id, &call.name, &call.input);
        let (opening, begun) = match store.ask(begin, Durability::Committed).await? {
            Tool::Begun(opening) => (opening, false),
            Tool::Again(opening) | Tool::Taken(opening) => (opening, true),
            // A hook saw it end, or it was settled before.
            Tool::Ended { .. } => continue,
        };
        let outcome = judge(call, begun, alone, left);
        store.ask(end(opening, &outcome), Durability::Synced).await?;
    }
    Ok(asked.len())
}

/// Returns the verb that opens a tool call's entry.
pub fn begin(actor: Actor, id: &str, name: &str, input: &str) -> BeginTool {
    let about = json!({
        "tool": name,
        "input": note::excerpt(input),
        "input_digest": Digest::of(input.as_bytes()).to_string(),
    });
    let about = Payload::encode(about.to_string().as_bytes());
    BeginTool { actor, slot: Slot::DRIVER, key: id.to_owned(), about }
}

/// Returns the verb that closes the entry, as `failed` unless the tool finished without an error code.
pub fn end(opening: Opening, outcome: &Outcome) -> Record {
    Record {
        opening,
        value: Payload::encode(&serde_json::to_vec(outcome).unwrap_or_default()),
        failed: !matches!(outcome, Outcome::Finished { code: None | Some(0) }),
        again: false,
        changes: Vec::new(),
    }
}

/// Returns the newest ended attempt that made a call. Later ones told their model nothing and did nothing.
pub fn last_that_called(
    store: &dyn Store,
    run: RunNo,
    before: AttemptNo,
) -> Result<Option<Attempt>, store::Error> {
    let called: HashSet<AttemptNo> =
        newest_entries(store, run)?.iter().filter(|e| e.kind == Kind::Call).map(|e| e.attempt).collect();
    Ok(store.attempts(run)?.into_iter().rev().find(|a| a.no < before && called.contains(&a.no)))
}

/// Returns the tool calls that an attempt left in flight, with their recorded outcomes.
pub fn in_flight(
    store: &dyn Store,
    run: RunNo,
    attempt: AttemptNo,
    session: Option<&str>,
) -> Result<Vec<InFlight>, store::Error> {
    let entries = newest_entries(store, run)?;
    let mut out = Vec::new();
    for Asked { call, at } in asked(store, run, attempt, session)? {
        let is_its = |e: &&Entry| e.kind == Kind::Tool && e.key.as_deref() == Some(&call.id);
        let outcome = match entries.iter().rev().find(is_its) {
            Some(entry) if entry.state != State::Open => store
                .payload(run, entry.seq, Role::Value)?
                .and_then(|kept| serde_json::from_slice(&kept.decode().ok()?).ok())
                .unwrap_or(Outcome::Unknown),
            _ => Outcome::Unknown,
        };
        out.push(InFlight { id: call.id, name: call.name, input: call.input, asked_at: at, outcome });
    }
    Ok(out)
}

/// Returns the tool calls in an attempt's last answers whose results are in none of its requests.
fn asked(
    store: &dyn Store,
    run: RunNo,
    attempt: AttemptNo,
    session: Option<&str>,
) -> Result<Vec<Asked>, store::Error> {
    let entries = newest_entries(store, run)?;
    let its = entries
        .iter()
        .rev()
        .filter(|e| e.kind == Kind::Call && (e.attempt == attempt || e.delivered_to == Some(attempt)));
    let mut answered: HashSet<String> = HashSet::new();
    let mut out = Vec::new();
    // Newest first: a result is in a later request than the answer that asked for it.
    for entry in its.take(CALLS) {
        let body = body(store, run, entry.seq)?;
        let is_others = |body: &Vec<u8>| session.is_some_and(|id| !contains(body, id.as_bytes()));
        if body.as_ref().is_some_and(is_others) {
            continue;
        }
        let stored = match entry.state {
            State::Done => store.payload(run, entry.seq, Role::Answer)?,
            _ => None,
        };
        let bytes = stored.and_then(|kept| kept.decode().ok());
        // `outlast verify` reports payloads that cannot be read; here they are only skipped.
        let answer = bytes.and_then(|bytes| StoredAnswer::from_bytes(bytes.to_vec().into()).ok());
        let frames: Vec<u8> = answer.map(|a| a.frames.concat()).unwrap_or_default();
        let mut calls = tool_calls::called(&frames);
        calls.retain(|call| !answered.contains(&call.id));
        calls.reverse();
        let at = entry.closed_at.unwrap_or(entry.opened_at);
        out.extend(calls.into_iter().map(|call| Asked { call, at }));
        match &body {
            Some(body) => answered.extend(tool_calls::answered(body)),
            // Without the body (prompts are not kept) all earlier calls count as answered: a request carries
            // their results.
            None => break,
        }
    }
    out.reverse();
    Ok(out)
}

/// Returns the newest entries of a run, oldest first.
pub fn newest_entries(store: &dyn Store, run: RunNo) -> Result<Vec<Entry>, store::Error> {
    let Some(view) = store.run(run)? else { return Ok(Vec::new()) };
    let after = Seq((view.run.next_seq.0 - 1 - ENTRIES).max(0));
    store.entries(run, after, ENTRIES as usize)
}

/// Returns a request's body; `None` if it is not kept or cannot be read.
fn body(store: &dyn Store, run: RunNo, seq: Seq) -> Result<Option<Vec<u8>>, store::Error> {
    let record = |seq| -> Result<Option<BodyRecord>, store::Error> {
        let kept = store.payload(run, seq, Role::Request)?;
        Ok(kept.and_then(|kept| BodyRecord::from_bytes(kept.decode().ok()?).ok()))
    };
    let Some(newest) = record(seq)? else { return Ok(None) };
    let Ok(mut restoring) = Restoring::new(&newest) else { return Ok(None) };
    while let Some(wanted) = restoring.wants() {
        let Some(base) = record(wanted)? else { return Ok(None) };
        if restoring.give(&base).is_err() {
            return Ok(None);
        }
    }
    Ok(restoring.finish().ok())
}

fn contains(text: &[u8], wanted: &[u8]) -> bool {
    text.windows(wanted.len().max(1)).any(|part| part == wanted)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bash(command: &str) -> ToolCall {
        let input = json!({"command": command}).to_string();
        ToolCall { id: "t1".into(), name: "Bash".into(), input }
    }

    fn left(of: ToolProcess, command: &str) -> Left {
        Left { pid: 7, of, command: command.into() }
    }

    #[test]
    fn an_outcome_is_what_was_seen_and_not_more() {
        let of = |id: &str| left(ToolProcess::Of(id.into()), "sleep 9");
        let shell =
            left(ToolProcess::Some, "/bin/bash -c source x && eval 'echo '\"'\"'a b'\"'\"' > f' && pwd");
        let call = bash("echo 'a b' > f");
        for (name, begun, alone, left, wanted) in [
            ("by its id", false, false, vec![of("t1")], Outcome::EndedByOutlast),
            ("by its command", true, false, vec![shell.clone()], Outcome::EndedByOutlast),
            ("the only one", false, true, vec![left(ToolProcess::Some, "sleep 9")], Outcome::EndedByOutlast),
            ("another's", true, true, vec![of("t2")], Outcome::Ended),
            ("one of several", true, false, vec![left(ToolProcess::Some, "sleep 9")], Outcome::Ended),
            ("nobody left", true, true, vec![], Outcome::Ended),
            ("nothing seen", false, true, vec![], Outcome::Unknown),
        ] {
            assert_eq!(judge(&call, begun, alone, &left), wanted, "{name}");
        }
        let edit = ToolCall { id: "t1".into(), name: "Edit".into(), input: r#"{"file_path":"x"}"#.into() };
        assert_eq!(judge(&edit, true, false, &[shell]), Outcome::Unknown, "no process of its own");
    }

    #[test]
    fn commands_are_found_in_every_agents_input() {
        assert_eq!(command(r#"{"command":"ls -l"}"#).as_deref(), Some("ls -l"));
        assert_eq!(command(r#"{"cmd":"ls"}"#).as_deref(), Some("ls"));
        assert_eq!(command(r#"{"command":["bash","-lc","ls"]}"#).as_deref(), Some("bash -lc ls"));
        assert_eq!(command(r#"{"file_path":"x"}"#), None);
        assert_eq!(command("+ a patch"), None);
    }
}
