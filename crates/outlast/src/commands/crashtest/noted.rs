//! Requests as they are compared with recorded ones: what a client makes at random in them is left out, and what Outlast's note to
//! the model of a resumed CLI agent brings, which no clean run has.

use std::sync::LazyLock;

use outlast_core::run::masks::Rules;
use outlast_server::dialect::canonical;
use regex::Regex;
use serde_json::{Value, json};

use crate::agent::{note, note::Note, row};

/// Names under which requests keep their conversation, and a turn its parts.
const CONVERSATIONS: [&str; 3] = ["messages", "input", "contents"];
const PARTS: [&str; 2] = ["content", "parts"];

/// Ids that a client gives its turns at random, as Codex does: `msg_` or the like, and a UUID. A provider's own ids have no UUIDs.
static CLIENT_ID: LazyLock<Regex> = LazyLock::new(|| {
    Regex::new("^[a-z]{1,8}_[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$").expect("it is one")
});

/// Request in the form in which it is compared.
#[derive(Clone, Debug, PartialEq)]
pub struct Compared {
    turns: Vec<Value>,
    /// All but the turns of the conversation; a text where the body is no JSON.
    rest: Value,
}

impl Compared {
    /// Reads a request without what the rules leave out and the ids that its client made. Returns whether it had such ids, too.
    pub fn read(body: &[u8], rules: &Rules) -> (Compared, bool) {
        let whole = canonical(body, rules).ok().and_then(|json| serde_json::from_slice(&json).ok());
        let mut rest: Value = whole.unwrap_or_else(|| String::from_utf8_lossy(body).into());
        let name = CONVERSATIONS.into_iter().find(|name| rest[*name].is_array());
        let turns = name.and_then(|name| rest[name].as_array_mut()).map(std::mem::take);
        let mut turns = turns.unwrap_or_default();
        let mut had_ids = false;
        for turn in turns.iter_mut().filter_map(Value::as_object_mut) {
            if turn.get("id").and_then(Value::as_str).is_some_and(|id| CLIENT_ID.is_match(id)) {
                turn.remove("id");
                had_ids = true;
            }
        }
        (Compared { turns, rest }, had_ids)
    }

    /// Returns a form that is the same without notes, and the note of this request that tells most, if it has one.
    ///
    /// Companions of a note are left out, too: texts of the program around it, ends of lines, and marks of the prompt's cache,
    /// which stand at the conversation's end. Turns of one role that follow each other without the note are one.
    pub fn without_notes(self) -> (Compared, Option<Note>) {
        let (mut note, mut kept) = (None, Vec::new());
        self.turns.into_iter().for_each(|turn| push(turn, &mut kept, &mut note));
        let turns = kept.into_iter().map(|(turn, parts)| json!([turn, parts])).collect();
        (Compared { turns, ..self }, note)
    }

    /// Returns whether this request has the conversation of another, and goes on from there.
    pub fn goes_on_from(&self, other: &Compared) -> bool {
        self.rest == other.rest
            && self.turns.len() > other.turns.len()
            && self.turns.starts_with(&other.turns)
    }

    /// Returns the form as a text, which shows where two differ: the conversation first.
    pub fn text(&self) -> String {
        format!("{}{}", json!(self.turns), self.rest)
    }
}

/// Adds a turn to those before it, as its other members and its parts.
fn push(mut turn: Value, before: &mut Vec<(Value, Vec<Value>)>, note: &mut Option<Note>) {
    let said = PARTS.iter().find_map(|name| turn.as_object_mut()?.remove(*name));
    let parts = match said {
        Some(Value::Array(parts)) => parts,
        None | Some(Value::Null) => return before.push((turn, Vec::new())),
        Some(text) => vec![json!({"type": "text", "text": text})],
    };
    let own: Vec<Value> = parts.into_iter().filter_map(|part| own_part(part, note)).collect();
    match before.last_mut() {
        _ if own.is_empty() => {}
        Some((last, its)) if *last == turn && !its.is_empty() => its.extend(own),
        _ => before.push((turn, own)),
    }
}

