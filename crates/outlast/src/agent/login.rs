//! Logins of CLI agents that are paid by a subscription: their calls have a list price, and are not billed by the call.

use std::{fs, path::Path};

use serde_json::Value;

use super::{Choice, find};
use crate::{
    program::error::CliError,
    settings::{keys::Keys, surroundings::Surroundings},
};
use outlast_server::dialect::Upstream;

/// Returns the subscription whose login pays for the command's calls: `claude.ai` or `ChatGPT`. `None` if the command
/// is no agent with such a login, or if `keys` has the provider's key, which is used instead.
///
/// The login is read from the agent's own file of credentials. No credential is kept.
pub fn of(
    choice: &Choice,
    argv: &[String],
    keys: &Keys,
    around: &Surroundings,
) -> Result<Option<&'static str>, CliError> {
    let Some((adapter, _)) = find(choice, argv, around)? else { return Ok(None) };
    Ok(match adapter.name() {
        "claude" if keys.of(Upstream::Anthropic).is_none() && is_claude_ai(around) => Some("claude.ai"),
        "codex" if keys.of(Upstream::OpenAi).is_none() && is_chatgpt(around) => Some("ChatGPT"),
        _ => None,
    })
}

fn is_claude_ai(around: &Surroundings) -> bool {
    // Each of these sends Claude Code's calls elsewhere, or with a key that is billed.
    let others =
        ["ANTHROPIC_AUTH_TOKEN", "CLAUDE_CODE_USE_BEDROCK", "CLAUDE_CODE_USE_VERTEX", "ANTHROPIC_BASE_URL"];
    if others.iter().any(|name| around.var(name).is_some()) {
        return false;
    }
    let kept =
        around.expand("${CLAUDE_CONFIG_DIR:-~/.claude}/.credentials.json").and_then(|file| json(&file));
    around.var("CLAUDE_CODE_OAUTH_TOKEN").is_some()
        || kept.is_some_and(|kept| kept["claudeAiOauth"].is_object())
}

fn is_chatgpt(around: &Surroundings) -> bool {
    let kept = around.expand("${CODEX_HOME:-~/.codex}/auth.json").and_then(|file| json(&file));
    let Some(kept) = kept else { return false };
    // With a key beside it, Codex uses the key unless it says otherwise.
    let has_key = kept["OPENAI_API_KEY"].as_str().is_some_and(|key| !key.is_empty());
    kept["tokens"].is_object() && (kept["auth_mode"] == "chatgpt" || !has_key)
}

fn json(path: &Path) -> Option<Value> {
    serde_json::from_slice(&fs::read(path).ok()?).ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::settings::keys::{Key, Origin};

    #[test]
    fn a_login_pays_where_no_key_does() {
        let home = tempfile::tempdir().unwrap();
        let check =
            |program: &str, file: &str, text: &str, variables: &[(&str, &str)], wanted: Option<&str>| {
                let path = home.path().join(file);
                fs::create_dir_all(path.parent().unwrap()).unwrap();
                fs::write(&path, text).unwrap();
                let mut all = vec![("HOME", home.path().to_str().unwrap())];
                all.extend(variables);
                let around = Surroundings::new(&all, home.path());
                let argv = [program.to_owned(), "hello".to_owned()];
                let of = |keys: &Keys| super::of(&Choice::Auto, &argv, keys, &around).unwrap();
                assert_eq!(of(&Keys::default()), wanted, "{program} {text} {variables:?}");
                let key = Some(Key { value: "sk".into(), origin: Origin::Environment });
                let mut keys = Keys::default();
                Upstream::ALL.into_iter().for_each(|upstream| keys.of_mut(upstream).clone_from(&key));
                assert_eq!(of(&keys), None);
            };
        let (claude, oauth) = (".claude/.credentials.json", r#"{"claudeAiOauth": {"accessToken": "x"}}"#);
        check("claude", claude, oauth, &[], Some("claude.ai"));
        check("claude", claude, oauth, &[("ANTHROPIC_AUTH_TOKEN", "t")], None);
        check("claude", claude, "{}", &[], None);
        check("claude", claude, "{}", &[("CLAUDE_CODE_OAUTH_TOKEN", "t")], Some("claude.ai"));
        check("python", claude, oauth, &[], None);
        let codex = ".codex/auth.json";
        check(
            "codex",
            codex,
            r#"{"OPENAI_API_KEY": null, "tokens": {"id_token": "x"}}"#,
            &[],
            Some("ChatGPT"),
        );
        check("codex", codex, r#"{"OPENAI_API_KEY": "sk-1", "tokens": null}"#, &[], None);
        check("codex", codex, r#"{"OPENAI_API_KEY": "sk-1", "tokens": {}}"#, &[], None);
        check(
            "codex",
            codex,
            r#"{"auth_mode": "chatgpt", "OPENAI_API_KEY": "sk-1", "tokens": {}}"#,
            &[],
            Some("ChatGPT"),
        );
    }
}
