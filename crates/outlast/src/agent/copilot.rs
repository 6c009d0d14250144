//! Copilot CLI: `copilot`, with a key of the person's own for OpenAI's or Anthropic's API ("bring your own key"). We
//! choose its session id, and it is resumed by `--resume=ID`.
//!
//! Measured with 1.0.102: a provider is chosen by variables alone; without them calls go to GitHub, with a login that is
//! no provider's key; after kill -9 its history has the unfinished call with a result that says so, and advises to check.

use std::{
    collections::BTreeMap,
    ffi::{OsStr, OsString},
};

use outlast_core::run::token::looks_like_token;

use super::{With, flagged::Flagged, options::Takes};
use crate::settings::keys;

pub const COPILOT: Flagged = Flagged {
    name: "copilot",
    takes,
    subcommands: &[
        "app",
        "login",
        "help",
        "init",
        "config",
        "update",
        "version",
        "workflow",
        "sessions",
        "memories",
        "plugin",
        "mcp",
        "skill",
        "instruction",
        "lsp",
        "sandbox",
        "completion",
    ],
    prompts: &["-p", "--prompt"],
    talks: &["-i", "--interactive"],
    ends_after_words: false,
    finds: &["--continue", "--connect"],
    sessionless: &["--acp", "--environment-host"],
    starts: &["-n", "--name", "--attachment"],
    files: ("COPILOT_HOME", ".copilot", "session-state"),
    begun: &["user.message"],
    tool: "COPILOT_CLI",
    environment,
    leads: |_, _| Vec::new(),
    logins: |_| Vec::new(),
    remarks: |_| Vec::new(),
};

const URL: &str = "COPILOT_PROVIDER_BASE_URL";
const KIND: &str = "COPILOT_PROVIDER_TYPE";
const KEY: &str = "COPILOT_PROVIDER_API_KEY";

/// Variables with other credentials, each of which takes precedence over the key.
const OTHER_KEYS: [&str; 2] = ["COPILOT_PROVIDER_API_KEY_COMMAND", "COPILOT_PROVIDER_BEARER_TOKEN"];

/// Hosts whose calls the proxy can take instead.
const HOSTS: [&str; 2] = ["https://api.openai.com", "https://api.anthropic.com"];

fn takes(name: &str) -> Option<Takes> {
    Some(match name {
        "-i"
        | "--interactive"
        | "-p"
        | "--prompt"
        | "--model"
        | "--reasoning-effort"
        | "--context"
        | "--auto-tier"
        | "--agent"
        | "-n"
        | "--name"
        | "--session-id"
        | "-C"
        | "--log-dir"
        | "--extension-sdk-path"
        | "--log-level"
        | "--stream"
        | "--output-format"
        | "--add-dir"
        | "--attachment"
        | "--disable-mcp-server"
        | "--add-github-mcp-toolset"
        | "--add-github-mcp-tool"
        | "--plugin-dir"
        | "--additional-mcp-config"
        | "--mcp-github-auth"
        | "--max-autopilot-continues"
        | "--mode"
        | "--environment-host"
        | "--environment-compute-id"
        | "--dynamic-retrieval"
        | "--enable-mcp-server"
        | "--max-ai-credits"
        | "--usage-output-file" => Takes::One,
        "-r" | "--resume" | "--connect" | "--share" | "--bash-env" | "--mouse" => Takes::Perhaps,
        "--allow-tool" | "--deny-tool" | "--available-tools" | "--excluded-tools" | "--secret-env-vars"
        | "--allow-url" | "--deny-url" => Takes::Many,
        "-v"
        | "--version"
        | "--fleet"
        | "--trust-folder"
        | "-s"
        | "--silent"
        | "--disable-client-telemetry"
        | "--enable-memory"
        | "--continue"
        | "--allow-all-tools"
        | "--allow-all-paths"
        | "--disallow-temp-dir"
        | "--banner"
        | "--screen-reader"
        | "--plain-diff"
        | "--share-gist"
        | "--disable-builtin-mcps"
        | "--enable-all-github-mcp-tools"
        | "--allow-all-mcp-server-instructions"
        | "--allow-all-urls"
        | "--allow-all"
        | "--yolo"
        | "--autopilot"
        | "--plan"
        | "--experimental"
        | "--acp"
        | "--remote"
        | "--remote-export"
        | "--assisted-approval"
        | "--no-custom-instructions"
        | "--no-auto-update"
        | "--no-ask-user"
        | "--no-color"
        | "--no-experimental"
        | "--no-bash-env"
        | "--no-mouse"
        | "--no-remote"
        | "--no-remote-export"
        | "-h"
        | "--help" => Takes::Nothing,
        _ => return None,
    })
}

