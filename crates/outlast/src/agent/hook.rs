//! Hooks in Claude Code. A settings file of the run's own, with the user's settings merged in, names them; the user's files
//! stay unchanged. Their command is `outlast hook claude`: a tool call is on disk before it begins.

use std::{
    fs,
    io::{self, Read as _},
    path::{Path, PathBuf},
};

use outlast_core::{
    engine::Tool,
    store::{Ask as _, Durability},
};
use outlast_server::dialect::conversation::ToolCall;
use serde_json::{Map, Value, json};

use super::{
    inside::Inside,
    open_calls::SearchScope,
    truth::{self, Outcome},
};
use crate::{
    disk,
    program::{checkout, context::Context, error::CliError, exit_code, told},
    render::quote::quoted,
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
            let git = git.and_then(|_| status(context.around.directory()));
            let told: Vec<String> = git.into_iter().chain(note).collect();
            if !told.is_empty() {
                let told = told.join("\n\n");
                let context = json!({"hookEventName": "SessionStart", "additionalContext": told});
                println!("{}", json!({"hookSpecificOutput": context}));
            }
            Ok(exit_code::OK)
        }
        // The store is hidden: what became of a tool is read off the recorded answers and requests.
        Some(_) if context.around.is_set(told::CONFINED) => Ok(exit_code::OK),
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

/// Part of the command line by which the processes of Outlast's hooks are recognized.
pub const MARK: &str = "hook claude";

/// Timeout of a hook in seconds. A hook only writes one row.
const TIMEOUT: u32 = 60;

/// Events of Claude Code that Outlast's hooks handle.
const EVENTS: [&str; 4] = ["SessionStart", "PreToolUse", "PostToolUse", "PostToolUseFailure"];

/// Claude Code's setting for its words about git: the status in the system text, which changes with each file, and the
/// instructions for commits.
const GIT_INSTRUCTIONS: &str = "includeGitInstructions";

/// Error of writing the settings file that joins the user's settings with Outlast's hooks.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("cannot read the settings {}: {why}", path.display())]
    Unreadable { path: PathBuf, why: io::Error },
    #[error("the settings given with --settings are no JSON object: {why}")]
    NotJson { why: String },
    #[error("cannot write {}: {why}", path.display())]
    NotWritten { path: PathBuf, why: io::Error },
}

/// Writes Claude Code's settings, with Outlast's hooks, into `directory`, and returns the file's path. `theirs`: the
/// user's settings, a file below `base` or JSON. `program`: the `outlast` that the hooks run. `warm` keeps git's status
/// out of the system text, unless the user's settings have a value for that.
pub fn install(
    directory: &Path,
    base: &Path,
    theirs: Option<&str>,
    program: &Path,
    warm: bool,
) -> Result<PathBuf, Error> {
    let theirs = theirs.map(|text| read(text, base)).transpose()?.unwrap_or_default();
    let mut merged = merged(theirs, &format!("{} {MARK}", quoted(&program.to_string_lossy())));
    if let Value::Object(settings) = &mut merged
        && warm
    {
        settings.entry(GIT_INSTRUCTIONS).or_insert(Value::Bool(false));
    }
    let path = directory.join("settings.json");
    disk::write(&path, merged.to_string().as_bytes())
        .map_err(|why| Error::NotWritten { path: path.clone(), why })?;
    Ok(path)
}

fn read(text: &str, base: &Path) -> Result<Map<String, Value>, Error> {
    let text = if text.trim_start().starts_with('{') {
        text.to_owned()
    } else {
        let path = base.join(text);
        fs::read_to_string(&path).map_err(|why| Error::Unreadable { path, why })?
    };
    match serde_json::from_str(&text) {
        Ok(Value::Object(settings)) => Ok(settings),
        Ok(_) => Err(Error::NotJson { why: "it is another value".into() }),
        Err(e) => Err(Error::NotJson { why: e.to_string() }),
    }
}

/// Returns the user's settings with our command added after their own hooks of each event.
fn merged(mut settings: Map<String, Value>, command: &str) -> Value {
    let hook = json!({"hooks": [{"type": "command", "command": command, "timeout": TIMEOUT}]});
    let hooks = settings.entry("hooks").or_insert_with(|| json!({}));
    if let Some(hooks) = hooks.as_object_mut() {
        for event in EVENTS {
            // Anything else is left as it is: Claude Code itself reports what is wrong.
            if let Value::Array(list) = hooks.entry(event).or_insert_with(|| json!([])) {
                list.push(hook.clone());
            }
        }
    }
    Value::Object(settings)
}

/// Most lines of `git status`, and most of its bytes, that a new conversation is told.
const LINES: usize = 60;
const BYTES: usize = 4096;

/// Number of newest commits that a new conversation is told.
const COMMITS: &str = "5";

