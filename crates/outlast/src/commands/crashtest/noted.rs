//! Requests of a CLI agent that was resumed: Outlast tells its model so by a note, which no clean run has.

use outlast_server::dialect::canonical_value;
use serde_json::{Value, json};

use crate::agent::{note, note::Note, row};

/// Names under which requests keep their conversation, and a turn its parts.
const CONVERSATIONS: [&str; 3] = ["messages", "input", "contents"];
const PARTS: [&str; 2] = ["content", "parts"];

/// Returns a request in a form that is the same without notes, and the note of it that tells most, if it has one; `None`: it
/// is no JSON.
///
/// Companions of a note are left out, too: texts of the program around it, ends of lines, and marks of the prompt's cache,
/// which stand at the conversation's end. Turns of one role that follow each other without the note are one.
pub fn without_notes(request: &[u8]) -> Option<(Vec<u8>, Option<Note>)> {
    let mut request: Value = serde_json::from_slice(request).ok()?;
    let mut note = None;
    for name in CONVERSATIONS {
        if let Some(Value::Array(turns)) = request.get_mut(name) {
            let mut kept: Vec<(Value, Vec<Value>)> = Vec::new();
            std::mem::take(turns).into_iter().for_each(|turn| push(turn, &mut kept, &mut note));
            *turns = kept.into_iter().map(|(turn, parts)| json!([turn, parts])).collect();
        }
    }
    Some((canonical_value(request.to_string().as_bytes()).ok()?, note))
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

    #[test]
    fn a_request_is_the_same_without_a_note_and_what_comes_with_it_alone() {
        let marked = json!({"type": "text", "text": "Say hello.", "cache_control": {"type": "ephemeral"}});
        let clean = asked(json!([
            {"role": "user", "content": [text("<system-reminder>"), marked]},
            {"role": "system", "content": "agents"},
        ]));
        let (clean, nothing) = without_notes(&clean).unwrap();
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
            let (resumed, found) = without_notes(&resumed).unwrap();
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
            let (resumed, found) = without_notes(&asked(turns.clone())).unwrap();
            assert_eq!(
                (found, resumed == without_notes(&clean).unwrap().0),
                (Some(Note::Plain), same),
                "{turns}"
            );
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
