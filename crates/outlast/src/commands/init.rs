//! `outlast init`: writes a commented `outlast.toml` for the agents that it finds, and says the one command to type.

use std::{fs::OpenOptions, io::Write as _};

use outlast_core::named;

use super::prelude::*;
use crate::settings::file;

/// Write an outlast.toml for this directory, and say the one command to type
///
/// Looks for Claude Code, Codex, and programs in Python and for Node. In the file every key is a comment, so that
/// nothing changes until you want it to. A file that is there is left as it is.
#[derive(Args, Clone, Debug)]
#[command(after_help = "Example:\n  cd project && outlast init")]
pub struct InitArgs {}

named! {
    /// Kind of agent.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
    #[serde(rename_all = "snake_case")]
    pub enum Kind {
        ClaudeCode "Claude Code",
        Codex "Codex",
        Python "Python",
        Node "Node",
    }
}

/// Agent, or a program that may be one, with the command that starts it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
struct Find {
    kind: Kind,
    /// File or text by which it was known.
    by: String,
    command: String,
    /// Whether its project names a library that asks models.
    asks_models: bool,
}

/// Words of the libraries by which programs ask models, as manifests and imports have them.
const LIBRARIES: &str =
    "openai anthropic google-genai google.genai langchain langgraph pydantic-ai pydantic_ai litellm @ai-sdk/";

/// Longest file that is searched for these words, in bytes.
const LONGEST: u64 = 1 << 20;

/// Writes the file, unless the directory has one, and prints what was found and the command.
pub fn init(_: &InitArgs, context: &Context, page: &mut Page) -> Result {
    begin(&context.around, page)
}

fn begin(around: &Surroundings, page: &mut Page) -> Result {
    let path = around.directory().join(file::FILE);
    let finds = finds(around);
    let written = match OpenOptions::new().write(true).create_new(true).open(&path) {
        Ok(mut file) => file.write_all(text(&finds).as_bytes()).map(|()| true)?,
        Err(e) if e.kind() == io::ErrorKind::AlreadyExists => false,
        Err(e) => return Err(e.into()),
    };
    let command =
        format!("outlast run --usd 5 -- {}", first(&finds).map_or("python agent.py", |find| &find.command));
    if page.look.json {
        return Ok(
            page.json(&json!({ "path": path, "written": written, "found": finds, "command": command }))?
        );
    }
    page.line(&match written {
        true => format!("wrote {}; each key in it is a comment until you take its # away", path.display()),
        false => format!("{} is there, and was left as it is", path.display()),
    })?;
    for find in &finds {
        page.line(&format!("found {}: {}", find.kind.name(), find.by))?;
    }
    page.line(&format!("type: {command}"))?;
    Ok(())
}

/// Returns the find whose command is typed: a program that asks models, else a CLI agent, else any program.
fn first(finds: &[Find]) -> Option<&Find> {
    let is_cli = |find: &&Find| matches!(find.kind, Kind::ClaudeCode | Kind::Codex);
    finds.iter().find(|find| find.asks_models).or_else(|| finds.iter().find(is_cli)).or(finds.first())
}

/// Looks for CLI agents on the PATH and in the directory, and for the directory's own programs.
fn finds(around: &Surroundings) -> Vec<Find> {
    let directory = around.directory();
    let cli = |kind, program: &str, traces: &[&str]| {
        let trace =
            traces.iter().find(|trace| directory.join(trace).exists()).map(|trace| (*trace).to_owned());
        let by = trace.or_else(|| Some(around.on_path(program).next()?.display().to_string()))?;
        Some(Find { kind, by, command: program.to_owned(), asks_models: false })
    };
    [
        cli(Kind::ClaudeCode, "claude", &[".claude", "CLAUDE.md"]),
        cli(Kind::Codex, "codex", &[".codex"]),
        python(directory),
        node(directory),
    ]
    .into_iter()
    .flatten()
    .collect()
}

fn python(directory: &Path) -> Option<Find> {
    let program = one_of(directory, &["agent.py", "main.py", "app.py"]);
    let manifest = one_of(directory, &["pyproject.toml", "requirements.txt", "setup.py", "uv.lock"]);
    let runner = if directory.join("uv.lock").is_file() { "uv run" } else { "python" };
    Some(Find {
        kind: Kind::Python,
        by: manifest.or(program)?.to_owned(),
        command: format!("{runner} {}", program.unwrap_or("agent.py")),
        asks_models: [manifest, program]
            .into_iter()
            .flatten()
            .any(|name| names_library(&directory.join(name))),
    })
}

fn node(directory: &Path) -> Option<Find> {
    const MANIFEST: &str = "package.json";
    let program = one_of(directory, &["agent.mjs", "agent.js", "agent.ts", "index.mjs", "index.js"]);
    let text = read(&directory.join(MANIFEST));
    let manifest: serde_json::Value = serde_json::from_str(&text).unwrap_or_default();
    let command = match (manifest["scripts"]["start"].as_str(), program.or(manifest["main"].as_str())) {
        (Some(_), _) => "npm start".to_owned(),
        (None, program) => format!("node {}", program.unwrap_or("agent.mjs")),
    };
    Some(Find {
        kind: Kind::Node,
        by: one_of(directory, &[MANIFEST]).or(program)?.to_owned(),
        command,
        asks_models: program.into_iter().chain([MANIFEST]).any(|name| names_library(&directory.join(name))),
    })
}

/// Returns the first of the names that is a file of the directory.
fn one_of<'a>(directory: &Path, names: &[&'a str]) -> Option<&'a str> {
    names.iter().copied().find(|name| directory.join(name).is_file())
}