/// Returns a part without notes and what comes with them; `None`: it is nothing else.
fn own_part(mut part: Value, note: &mut Option<Note>) -> Option<Value> {
    part.as_object_mut().and_then(|part| part.remove("cache_control"));
    let Some(text) = part["text"].as_str() else { return Some(part) };
    let (own, found) =
        note::cut_out(text).map_or_else(|| (text.to_owned(), None), |(own, note)| (own, Some(note)));
    *note = (*note).max(found);
    let own = own.trim_end();
    let is_programs = row::rows().iter().any(|row| row.goes_on_with.iter().any(|text| text == own));
    if own.is_empty() && found.is_some() || is_programs {
        return None;
    }
    part["text"] = own.into();
    Some(part)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn asked(turns: Value) -> Vec<u8> {
        json!({"model": "claude", "tools": [{"name": "Bash"}], "messages": turns}).to_string().into_bytes()
    }

    fn text(text: &str) -> Value {
        json!({"type": "text", "text": text})
    }

    fn read(body: &[u8]) -> (Compared, bool) {
        Compared::read(body, &Rules::default())
    }

    fn bare(body: &[u8]) -> (Compared, Option<Note>) {
        read(body).0.without_notes()
    }

    // Bug: no two runs of Codex were the same, so that it could not be tested. Cause: it gives each turn an id of its own.
    #[test]
    fn ids_that_a_client_makes_are_not_compared_and_no_others_are_left_out() {
        let asked = |id: &str, said: &str| {
            json!({"input": [{"type": "message", "id": id, "role": "user", "content": said}]})
                .to_string()
                .into_bytes()
        };
        let ours = "msg_01a2200c-ebc8-7471-b810-a125faf9638b";
        let first = read(&asked(ours, ours));
        assert!(first.1);
        let check = |id: &str, said: &str, same: bool| {
            let (other, had_ids) = read(&asked(id, said));
            assert_eq!((other == first.0, had_ids), (same, CLIENT_ID.is_match(id)), "{id} {said}");
        };
        check("msg_01a22011-874b-75e2-a2c2-cff7e6062275", ours, true);
        // A provider's id is an answer's; an id in a text is the model's to read.
        check("msg_5e56ff1bfa90213a5f6586d9_1", ours, false);
        check(ours, "msg_01a22011-874b-75e2-a2c2-cff7e6062275", false);
        check("01a22011-874b-75e2-a2c2-cff7e6062275", ours, false);
    }

    // Bug: Codex that was killed in the middle of an answer was told as diverged. Cause: its session has the parts of the
    // answer that had come, and no recording has what a model says to them.
    #[test]
    fn a_request_that_goes_on_from_a_kept_part_of_an_answer_is_one_of_the_recorded_ones() {
        let user = |said: &str| json!({"type": "message", "role": "user", "content": [{"type": "input_text", "text": said}]});
        let kept = json!({"type": "reasoning", "id": "rs_5e56ff1bfa90213a5f6586d9_1", "content": null});
        let asked = |model: &str, turns: &[Value]| {
            bare(json!({"model": model, "input": turns}).to_string().as_bytes())
        };
        let note = user(&note::words("lost with its supervisor", &[]));
        let clean = asked("m", &[user("Say hello.")]).0;
        let check = |model: &str, turns: &[Value], wanted: bool| {
            assert_eq!(asked(model, turns).0.goes_on_from(&clean), wanted, "{model} {turns:?}");
        };
        check("m", &[user("Say hello."), kept.clone(), note.clone()], true);
        check("m", &[user("Say hello."), note.clone()], false);
        check("m", &[user("Say goodbye."), kept.clone(), note.clone()], false);
        check("n", &[user("Say hello."), kept, note], false);
    }

    #[test]
    fn a_request_is_the_same_without_a_note_and_what_comes_with_it_alone() {
        let marked = json!({"type": "text", "text": "Say hello.", "cache_control": {"type": "ephemeral"}});
        let clean = asked(json!([
            {"role": "user", "content": [text("<system-reminder>"), marked]},
            {"role": "system", "content": "agents"},
        ]));
        let (clean, nothing) = bare(&clean);
        assert_eq!(nothing, None);
        // As Claude Code 2.1 goes on after a death, measured.
        let check = |prompt: &str, note: String, wanted: Option<Note>, same: bool| {
            let resumed = asked(json!([
                {"role": "user", "content": [
                    text("<system-reminder>"), text(prompt), text("Continue from where you left off."),
                ]},
                {"role": "system", "content": "agents"},
                {"role": "assistant", "content": [text("No response requested.")]},
                {"role": "user", "content": note},
            ]));
            let (resumed, found) = bare(&resumed);
            assert_eq!((found, resumed == clean), (wanted, same), "{prompt:?} {note:?}");
        };
        let note = note::words("killed by SIGKILL", &[]);
        let of_calls =
            note.replace(" No tool call was in flight.", "\nBefore the crash you had started: Bash");
        check("Say hello.\n", note.clone(), Some(Note::Plain), true);
        check("Say hello.\n", of_calls, Some(Note::OfCalls), true);
        check("Say goodbye.\n", note.clone(), Some(Note::Plain), false);
        check("Say hello.\n", format!("{note} It is noon."), Some(Note::Plain), false);
        check("Say hello.\n", "Go on with the task from there.".into(), None, false);
    }

    #[test]
    fn turns_that_a_note_has_parted_are_one_and_calls_of_tools_stay() {
        let note = note::words("exit 1", &[]);
        let call = json!({"role": "assistant", "content": null, "tool_calls": [{"id": "c1"}]});
        let result = json!({"role": "tool", "tool_call_id": "c1", "content": "done"});
        let clean = asked(
            json!([{"role": "user", "content": "Go."}, call, result, {"role": "user", "content": "More."}]),
        );
        let check = |turns: Value, same: bool| {
            let (resumed, found) = bare(&asked(turns.clone()));
            assert_eq!((found, resumed == bare(&clean).0), (Some(Note::Plain), same), "{turns}");
        };
        let (before, after) =
            (json!({"role": "user", "content": "Go."}), json!({"role": "user", "content": "More."}));
        let told = json!({"role": "user", "content": note});
        check(json!([before, call, result, told, after]), true);
        check(json!([told, before, call, result, after]), true);
        check(json!([before, call, told, after]), false);
        check(json!([before, result, call, told, after]), false);
    }
}