/// Returns branch, changed files and newest commits of a directory as text; `None` without git or a working tree.
pub fn status(directory: &Path) -> Option<String> {
    let status = checkout::status(directory, &["--short", "--branch"]).ok()?;
    let status = String::from_utf8_lossy(&status);
    // A repository without a commit has none to tell.
    let commits =
        checkout::git(directory, &["log", "--oneline", "--no-decorate", "-n", COMMITS]).unwrap_or_default();
    Some(words(&status, &commits))
}

fn words(status: &str, commits: &str) -> String {
    let mut lines = status.lines();
    let branch = lines.next().unwrap_or_default().trim_start_matches('#').trim();
    let changed: Vec<&str> = lines.collect();
    let mut out =
        format!("[Outlast] Git as this conversation began; it is not told again.\nBranch: {branch}\n");
    match changed.len() {
        0 => out.push_str("No file was changed.\n"),
        count => {
            let mut shown = 0;
            for line in changed.iter().take(LINES) {
                if out.len() + line.len() >= BYTES {
                    break;
                }
                shown += 1;
                out.push_str(line);
                out.push('\n');
            }
            if shown < count {
                out.push_str(&format!("… and {} more\n", count - shown));
            }
        }
    }
    if !commits.is_empty() {
        out.push_str("Newest commits:\n");
        out.push_str(commits);
    }
    out.trim_end().to_owned()
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

#[cfg(test)]
mod tests_of_settings {
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    #[test]
    fn the_persons_settings_and_hooks_stay_beside_ours() {
        let theirs =
            json!({"model": "m", "hooks": {"PreToolUse": [{"matcher": "Bash", "hooks": []}], "Stop": []}});
        let merged = merged(theirs.as_object().unwrap().clone(), "us");
        assert_eq!(merged["model"], "m");
        assert_eq!(merged["hooks"]["Stop"], json!([]));
        assert_eq!(merged["hooks"]["PreToolUse"][0]["matcher"], "Bash");
        assert_eq!(merged["hooks"]["PreToolUse"][1]["hooks"][0]["command"], "us");
        assert_eq!(merged["hooks"]["SessionStart"].as_array().unwrap().len(), 1);
    }

    #[test]
    fn settings_are_taken_from_a_file_or_from_the_line_and_written_for_us_alone() {
        let dir = tempfile::tempdir().unwrap();
        let base = dir.path();
        fs::write(base.join("theirs.json"), r#"{"a": 1}"#).unwrap();
        let agent = base.join("agent");
        let program = Path::new("/opt/it's/outlast");
        for theirs in [Some("theirs.json"), Some(r#" {"a": 1}"#), None] {
            let path = install(&agent, base, theirs, program, false).unwrap();
            assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
            let written: Value = serde_json::from_slice(&fs::read(&path).unwrap()).unwrap();
            assert_eq!(written["a"], if theirs.is_some() { json!(1) } else { Value::Null });
            let command = written["hooks"]["PreToolUse"][0]["hooks"][0]["command"].as_str().unwrap();
            assert_eq!(command, r"'/opt/it'\''s/outlast' hook claude");
        }
        for theirs in ["missing.json", "{", "theirs.json/x"] {
            assert!(install(&agent, base, Some(theirs), program, false).is_err(), "{theirs}");
        }
        fs::write(base.join("list.json"), "[]").unwrap();
        assert!(install(&agent, base, Some("list.json"), program, false).is_err());
    }

    #[test]
    fn a_warm_resumption_leaves_gits_status_out_unless_the_person_wants_it() {
        let dir = tempfile::tempdir().unwrap();
        for (theirs, warm, wanted) in [
            ("{}", false, Value::Null),
            ("{}", true, json!(false)),
            (r#"{"includeGitInstructions": true}"#, true, json!(true)),
        ] {
            let path = install(dir.path(), dir.path(), Some(theirs), Path::new("/o"), warm).unwrap();
            let written: Value = serde_json::from_slice(&fs::read(&path).unwrap()).unwrap();
            assert_eq!(written[GIT_INSTRUCTIONS], wanted, "{theirs}");
        }
    }
}

#[cfg(test)]
mod tests_of_git {
    use super::*;

    #[test]
    fn a_status_is_told_with_its_branch_files_and_commits() {
        let told = words("## main...origin/main\n M a.rs\n?? b.rs\n", "1234567 first\n");
        assert!(
            told.contains("Branch: main...origin/main\n M a.rs\n?? b.rs\nNewest commits:\n1234567 first"),
            "{told}"
        );
        assert!(words("## main\n", "").ends_with("No file was changed."));
    }

    #[test]
    fn a_long_status_is_cut() {
        let files: String = (0..500).map(|n| format!("?? file-{n}\n")).collect();
        let told = words(&format!("## main\n{files}"), "");
        assert!(told.len() < BYTES + 100 && told.ends_with(&format!("… and {} more", 500 - LINES)), "{told}");
    }

    #[test]
    fn a_directory_without_a_repository_has_no_status() {
        // An empty directory below the root of the file system's temporary files, which is no working tree.
        assert_eq!(status(tempfile::tempdir().unwrap().path()), None);
    }
}
