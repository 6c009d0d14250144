//! Tool calls that a death cut off: what the model had asked for, and their outcome.
//!
//! [`open_calls`] finds the calls. The outcome of a call comes from its tool entry, if hooks opened and closed
//! it, and from the processes that still lived when the agent had ended.

use std::{collections::HashSet, io};

use outlast_core::{
    engine::{Actor, BeginTool, GiveBackTool, Record, Tool},
    journal::{Entry, Kind, Opening, Payload, Role, State},
    run::Attempt,
    store::{self, Ask as _, Durability, Store},
    words::{AttemptNo, Digest, Micros, RunNo, Seq, Slot},
};
use outlast_process::{ancestry::Program, tree::Tree};
use outlast_server::{api::read::gist, dialect::conversation::ToolCall};
pub use outlast_server::{api::read::gist::Outcome, dialect::conversation::command};
use outlast_view::Time;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::{
    KeptCalls, ToolProcess, note,
    open_calls::{self, Found, OpenToolCall, SearchScope},
};
use crate::render::time;

/// Number of the journal's last entries that are searched.
const ENTRIES: i64 = 400;

/// Tool call whose result the model did not get before its agent ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InFlight {
    pub id: String,
    pub name: String,
    pub input: String,
    pub asked_at: Micros,
    pub outcome: Outcome,
    /// Result that the model once got, and that is not in the session it goes on in.
    pub lost: Option<String>,
}

/// Process of a tool that outlived its agent.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Left {
    pub pid: u32,
    pub of: ToolProcess,
    /// Command line of the process, its arguments joined by spaces.
    pub command: String,
}

/// Returns the tools' processes among the processes that outlived an attempt's agent. Call it before they are ended.
///
/// Errors: `/proc` is not readable.
pub fn look(tree: &Tree) -> io::Result<Vec<Left>> {
    let (mut left, adapters) = (Vec::new(), super::built_in());
    for found in tree.survivors()? {
        let program = Program::of(found);
        let variable = |name: &str| program.variable(name);
        let known: Vec<ToolProcess> = adapters.iter().filter_map(|a| a.tool_process(&variable)).collect();
        // Codex names the exact call, also for another agent that its tool runs.
        let exact = known.iter().find(|of| matches!(of, ToolProcess::Of(_)));
        let Some(of) = exact.or(known.first()).cloned() else { continue };
        let command = program.command();
        // Our own hooks run in the same environment.
        if !command.contains(super::hook::MARK) {
            left.push(Left { pid: program.id.pid, of, command });
        }
    }
    Ok(left)
}

/// Decides the outcome of a tool call whose end no hook saw. Pure.
///
/// `begun`: a hook saw the call begin. `alone`: it is the only shell command in flight. `left`: tools' processes that
/// outlived the agent.
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

/// Returns only the letters and digits of a text. They stay in order when a shell quotes its command
/// differently.
fn letters(text: &str) -> String {
    text.chars().filter(|c| c.is_alphanumeric()).collect()
}

/// Records the outcome of the tool calls that an attempt left in flight, and returns them. Call it after the attempt's
/// agent has ended. `actor` is the attempt under which entries are opened, `left` the tools' processes that outlived
/// the agent. Idempotent.
pub async fn settle(
    store: &dyn Store,
    actor: Actor,
    of: &SearchScope<'_>,
    left: &[Left],
) -> Result<Vec<InFlight>, store::Error> {
    let found = open_calls::find(store, of, left)?;
    close_answered(store, actor, of, &found).await?;
    let entries = newest_entries(store, of.run)?;
    let alone = found.in_flight.iter().filter(|a| command(&a.call.input).is_some()).count() == 1;
    let mut told = Vec::new();
    for OpenToolCall { call, at, lost } in found.in_flight {
        let answered = give_back(store, &entries, &call.id).await?;
        let outcome = match store.ask(begin(actor, of, &call), Durability::Committed).await? {
            // A hook saw it end, or it was settled before.
            Tool::Ended { .. } if answered => Outcome::Recorded,
            Tool::Ended { seq, .. } => recorded(store, of.run, seq)?,
            opened @ (Tool::Begun(opening) | Tool::Again(opening) | Tool::Taken(opening)) => {
                let outcome = match (answered, &lost) {
                    (true, _) => Outcome::Recorded,
                    (false, Some(_)) => Outcome::Finished { code: None },
                    (false, None) => judge(&call, !matches!(opened, Tool::Begun(_)), alone, left),
                };
                store.ask(end(opening, &outcome), Durability::Synced).await?;
                outcome
            }
        };
        told.push(InFlight { id: call.id, name: call.name, input: call.input, asked_at: at, outcome, lost });
    }
    Ok(told)
}

/// Gives back what recorders answered to the clients of the attempt `before`, and what is not in `kept`, the session's
/// file: an agent may have sent a result to its model, and die before its file has it. The resumed session does
/// not know of the call then.
pub async fn give_back_unkept(
    store: &dyn Store,
    run: RunNo,
    before: AttemptNo,
    kept: &KeptCalls,
) -> Result<(), store::Error> {
    for entry in newest_entries(store, run)?.iter().filter(|e| e.delivered_to == Some(before)) {
        let Some(tool) = &entry.tool else { continue };
        let mut ids = tool.id.iter().chain(&tool.later_ids).peekable();
        if ids.peek().is_some() && !ids.any(|id| kept.results.contains(id)) {
            store.ask(GiveBackTool { run, seq: entry.seq, op: entry.opened_by }, Durability::Synced).await?;
        }
    }
    Ok(())
}