/// Points a provider that the person has chosen at the proxy. Nobody's GitHub plan is exchanged for a key.
fn environment(env: &mut BTreeMap<OsString, OsString>, _with: &With) {
    let text = |name: &str| env.get(OsStr::new(name)).and_then(|v| v.to_str()).filter(|v| !v.is_empty());
    let url = text(URL);
    let is_chosen = url.is_some() || text(KIND).is_some() || text(KEY).is_some();
    // A provider elsewhere stays where it is.
    let is_elsewhere = url.is_some_and(|url| !HOSTS.iter().any(|host| is_at(url, host)));
    let (base, key) = match text(KIND) {
        None | Some("openai") => (text("OPENAI_BASE_URL"), text(keys::OPENAI)),
        Some("anthropic") => (text("ANTHROPIC_BASE_URL"), text(keys::ANTHROPIC)),
        Some(_) => return,
    };
    let Some(base) = base.filter(|_| is_chosen && !is_elsewhere) else { return };
    let (base, token) = (base.to_owned(), key.filter(|key| looks_like_token(key)).map(str::to_owned));
    env.insert(URL.into(), base.into());
    if let Some(token) = token {
        env.insert(KEY.into(), token.into());
        for other in OTHER_KEYS {
            env.remove(OsStr::new(other));
        }
    }
}

fn is_at(url: &str, host: &str) -> bool {
    url.strip_prefix(host).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
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
            &COPILOT,
            "copilot --allow-tool=shell(git:*) write --model gpt-5 -p hello",
            Names::Ours,
            true,
            "copilot --session-id OURS --allow-tool=shell(git:*) write --model gpt-5 -p hello",
            "copilot --resume=OURS --allow-tool shell(git:*) --model gpt-5 -p NOTE",
        );
        check(
            &COPILOT,
            "npx -y @github/copilot -n fix -i hello",
            Names::Ours,
            false,
            "npx -y @github/copilot --session-id OURS -n fix -i hello",
            "npx -y @github/copilot --resume=OURS -i NOTE",
        );
        check(
            &COPILOT,
            "copilot --resume=ID --yolo",
            Names::Resumed(ID.into()),
            false,
            "copilot --resume=ID --yolo",
            "copilot --resume=OURS --yolo -i NOTE",
        );
        check(
            &COPILOT,
            "copilot --continue -p go",
            Names::Theirs,
            true,
            "copilot --continue -p go",
            "copilot --resume=OURS -p NOTE",
        );
        for text in ["copilot mcp", "copilot --version", "copilot --acp"] {
            assert_eq!(COPILOT.read(&line(text), false).names, Names::Nothing, "{text}");
        }
    }

    #[test]
    fn only_a_provider_that_the_person_chose_is_pointed_at_the_proxy() {
        let of = |set: &[(&str, &str)]| {
            let mut env: BTreeMap<OsString, OsString> =
                set.iter().map(|(name, value)| (name.into(), value.into())).collect();
            env.insert("OPENAI_BASE_URL".into(), "http://p/v1".into());
            env.insert("ANTHROPIC_BASE_URL".into(), "http://p".into());
            environment(&mut env, &With::default());
            let get = |name: &str| env.get(OsStr::new(name)).map(|v| v.to_string_lossy().into_owned());
            (get(URL), get(KEY), get(OTHER_KEYS[1]))
        };
        let text = |text: &str| Some(text.to_owned());
        assert_eq!(of(&[("OPENAI_API_KEY", "ol_x")]), (None, None, None), "the login at GitHub stays");
        assert_eq!(
            of(&[(KIND, "openai"), ("OPENAI_API_KEY", "ol_x")]),
            (text("http://p/v1"), text("ol_x"), None)
        );
        assert_eq!(of(&[(KIND, "anthropic"), (KEY, "sk-own")]), (text("http://p"), text("sk-own"), None));
        let official = [(URL, "https://api.openai.com/v1"), (KEY, "sk-own"), (OTHER_KEYS[1], "b")];
        assert_eq!(of(&official), (text("http://p/v1"), text("sk-own"), text("b")));
        let ours = [(URL, "https://api.openai.com/v1"), (OTHER_KEYS[1], "b"), ("OPENAI_API_KEY", "ol_x")];
        assert_eq!(of(&ours), (text("http://p/v1"), text("ol_x"), None));
        for url in ["http://localhost:11434/v1", "https://api.openai.com.evil.example/v1"] {
            assert_eq!(of(&[(URL, url), ("OPENAI_API_KEY", "ol_x")]), (text(url), None, None));
        }
        assert_eq!(of(&[(KIND, "azure"), (KEY, "k")]), (None, text("k"), None));
    }
}
