//! `outlast hook claude`: the command of our hooks in Claude Code. A tool call is on disk before it begins.

use std::io::Read as _;

use outlast_core::{
    engine::tool::Tool,
    store::{Ask as _, Durability},
};
use outlast_server::dialect::conversation::ToolCall;
use serde_json::{Value, json};

use super::{
    git,
    inside::Inside,
    open_calls::SearchScope,
    truth::{self, Outcome},
};
use crate::program::{
    context::{CONFINED, Context},
    error::CliError,
    exit_code, told,
};

/// Exit code after which Claude Code does not run the tool. Its model is given the text on standard error as
/// the reason.
const BLOCK: u8 = 2;

/// Environment variable with the path of the note that a resumed agent's model gets.
pub const NOTE: &str = told::AGENT_NOTE;

/// Environment variable that has the hook print git's status at the start of a conversation.
pub const GIT: &str = told::AGENT_GIT;

/// Handles the hook event on standard input. Returns the exit code.
///
/// A tool call that cannot be recorded is blocked: its attempt is over, or the store is unavailable.
pub fn hook(context: &Context) -> Result<u8, CliError> {
    let mut text = String::new();
    std::io::stdin().lock().read_to_string(&mut text)?;
    let bad = |e: serde_json::Error| {
        CliError::usage(
            format!("standard input is no event of a hook: {e}"),
            Some("`outlast hook` is run by Claude Code"),
        )
    };
    let event: Value = serde_json::from_str(&text).map_err(bad)?;
    match event["hook_event_name"].as_str() {
        Some("SessionStart") => {
            // After /clear the person begins something else, so the note is left out.
            let goes_on = ["startup", "resume", "compact"].iter().any(|source| event["source"] == *source);
            let note = told(context).filter(|_| goes_on);
            // A resumed conversation has the status of its start, and whatever else git told since.
            let git = context.around.var(GIT).filter(|_| event["source"] != "resume");
            let git = git.and_then(|_| git::status(context.around.directory()));
            let told: Vec<String> = git.into_iter().chain(note).collect();
            if !told.is_empty() {
                let told = told.join("\n\n");
                let context = json!({"hookEventName": "SessionStart", "additionalContext": told});
                println!("{}", json!({"hookSpecificOutput": context}));
            }
            Ok(exit_code::OK)
        }
        // The store is hidden: what became of a tool is read off the recorded answers and requests.
        Some(_) if context.around.is_set(CONFINED) => Ok(exit_code::OK),
        Some("PreToolUse") => match begins(context, &event) {
            Ok(()) => Ok(exit_code::OK),
            Err(e) => {
                eprintln!("this call was not made, because it could not be recorded: {e}");
                Ok(BLOCK)
            }
        },
        Some("PostToolUse" | "PostToolUseFailure") => ended(context, &event).map(|()| exit_code::OK),
        _ => Ok(exit_code::OK),
    }
}

/// Returns the note for the agent's model that the environment names for this hook to pass on; `None` if
/// there is none.
fn told(context: &Context) -> Option<String> {
    let note = std::fs::read_to_string(context.around.var(NOTE)?).ok()?;
    Some(note).filter(|note| !note.is_empty())
}

fn begins(context: &Context, event: &Value) -> Result<(), CliError> {
    let Some(inside) = Inside::of(context)? else { return Ok(()) };
    inside.store.ask(begin(&inside, event), Durability::Synced).wait()?;
    Ok(())
}

fn ended(context: &Context, event: &Value) -> Result<(), CliError> {
    let Some(inside) = Inside::of(context)? else { return Ok(()) };
    let opening = match inside.store.ask(begin(&inside, event), Durability::Committed).wait()? {
        Tool::Begun(opening) | Tool::Again(opening) | Tool::Taken(opening) => opening,
        Tool::Ended { .. } => return Ok(()),
    };
    let outcome = Outcome::Finished { code: code(event) };
    inside.store.ask(truth::end(opening, &outcome), Durability::Synced).wait()?;
    Ok(())
}

fn begin(inside: &Inside, event: &Value) -> outlast_core::engine::tool::BeginTool {
    let text = |key: &str| event[key].as_str().unwrap_or_default().to_owned();
    let input = event["tool_input"].to_string();
    let call = ToolCall { id: text("tool_use_id"), name: text("tool_name"), input };
    let session = event["session_id"].as_str();
    let of = SearchScope::new(inside.actor.run, inside.actor.attempt, session);
    truth::begin(inside.actor, &of, &call)
}

/// Returns the exit code of a shell tool's command; `None` if it is not known. Pure.
fn code(event: &Value) -> Option<i32> {
    truth::command(&event["tool_input"].to_string())?;
    if event["hook_event_name"] == "PostToolUseFailure" {
        let said = event["error"].as_str()?.strip_prefix("Exit code ")?;
        let digits = said.split(|c: char| !c.is_ascii_digit()).next()?;
        return digits.parse().ok();
    }
    let answer = &event["tool_response"];
    // A command that goes on in the background has no exit code yet.
    let is_over = answer["interrupted"] != true && answer["backgroundTaskId"].is_null();
    is_over.then_some(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_commands_exit_code_is_read_off_the_event() {
        let input = json!({"command": "x"});
        for (event, wanted) in [
            (
                json!({"hook_event_name": "PostToolUse", "tool_input": input, "tool_response": {"stdout": ""}}),
                Some(0),
            ),
            (
                json!({"hook_event_name": "PostToolUse", "tool_input": input, "tool_response": {"interrupted": true}}),
                None,
            ),
            (
                json!({"hook_event_name": "PostToolUse", "tool_input": input, "tool_response": {"backgroundTaskId": "b"}}),
                None,
            ),
            (
                json!({"hook_event_name": "PostToolUseFailure", "tool_input": input, "error": "Exit code 3\nhi"}),
                Some(3),
            ),
            (
                json!({"hook_event_name": "PostToolUseFailure", "tool_input": input, "error": "timed out"}),
                None,
            ),
            (json!({"hook_event_name": "PostToolUse", "tool_input": {"file_path": "x"}}), None),
        ] {
            assert_eq!(code(&event), wanted, "{event}");
        }
    }
}
