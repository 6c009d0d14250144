//! Hooks for Claude Code: a settings file of the run's own with the user's settings merged in. The user's
//! files stay unchanged.

use std::{
    fs, io,
    path::{Path, PathBuf},
};

use serde_json::{Map, Value, json};

use crate::{loops::task_context::quote::quoted, program::file};

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
    file::write(directory, &path, merged.to_string().as_bytes())
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

#[cfg(test)]
mod tests {
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