fn names_library(path: &Path) -> bool {
    let text = read(path);
    LIBRARIES.split(' ').any(|library| text.contains(library))
}

/// Returns a file's text; empty if it has none, or is longer than any manifest.
fn read(path: &Path) -> String {
    let is_short = fs::metadata(path).is_ok_and(|found| found.is_file() && found.len() <= LONGEST);
    if is_short { fs::read_to_string(path).unwrap_or_default() } else { String::new() }
}

/// Text of the file. What it proposes is a default, or narrower than the default: no line loosens a limit.
fn text(finds: &[Find]) -> String {
    let mut out = String::from(
        "# Settings of Outlast for this directory. Take the # off a key to set it; then `outlast trust` lets the file count,
# as it is: an agent that works here could write it, too. A key is a long flag of a command, with _ for -; a typed flag
# comes first. Your own file, for all directories, is ~/.config/outlast/outlast.toml.

# What a run may spend. At a limit it stops, and goes on where it was once you give it room.
# usd = 5
# calls = 500
# wall = \"8h\"

# How often an agent that died is started again.
# restarts = 10
",
    );
    for find in finds {
        out.push_str(&format!(
            "\n# {}, found by {}:\n#     outlast run -- {}\n",
            find.kind.name(),
            find.by,
            find.command
        ));
        out.push_str(match find.kind {
            Kind::ClaudeCode | Kind::Codex => {
                "# On a subscription: the share of its windows, other devices' use included, at which a run sleeps.
# plan = \"5h=80%,week=60%\"
"
            }
            Kind::Python | Kind::Node => {
                "# A restarted program that asks for something new while answers are left is halted, and does not pay.
# on_divergence = \"halt\"
"
            }
        });
    }
    // A key is given once, whatever was found.
    let mut seen: Vec<&str> = Vec::new();
    let lines = out.lines().filter(|line| {
        let is_new = key(line).is_none_or(|key| !seen.contains(&key));
        seen.extend(key(line));
        is_new
    });
    lines.map(|line| format!("{line}\n")).collect()
}

/// Returns the key that a line has commented out.
fn key(line: &str) -> Option<&str> {
    let (key, _) = line.strip_prefix("# ")?.split_once(" = ")?;
    key.bytes().all(|b| b.is_ascii_lowercase() || b == b'_').then_some(key)
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use super::*;
    use crate::{
        commands::config,
        render::look::Look,
        settings::{file::SettingsFile, trust::Trust},
    };

    fn with_files(files: &[(&str, &str)]) -> tempfile::TempDir {
        let dir = tempfile::tempdir().unwrap();
        for (name, text) in files {
            let path = dir.path().join(name);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        }
        dir
    }

    fn typed(files: &[(&str, &str)]) -> String {
        let dir = with_files(files);
        let around = Surroundings::new(&[("PATH", dir.path().join("bin").to_str().unwrap())], dir.path());
        first(&finds(&around)).map(|find| find.command.clone()).unwrap_or_default()
    }

    #[test]
    fn the_command_is_of_what_asks_models_before_what_is_installed() {
        let check = |files: &[(&str, &str)], wanted: &str| assert_eq!(typed(files), wanted, "{files:?}");
        check(&[], "");
        check(&[("bin/claude", ""), ("bin/codex", "")], "claude");
        check(&[(".codex/config.toml", "")], "codex");
        check(&[("main.py", "print()"), ("CLAUDE.md", "")], "claude");
        check(&[("main.py", "print()")], "python main.py");
        check(&[("main.py", "import openai"), ("bin/claude", "")], "python main.py");
        check(&[("pyproject.toml", "dependencies = ['anthropic']"), ("uv.lock", "")], "uv run agent.py");
        check(&[("package.json", r#"{"main": "bot.js"}"#)], "node bot.js");
        check(
            &[
                ("package.json", r#"{"scripts": {"start": "x"}, "dependencies": {"@ai-sdk/x": "1"}}"#),
                ("bin/codex", ""),
            ],
            "npm start",
        );
    }

    #[test]
    fn each_line_of_the_file_is_a_comment_and_each_key_a_setting() {
        let kinds = [Kind::ClaudeCode, Kind::Codex, Kind::Python, Kind::Node];
        let finds = kinds.map(|kind| Find { kind, by: "x".into(), command: "x".into(), asks_models: false });
        let text = text(&finds);
        assert!(text.lines().all(|line| line.is_empty() || line.starts_with('#')), "{text}");
        let set: Vec<&str> = text.lines().filter(|line| key(line).is_some()).collect();
        assert!(set.len() > 4, "{text}");
        let text = set.iter().map(|line| format!("{}\n", &line[2..])).collect();
        config::check(SettingsFile { path: PathBuf::from("outlast.toml"), text, trust: Trust::Given })
            .unwrap();
    }

    #[test]
    fn a_file_that_is_there_stays_as_it_is() {
        let dir = with_files(&[("outlast.toml", "usd = 1\n")]);
        let around = Surroundings::new(&[], dir.path());
        let mut out = Vec::new();
        begin(&around, &mut Page::new(&mut out, Look::default())).unwrap();
        assert_eq!(fs::read_to_string(dir.path().join("outlast.toml")).unwrap(), "usd = 1\n");
        let said = String::from_utf8(out).unwrap();
        assert!(said.contains("was left as it is\ntype: outlast run --usd 5 -- python agent.py\n"), "{said}");
    }
}
