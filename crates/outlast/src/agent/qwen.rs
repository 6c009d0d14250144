//! Qwen Code: `qwen`. We choose its session id, and it is resumed by `--resume=ID`.
//!
//! Measured with 0.24: OPENAI_BASE_URL and OPENAI_API_KEY are obeyed once OpenAI's API is chosen, which `--auth-type`
//! does; it starts itself again as its own child; after kill -9 its history has the unfinished call with a result that
//! says "Treat as failure and retry if needed".

use super::{
    With,
    flagged::{Flagged, selected_type},
    options::{Piece, Takes, has},
};
use crate::settings::surroundings::Surroundings;

pub const QWEN: Flagged = Flagged {
    name: "qwen",
    takes,
    subcommands: &[
        "auth",
        "board",
        "channel",
        "extensions",
        "hooks",
        "mcp",
        "review",
        "sandbox",
        "serve",
        "sessions",
        "update",
    ],
    prompts: &["-p", "--prompt"],
    talks: &["-i", "--prompt-interactive"],
    ends_after_words: true,
    finds: &["-c", "--continue", "--fork-session"],
    sessionless: &["--acp", "--experimental-acp", "-l", "--list-extensions", "--input-file"],
    starts: &[],
    files: ("QWEN_HOME", ".qwen", "projects"),
    begun: &["user"],
    tool: "QWEN_CODE",
    environment: |_, _| (),
    leads,
    logins,
    remarks: |_| Vec::new(),
};

fn takes(name: &str) -> Option<Takes> {
    Some(match name {
        "--telemetry-target"
        | "--telemetry-otlp-endpoint"
        | "--telemetry-otlp-protocol"
        | "--telemetry-outfile"
        | "--proxy"
        | "-m"
        | "--model"
        | "--fallback-model"
        | "-p"
        | "--prompt"
        | "-i"
        | "--prompt-interactive"
        | "--system-prompt"
        | "--append-system-prompt"
        | "--output-style"
        | "--sandbox-image"
        | "--approval-mode"
        | "--channel"
        | "--allowed-mcp-server-names"
        | "--mcp-config"
        | "--allowed-tools"
        | "-e"
        | "--extensions"
        | "--include-directories"
        | "--add-dir"
        | "--openai-logging-dir"
        | "--openai-api-key"
        | "--openai-base-url"
        | "--input-format"
        | "-o"
        | "--output-format"
        | "--json-fd"
        | "--json-file"
        | "--json-schema"
        | "--input-file"
        | "--session-id"
        | "--worktree"
        | "--max-session-turns"
        | "--max-wall-time"
        | "--max-tool-calls"
        | "--max-subagent-depth"
        | "--core-tools"
        | "--exclude-tools"
        | "--disabled-slash-commands"
        | "--auth-type" => Takes::One,
        "-r" | "--resume" => Takes::Perhaps,
        "--telemetry"
        | "--telemetry-log-prompts"
        | "-d"
        | "--debug"
        | "--bare"
        | "--safe-mode"
        | "--insecure"
        | "--chat-recording"
        | "-s"
        | "--sandbox"
        | "-y"
        | "--yolo"
        | "--acp"
        | "--experimental-acp"
        | "--experimental-lsp"
        | "--restore-ask-user-question"
        | "-l"
        | "--list-extensions"
        | "--openai-logging"
        | "--screen-reader"
        | "--include-partial-messages"
        | "-c"
        | "--continue"
        | "--fork-session"
        | "-v"
        | "--version"
        | "-h"
        | "--help" => Takes::Nothing,
        _ => return None,
    })
}

/// Chooses OpenAI's API where the person has chosen none.
fn leads(pieces: &[Piece], with: &With) -> Vec<String> {
    match has(pieces, &["--auth-type"]) || !with.logins.is_empty() {
        true => Vec::new(),
        false => ["--auth-type", "openai"].map(str::to_owned).into(),
    }
}

fn logins(around: &Surroundings) -> Vec<String> {
    let own = around.named_or_home("QWEN_HOME", ".qwen").map(|own| own.join("settings.json"));
    let files = [Some(around.directory().join(".qwen/settings.json")), own];
    selected_type(files)
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
            &QWEN,
            "qwen --yolo -m qwen3-coder-plus hello",
            Names::Ours,
            true,
            "qwen --auth-type openai --session-id OURS --yolo -m qwen3-coder-plus hello",
            "qwen --auth-type openai --resume=OURS --yolo -m qwen3-coder-plus -p NOTE",
        );
        check(
            &QWEN,
            "npx @qwen-code/qwen-code --auth-type anthropic -i hello",
            Names::Ours,
            false,
            "npx @qwen-code/qwen-code --session-id OURS --auth-type anthropic -i hello",
            "npx @qwen-code/qwen-code --resume=OURS --auth-type anthropic -i NOTE",
        );
        check(
            &QWEN,
            "qwen --resume ID -p go",
            Names::Resumed(ID.into()),
            true,
            "qwen --auth-type openai --resume ID -p go",
            "qwen --auth-type openai --resume=OURS -p NOTE",
        );
        check(
            &QWEN,
            "qwen -c go",
            Names::Theirs,
            true,
            "qwen --auth-type openai -c go",
            "qwen --auth-type openai --resume=OURS -p NOTE",
        );
        for text in ["qwen serve", "qwen --help", "qwen --acp"] {
            assert_eq!(QWEN.read(&line(text), false).names, Names::Nothing, "{text}");
            assert_eq!(QWEN.begin(&line(text), &With::default(), None).join(" "), text);
        }
    }

    #[test]
    fn an_api_that_the_person_has_chosen_stays() {
        let home = tempfile::tempdir().unwrap();
        let around =
            Surroundings::new(&[("HOME", home.path().to_str().unwrap())], std::path::Path::new("/none"));
        assert_eq!(QWEN.logins(&around), Vec::<String>::new());
        std::fs::create_dir(home.path().join(".qwen")).unwrap();
        let settings = r#"{"security": {"auth": {"selectedType": "anthropic"}}}"#;
        std::fs::write(home.path().join(".qwen/settings.json"), settings).unwrap();
        let with = With { logins: QWEN.logins(&around), ..With::default() };
        assert_eq!(QWEN.begin(&line("qwen hello"), &with, None).join(" "), "qwen hello");
    }
}