/// Gives back what a recorder answered to a call whose result the model never got, so that the same call of the resumed
/// model gets it, and is not made a second time. Returns whether the recorder has the tool's answer.
async fn give_back(store: &dyn Store, entries: &[Entry], id: &str) -> Result<bool, store::Error> {
    let is_its = |e: &&Entry| e.tool.as_ref().is_some_and(|tool| tool.is_named(id));
    let Some(made) = entries.iter().rev().find(is_its) else { return Ok(false) };
    let back = GiveBackTool { run: made.run, seq: made.seq, op: made.opened_by };
    let state = store.ask(back, Durability::Synced).await?;
    Ok(matches!(state, State::Done | State::Failed))
}

/// Closes the open entries of tool calls whose results the model got although no hook saw them end: a refused call,
/// say.
pub async fn close_answered(
    store: &dyn Store,
    actor: Actor,
    of: &SearchScope<'_>,
    found: &Found,
) -> Result<(), store::Error> {
    for call in &found.answered {
        if let Tool::Again(opening) | Tool::Taken(opening) =
            store.ask(begin(actor, of, call), Durability::Committed).await?
        {
            store.ask(end(opening, &Outcome::Finished { code: None }), Durability::Synced).await?;
        }
    }
    Ok(())
}

/// Returns the operation that opens a tool call's entry. The entry's description names the attempt and session of `of`.
pub fn begin(actor: Actor, of: &SearchScope<'_>, call: &ToolCall) -> BeginTool {
    let about = json!({
        "tool": call.name,
        "input": note::excerpt(&call.input),
        "input_digest": Digest::of(call.input.as_bytes()).to_string(),
        "shell": command(&call.input).is_some(),
        "attempt": of.attempt.0,
        "session": of.session,
    });
    let about = Payload::encode(about.to_string().as_bytes());
    BeginTool { actor, slot: Slot::DRIVER, key: call.id.clone(), made_by: of.attempt, about }
}

/// Returns the operation that closes a tool call's entry: as `done` if the tool finished without an error code,
/// otherwise as `failed`.
pub fn end(opening: Opening, outcome: &Outcome) -> Record {
    Record {
        opening,
        value: Payload::encode(&serde_json::to_vec(outcome).unwrap_or_default()),
        failed: !matches!(outcome, Outcome::Finished { code: None | Some(0) } | Outcome::Recorded),
        again: false,
        changes: Vec::new(),
    }
}

/// Returns the outcome that a closed entry records.
fn recorded(store: &dyn Store, run: RunNo, seq: Seq) -> Result<Outcome, store::Error> {
    let kept = store.payload(run, seq, Role::Value)?;
    Ok(kept.and_then(|kept| serde_json::from_slice(&kept.decode().ok()?).ok()).unwrap_or(Outcome::Unknown))
}

/// Returns the newest attempt before `before` that made a call; `None` if none did. Attempts without a call in between
/// changed nothing, so they are skipped.
pub fn last_that_called(
    store: &dyn Store,
    run: RunNo,
    before: AttemptNo,
) -> Result<Option<Attempt>, store::Error> {
    let called: HashSet<AttemptNo> =
        newest_entries(store, run)?.iter().filter(|e| e.kind == Kind::Call).map(|e| e.attempt).collect();
    Ok(store.attempts(run)?.into_iter().rev().find(|a| a.no < before && called.contains(&a.no)))
}

/// Returns the last `ENTRIES` entries of a run's journal, oldest first.
pub fn newest_entries(store: &dyn Store, run: RunNo) -> Result<Vec<Entry>, store::Error> {
    let Some(view) = store.run(run)? else { return Ok(Vec::new()) };
    let after = Seq((view.run.next_seq.0 - 1 - ENTRIES).max(0));
    store.entries(run, after, ENTRIES as usize)
}

// --- Tool calls of agents as `show` prints them, with their outcomes.

/// Tool call of an agent, as `outlast show` prints it: a line, or with `--json` its value.
#[derive(Clone, Debug, Serialize)]
#[serde(transparent)]
pub struct ToolLine {
    #[serde(skip)]
    line: String,
    value: Value,
}

/// Reads the line of a tool call's entry.
pub fn tool_line(store: &dyn Store, run: RunNo, entry: &Entry) -> Result<ToolLine, store::Error> {
    let kept = |seq: Seq, role| -> Result<Value, store::Error> {
        let bytes = store.payload(run, seq, role)?.and_then(|kept| kept.decode().ok());
        Ok(bytes.and_then(|bytes| serde_json::from_slice(&bytes).ok()).unwrap_or_default())
    };
    let (about, value) = (kept(entry.seq, Role::About)?, kept(entry.seq, Role::Value)?);
    let resolve = match entry.state {
        State::Unknown => format!(" (`outlast resolve RUN {}`)", entry.seq),
        _ => String::new(),
    };
    let gist = gist::gist(store, entry)?.unwrap_or_default();
    Ok(ToolLine {
        line: format!("{}  {gist}{resolve}", time::moment(entry.opened_at)),
        value: json!({
            "seq": entry.seq,
            "id": entry.tool.as_ref().map_or(&entry.key, |tool| &tool.id),
            "attempt": entry.attempt,
            "state": entry.state.name(),
            "opened_at": Time(entry.opened_at),
            "tool": about["tool"],
            "input": about["input"],
            "input_digest": about["input_digest"],
            "outcome": value["outcome"],
            "code": value["code"],
        }),
    })
}

impl ToolLine {
    pub fn line(&self) -> &str {
        &self.line
    }
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
}
