//! Gemini CLI: `gemini`. We choose its session id, and it is resumed by `--resume=ID`.
//!
//! Measured with 0.61: a base URL in the environment makes it refuse to start without a way to authenticate in its own
//! settings; it starts itself again as its own child; a tool's process has GEMINI_CLI=1; after kill -9 the unfinished
//! call is gone from its history.

use std::{
    collections::BTreeMap,
    ffi::{OsStr, OsString},
};

use super::{
    With,
    flagged::{Flagged, selected_type},
    options::Takes,
};
use crate::settings::surroundings::Surroundings;

/// Name of the authentication method that honours a base URL, as in Gemini's settings.
const WITH_KEY: &str = "gemini-api-key";

pub const GEMINI: Flagged = Flagged {
    name: "gemini",
    takes,
    subcommands: &["mcp", "extensions", "extension", "skills", "skill", "hooks", "hook", "gemma"],
    prompts: &["-p", "--prompt"],
    talks: &["-i", "--prompt-interactive"],
    ends_after_words: false,
    finds: &["--session-file"],
    sessionless: &[
        "--acp",
        "--experimental-acp",
        "-l",
        "--list-extensions",
        "--list-sessions",
        "--delete-session",
    ],
    starts: &[],
    files: ("GEMINI_CLI_HOME", "", ".gemini/tmp"),
    begun: &["user"],
    tool: "GEMINI_CLI",
    environment,
    leads: |_, _| Vec::new(),
    logins,
    remarks,
};

fn takes(name: &str) -> Option<Takes> {
    Some(match name {
        "-m"
        | "--model"
        | "-p"
        | "--prompt"
        | "-i"
        | "--prompt-interactive"
        | "--approval-mode"
        | "--policy"
        | "--admin-policy"
        | "--allowed-mcp-server-names"
        | "--allowed-tools"
        | "-e"
        | "--extensions"
        | "--session-file"
        | "--session-id"
        | "--delete-session"
        | "--include-directories"
        | "-o"
        | "--output-format" => Takes::One,
        "-w" | "--worktree" | "-r" | "--resume" => Takes::Perhaps,
        "-d"
        | "--debug"
        | "--skip-trust"
        | "-s"
        | "--sandbox"
        | "-y"
        | "--yolo"
        | "--acp"
        | "--experimental-acp"
        | "-l"
        | "--list-extensions"
        | "--list-sessions"
        | "--screen-reader"
        | "--raw-output"
        | "--accept-raw-output-risk"
        | "-v"
        | "--version"
        | "-h"
        | "--help" => Takes::Nothing,
        _ => return None,
    })
}

fn environment(env: &mut BTreeMap<OsString, OsString>, with: &With) {
    // At its own address it needs no setting, and is metered all the same.
    if with.is_intercepted {
        env.remove(OsStr::new("GOOGLE_GEMINI_BASE_URL"));
    }
}

/// Returns the authentication method that Gemini's settings choose. Of several settings files, the machine's counts
/// first, then the directory's, then the person's.
fn logins(around: &Surroundings) -> Vec<String> {
    let home = around.var("GEMINI_CLI_HOME").map(Into::into).or_else(|| around.home());
    let system = around.var("GEMINI_CLI_SYSTEM_SETTINGS_PATH").map(Into::into);
    let files = [
        Some(system.unwrap_or_else(|| "/etc/gemini-cli/settings.json".into())),
        Some(around.directory().join(".gemini/settings.json")),
        home.map(|home: std::path::PathBuf| home.join(".gemini/settings.json")),
        around.var("GEMINI_CLI_SYSTEM_DEFAULTS_PATH").map(Into::into),
    ];
    selected_type(files)
}

fn remarks(with: &With) -> Vec<String> {
    if with.is_intercepted {
        return Vec::new();
    }
    match with.logins.first().map(String::as_str) {
        Some(WITH_KEY) => Vec::new(),
        None => vec![
            "gemini refuses a base URL until its settings say how to authenticate: choose \"Use Gemini API key\" once \
             by /auth in gemini, or start it with `outlast run --new --intercept -- gemini …`"
                .into(),
        ],
        Some(other) => vec![format!(
            "gemini authenticates by {other:?}, as its settings say: only with {WITH_KEY:?} do its calls pass the proxy"
        )],
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::agent::{
        Adapter as _, Names,
        flagged::tests::{ID, check, line},
    };

    #[test]
    fn its_session_is_chosen_once_and_resumed_with_everything_else_the_person_said() {
        check(
            &GEMINI,
            "gemini --yolo -m gemini-3-pro -p hello",
            Names::Ours,
            true,
            "gemini --session-id OURS --yolo -m gemini-3-pro -p hello",
            "gemini --resume=OURS --yolo -m gemini-3-pro -p NOTE",
        );
        check(
            &GEMINI,
            "npx @google/gemini-cli@0.61.0 hello",
            Names::Ours,
            false,
            "npx @google/gemini-cli@0.61.0 --session-id OURS hello",
            "npx @google/gemini-cli@0.61.0 --resume=OURS -i NOTE",
        );
        check(
            &GEMINI,
            "gemini --session-id ID -p hello",
            Names::Session(ID.into()),
            true,
            "gemini --session-id ID -p hello",
            "gemini --resume=OURS -p NOTE",
        );
        check(
            &GEMINI,
            "gemini -r ID -i hello",
            Names::Resumed(ID.into()),
            false,
            "gemini -r ID -i hello",
            "gemini --resume=OURS -i NOTE",
        );
        check(
            &GEMINI,
            "gemini -r latest -p go",
            Names::Theirs,
            true,
            "gemini -r latest -p go",
            "gemini --resume=OURS -p NOTE",
        );
        for text in ["gemini mcp list", "gemini --version", "gemini --list-sessions", "gemini --acp"] {
            assert_eq!(GEMINI.read(&line(text), false).names, Names::Nothing, "{text}");
        }
        assert!(GEMINI.read(&line("gemini hello"), true).headless, "nobody could answer");
    }

    #[test]
    fn a_way_to_authenticate_that_does_not_obey_a_base_url_is_told() {
        let home = tempfile::tempdir().unwrap();
        let around = Surroundings::new(
            &[("HOME", home.path().to_str().unwrap()), ("GEMINI_CLI_SYSTEM_SETTINGS_PATH", "/none")],
            std::path::Path::new("/none"),
        );
        let told = |is_intercepted| {
            remarks(&With { logins: logins(&around), is_intercepted, ..With::default() }).join("")
        };
        assert!(told(false).contains("/auth"), "{}", told(false));
        assert_eq!(told(true), "");
        std::fs::create_dir(home.path().join(".gemini")).unwrap();
        for (kind, wanted) in [("gemini-api-key", ""), ("oauth-personal", "oauth-personal")] {
            let settings = serde_json::json!({"security": {"auth": {"selectedType": kind}}}).to_string();
            std::fs::write(home.path().join(".gemini/settings.json"), settings).unwrap();
            assert!(told(false).contains(wanted) && told(false).is_empty() == wanted.is_empty(), "{kind}");
        }
    }
}
