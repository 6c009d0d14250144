//! Settings in a CLI agent's own files: the subscription that pays for its calls, and the model that it is going to ask.

use std::{fs, path::Path};

use outlast_server::dialect::Upstream;
use serde_json::Value;

use super::{Choice, find};
use crate::{
    program::error::CliError,
    settings::{keys::Keys, surroundings::Surroundings},
};

/// Returns the subscription whose login pays for the command's calls: `claude.ai` or `ChatGPT`. `None` if the command
/// is no agent with such a login, or if `keys` has the provider's key, which is used instead.
///
/// The login is read from the agent's own file of credentials. No credential is kept.
pub fn login(
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

/// Returns the model that the command's agent is told to ask; `None` if the command is no known agent, or nothing names
/// a model. An agent's own word for a model, such as `opus`, is returned as it is.
pub fn model(choice: &Choice, argv: &[String], around: &Surroundings) -> Result<Option<String>, CliError> {
    let Some((adapter, line)) = find(choice, argv, around)? else { return Ok(None) };
    let row = adapter.row();
    let variable = || Some(around.var(&row.model_variable)?.to_string_lossy().into_owned());
    let settings = || {
        let file = around.expand(&row.model_settings)?;
        let text = fs::read_to_string(&file).ok()?;
        let is_toml = file.extension().is_some_and(|kind| kind == "toml");
        let settings: Value =
            if is_toml { toml::from_str(&text).ok()? } else { serde_json::from_str(&text).ok()? };
        Some(settings["model"].as_str()?.to_owned())
    };
    let model = typed(&line.tail, &row.model_short).or_else(variable).or_else(settings);
    // Claude Code's mark of a longer context is no part of the model's name.
    Ok(model.map(|model| model.split('[').next().unwrap_or_default().to_owned()))
}

/// Returns the value of the last `--model`, or of its `short` form.
fn typed(arguments: &[String], short: &str) -> Option<String> {
    let is_option = |word: &str| word == "--model" || !short.is_empty() && word == short;
    let arguments = arguments.split(|word| word == "--").next()?;
    let apart = arguments.windows(2).filter(|pair| is_option(&pair[0])).map(|pair| pair[1].as_str());
    let joined = arguments.iter().filter_map(|word| word.strip_prefix("--model="));
    joined.chain(apart).next_back().map(str::to_owned)
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
                let of = |keys: &Keys| super::login(&Choice::Auto, &argv, keys, &around).unwrap();
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

#[cfg(test)]
mod tests_of_model {
    use super::*;

    #[test]
    fn the_model_is_the_one_that_is_typed_or_else_that_of_the_agents_settings() {
        let home = tempfile::tempdir().unwrap();
        for (directory, file, text) in [
            (".codex", "config.toml", "model = \"gpt-5.9\"\n[projects]\n"),
            (".claude", "settings.json", r#"{"model": "opus[1m]"}"#),
        ] {
            fs::create_dir(home.path().join(directory)).unwrap();
            fs::write(home.path().join(directory).join(file), text).unwrap();
        }
        let check = |line: &str, variables: &[(&str, &str)], wanted: Option<&str>| {
            let mut all = vec![("HOME", home.path().to_str().unwrap())];
            all.extend(variables);
            let argv: Vec<String> = line.split(' ').map(str::to_owned).collect();
            let model = model(&Choice::Auto, &argv, &Surroundings::new(&all, home.path()));
            assert_eq!(model.unwrap().as_deref(), wanted, "{line}");
        };
        check("codex exec -m gpt-6 hello", &[], Some("gpt-6"));
        check("npx @openai/codex --model=gpt-6", &[], Some("gpt-6"));
        check("codex exec hello", &[], Some("gpt-5.9"));
        check("codex exec hello -- --model gpt-6", &[], Some("gpt-5.9"));
        check("codex exec hello", &[("CODEX_HOME", "/not/there")], None);
        check("claude --model claude-opus-9[1m] -p hello", &[], Some("claude-opus-9"));
        check("claude -p hello", &[("ANTHROPIC_MODEL", "sonnet")], Some("sonnet"));
        check("claude -p hello", &[], Some("opus"));
        check("aider -m gpt-6", &[], None);
        check("aider --model gpt-6 -m hello", &[], Some("gpt-6"));
        check("python agent.py --model gpt-6", &[], None);
    }
}
