//! Model that a CLI agent is going to ask, as far as its command line and its own settings name it.

use std::fs;

use serde_json::Value;

use super::{Choice, find};
use crate::{program::error::CliError, settings::surroundings::Surroundings};

/// Agents whose `-m` is short for `--model`.
const SHORT: [&str; 4] = ["codex", "gemini", "opencode", "qwen"];

/// Returns the model that the command's agent is told to ask; `None` if the command is no known agent, or nothing names
/// a model. An agent's own word for a model, such as `opus`, is returned as it is.
pub fn named(choice: &Choice, argv: &[String], around: &Surroundings) -> Result<Option<String>, CliError> {
    let Some((adapter, line)) = find(choice, argv, around)? else { return Ok(None) };
    let variable = |name: &str| Some(around.var(name)?.to_string_lossy().into_owned());
    let settings = |place: &str, name: &str| fs::read_to_string(around.expand(place)?.join(name)).ok();
    let model = typed(&line.tail, SHORT.contains(&adapter.name())).or_else(|| match adapter.name() {
        "claude" => variable("ANTHROPIC_MODEL").or_else(|| {
            let text = settings("${CLAUDE_CONFIG_DIR:-~/.claude}", "settings.json")?;
            Some(serde_json::from_str::<Value>(&text).ok()?["model"].as_str()?.to_owned())
        }),
        "codex" => {
            let table: toml::Table = settings("${CODEX_HOME:-~/.codex}", "config.toml")?.parse().ok()?;
            Some(table.get("model")?.as_str()?.to_owned())
        }
        "gemini" => variable("GEMINI_MODEL"),
        _ => None,
    });
    // Claude Code's mark of a longer context is no part of the model's name.
    Ok(model.map(|model| model.split('[').next().unwrap_or_default().to_owned()))
}

/// Returns the value of the last `--model`, or of `-m` where that is short for it.
fn typed(arguments: &[String], has_short: bool) -> Option<String> {
    let is_option = |word: &str| word == "--model" || has_short && word == "-m";
    let arguments = arguments.split(|word| word == "--").next()?;
    let apart = arguments.windows(2).filter(|pair| is_option(&pair[0])).map(|pair| pair[1].as_str());
    let joined = arguments.iter().filter_map(|word| word.strip_prefix("--model="));
    joined.chain(apart).next_back().map(str::to_owned)
}

#[cfg(test)]
mod tests {
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
            let model = named(&Choice::Auto, &argv, &Surroundings::new(&all, home.path()));
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
