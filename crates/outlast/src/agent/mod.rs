//! Known CLI agents: how one is started under a run, and started again in its own session.
//!
//! Replays do not help an agent that keeps its conversation itself. When it is started again it must be told
//! which session to resume, and the outcome of the tools it had begun (`truth`). What is known of a program is a file
//! (`row`), and what it does differently from others a file of Rust behind [`Adapter`]; `conduct` applies both to the
//! attempts of a run, `command` to an agent that a script of the run starts (`outlast agent`).

pub mod aider;
pub mod claude;
pub mod codex;
pub mod command;
pub mod conduct;
pub mod daemons;
pub mod declaration;
pub mod eyes;
pub mod flagged;
pub mod hook;
pub mod inside;
pub mod line;
pub mod note;
pub mod open_calls;
pub mod opencode;
pub mod own_settings;
pub mod row;
pub mod servers;
pub mod session;
pub mod transcript;
pub mod truth;

use std::{
    collections::{BTreeMap, HashSet},
    ffi::OsString,
    fs::DirEntry,
    path::{Path, PathBuf},
};

use outlast_server::dialect::conversation::{ToolCall, Turn};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use self::{
    eyes::Patterns,
    flagged::Flagged,
    line::{Line, has},
    row::Row,
    servers::Servers,
};
use crate::{
    program::error::{CliError, RunError},
    settings::surroundings::Surroundings,
};

/// Source of the session id, according to the command line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Names {
    /// The user named a new session.
    Session(String),
    /// The user named a session to resume.
    Resumed(String),
    /// The command line names no session: Outlast chooses the id.
    Ours,
    /// No session is named: the program chooses the id, which is known once the program has reported it.
    Theirs,
    /// No session to resume: a subcommand without a conversation, or a conversation that is not kept.
    Nothing,
}

/// Facts that an adapter reads off a command line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reading {
    pub names: Names,
    /// Whether the agent ends after its answer and asks no person.
    pub headless: bool,
}

/// Settings that Outlast adds to the agent's command line and environment.
#[derive(Clone, Debug, Default)]
pub struct With {
    /// Path of this run's settings file for the agent; `None` if the agent gets no hooks.
    pub settings: Option<PathBuf>,
    /// Base URL of the proxy's OpenAI endpoints.
    pub openai_url: String,
    /// Whether Outlast has the provider's key. The agent then sends the run's token in its place.
    pub has_openai_key: bool,
    pub has_anthropic_key: bool,
    /// Whether a limit in USD may apply: the run's own, or one of a parent run or named budget.
    pub has_usd_limit: bool,
    /// Whether the agent's standard output is no terminal.
    pub piped: bool,
    /// Value of the header `X-Outlast-Agent`; `None` for the agent of the run's own command.
    pub name: Option<String>,
    /// Model that a resumed session must name; `None` if the program finds it by itself.
    pub model: Option<String>,
    /// Whether the proxy's upstream is Anthropic itself. Claude Code switches off features behind another base URL.
    pub is_anthropic: bool,
    /// Whether the prompt is to stay the same in every attempt, so that the provider's cache serves a resumed session
    /// (`--warm-resume`).
    pub warm: bool,
    /// Whether connections to the agent's built-in provider address are redirected to the proxy, as those to a
    /// configured address are.
    pub is_intercepted: bool,
    /// Values that make the agent start its MCP servers behind a recorder: a file for Claude Code, settings for Codex.
    pub servers: Vec<String>,
    /// Directory of the run for the session of an agent that keeps it there; `None` for others, or if it cannot be made.
    pub files: Option<PathBuf>,
    /// Note to the model of a session that is begun anew, because the one before was not kept.
    pub note: Option<String>,
    /// Ways in which the program authenticates, as its own files say ([`Adapter::logins`]).
    pub logins: Vec<String>,
}

/// Owner of a process that an agent's tool has left, as the process's environment names it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum ToolProcess {
    /// The tool call with this id.
    Of(String),
    /// A tool call whose id is not known.
    Some,
}

/// Tool calls in the text of a session's file.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct KeptCalls {
    pub calls: Vec<ToolCall>,
    /// Ids of the calls whose results the file has.
    pub results: HashSet<String>,
    /// Ids of those whose result says only that the program was ended, whatever became of the tool.
    pub aborted: HashSet<String>,
}

impl KeptCalls {
    fn take(&mut self, turn: &Turn) {
        self.calls.extend(turn.calls().filter(|call| !call.id.is_empty()).cloned());
        self.results.extend(turn.results().flat_map(|result| result.ids.clone()));
    }
}

/// Adapter of one CLI agent program. All methods are pure, except `servers` and `logins`, which read the program's files.
pub trait Adapter: Send + Sync {
    /// Returns what is known of the agent as data.
    fn row(&self) -> &Row;
    fn name(&self) -> &str {
        &self.row().name
    }
    /// Returns whether the adapter is for the program of this name.
    fn matches(&self, program: &str) -> bool {
        program == self.name()
    }
    /// Reads the session's choice and the mode off a command line. `piped`: standard output is no terminal.
    fn read(&self, line: &Line, piped: bool) -> Reading;
    /// Returns the command line without the session that it names or would find. A fork begins by it: the session is its
    /// origin's.
    fn unbound(&self, line: &Line) -> Line {
        let row = self.row();
        let bound = [&row.begins, &row.resumes, &row.finds];
        row.kept(line, |piece| !bound.iter().any(|options| piece.is(options)))
    }
    /// Returns the arguments that begin a new session, with the id `session` if Outlast chose one.
    fn begin(&self, line: &Line, _with: &With, _session: Option<&str>) -> Vec<String> {
        line.with(line.tail.iter().cloned())
    }
    /// Returns the arguments that resume a session. A headless agent gets `note`, the text for its model, in
    /// its arguments; any other gets it through a hook, or not at all.
    fn resume(&self, line: &Line, with: &With, session: &str, note: &str) -> Vec<String>;
    /// Returns whether a resumed agent's model gets the note. Where nobody can give it, the person is told so.
    fn tells(&self, _line: &Line) -> bool {
        true
    }
    /// Returns whether `begin` adds [`With::note`] to the prompt.
    fn takes_note_anew(&self, _line: &Line) -> bool {
        false
    }
    /// Adds the agent's own variables to the environment that every agent gets.
    fn environment(&self, _line: &Line, _env: &mut BTreeMap<OsString, OsString>, _with: &With) {}
    /// Returns how the program authenticates, as its own files say: providers whose keys it keeps, or the way that was
    /// chosen, by its own names. Reads the program's files; no key is kept.
    fn logins(&self, around: &Surroundings) -> Vec<String> {
        self.row().login.chosen(around)
    }
    /// Returns whether the agent takes Outlast's hooks, in a settings file of the run.
    fn has_hooks(&self, _line: &Line) -> bool {
        false
    }
    /// Returns the value of the command line's own `--settings`, a file's path or JSON; `None` without one.
    fn settings(&self, _line: &Line) -> Option<String> {
        None
    }
    /// Reads the MCP servers that the agent starts by its own settings; none if they are not known.
    fn servers(&self, _line: &Line, _place: servers::StartContext<'_>) -> Servers {
        Servers::default()
    }
    /// Returns the directory where the program keeps its session files; `None` if it is not known. A session's file
    /// name contains its id.
    fn transcripts(&self, around: &Surroundings) -> Option<PathBuf> {
        around.expand(&self.row().sessions)
    }
    /// Returns the tool calls in a session file's text; `None` if its format is not known.
    fn kept_calls(&self, _transcript: &str) -> Option<KeptCalls> {
        None
    }
    /// Returns the model that a resumption must name, given a request of the session; `None` if the program knows it.
    fn model(&self, _line: &Line, _request: &Value) -> Option<String> {
        None
    }
    /// Returns the patterns of a session id and of a usage limit in the program's output.
    fn patterns(&self) -> Patterns {
        Patterns::default()
    }
    /// Returns the tool call to which a process belongs, according to the process's environment; `None` if no
    /// tool started it.
    fn tool_process(&self, variable: &dyn Fn(&str) -> Option<String>) -> Option<ToolProcess> {
        let value = variable(&self.row().tool)?;
        Some(if self.row().tool_is_call { ToolProcess::Of(value) } else { ToolProcess::Some })
    }
    /// Returns remarks for the user, which are printed before the agent starts.
    fn remarks(&self, _line: &Line, _with: &With) -> Vec<String> {
        Vec::new()
    }
}

/// Value of `--agent`, which decides the adapter.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Choice {
    /// The command decides which adapter is used.
    #[default]
    Auto,
    None,
    Named(String),
}

impl Choice {
    /// Returns the text that is stored with a run; `None` for the default, `Auto`.
    pub fn kept(&self) -> Option<String> {
        match self {
            Choice::Auto => None,
            Choice::None => Some("none".into()),
            Choice::Named(name) => Some(name.clone()),
        }
    }

    pub fn read(text: &str) -> Choice {
        match text {
            "auto" => Choice::Auto,
            "none" => Choice::None,
            name => Choice::Named(name.to_owned()),
        }
    }
}

/// Returns the adapters of the programs that Outlast knows. An agent whose conduct is that of others needs only its file.
pub fn built_in() -> Vec<Box<dyn Adapter>> {
    let adapter = |row: &'static Row| -> Box<dyn Adapter> {
        match row.name.as_str() {
            "claude" => Box::new(claude::Claude),
            "codex" => Box::new(codex::Codex),
            "opencode" => Box::new(opencode::Opencode),
            "aider" => Box::new(aider::Aider),
            "copilot" => Box::new(Flagged { row, environment: flagged::copilot_environment }),
            _ => Box::new(Flagged { row, environment: |_| () }),
        }
    };
    row::rows().iter().map(adapter).collect()
}

/// Adapter, and the command line of its program.
pub type Found = (Box<dyn Adapter>, Line);

/// Finds the adapter for a command, and the command's parsed line; `None` if the command is no known agent.
///
/// Errors: `--agent` names an adapter that does not exist, or a command without a program; settings that cannot be
/// read; `work_leaves_the_run`.
pub fn find(choice: &Choice, argv: &[String], around: &Surroundings) -> Result<Option<Found>, CliError> {
    let found = named(choice, argv, around)?;
    if let Some((adapter, line)) = &found {
        let (row, pieces) = (adapter.row(), adapter.row().pieces(line));
        if let Some(option) = row.background.iter().find(|option| has(&pieces, &[option])) {
            return Err(RunError::WorkLeaves { option: option.clone() }.into());
        }
    }
    Ok(found)
}

fn named(choice: &Choice, argv: &[String], around: &Surroundings) -> Result<Option<Found>, CliError> {
    if *choice == Choice::None {
        return Ok(None);
    }
    let line = Line::read(argv);
    let mut adapters = built_in();
    adapters.extend(declaration::load(around)?.into_iter().map(|d| Box::new(d) as Box<dyn Adapter>));
    let program = line.as_ref().map(|l| l.program.clone()).unwrap_or_default();
    let wanted = match choice {
        Choice::Named(name) => name.as_str(),
        _ => {
            let found = adapters.into_iter().find(|a| a.matches(&program));
            return Ok(found.zip(line));
        }
    };
    let known: Vec<String> = adapters.iter().map(|a| a.name().to_owned()).collect();
    let found = adapters.into_iter().find(|a| a.name() == wanted);
    match (found, line) {
        (Some(adapter), Some(line)) => Ok(Some((adapter, line))),
        (Some(_), None) => Err(CliError::usage(
            format!("--agent {wanted}: the command names no program: {}", argv.join(" ")),
            None,
        )),
        (None, _) => Err(CliError::usage(
            format!("--agent {wanted}: no such adapter (wanted auto, none, {})", known.join(", ")),
            Some("declare it as [agents.NAME] in ~/.config/outlast/outlast.toml"),
        )),
    }
}

/// Returns the path of the file in which a known program, run by this user, keeps the session; `None` if there is none.
pub fn transcript_of(session: &str) -> Option<PathBuf> {
    let around = Surroundings::of_process();
    built_in().into_iter().find_map(|a| transcript(&a.transcripts(&around)?, session))
}

/// Number of an id's first characters that Gemini CLI names a session's file by.
const SHORT: usize = 8;

/// Returns the path of a session's file below `directory`: the first whose name contains the id; `None` without one.
pub fn transcript(directory: &Path, session: &str) -> Option<PathBuf> {
    // Codex sorts its files by year, month and day; Claude Code, Gemini CLI and Qwen Code by project. Copilot CLI has a
    // directory for each session.
    let short = format!("-{}", session.get(..SHORT).unwrap_or(session));
    let is_its = |path: &Path| {
        let name = path.file_name().and_then(|n| n.to_str()).and_then(|n| n.strip_suffix(".jsonl"));
        name.is_some_and(|name| {
            name.ends_with(session)
                || name.starts_with("session-") && name.ends_with(&short)
                || name == "events" && path.parent().is_some_and(|parent| parent.ends_with(session))
        })
    };
    const DEPTH: usize = 5;
    files_below(directory, DEPTH).map(|entry| entry.path()).find(|path| is_its(path))
}

/// Returns what is below a directory and is none itself, in `depth` levels, the uppermost first. Read as it is asked for.
fn files_below(directory: &Path, depth: usize) -> impl Iterator<Item = DirEntry> + use<> {
    let mut level = vec![directory.to_owned()];
    (0..depth).flat_map(move |_| {
        let entries = std::mem::take(&mut level).into_iter().flat_map(std::fs::read_dir).flatten().flatten();
        let kinds = entries.filter_map(|entry| entry.file_type().ok().map(|kind| (entry, kind)));
        let (below, files): (Vec<_>, Vec<_>) = kinds.partition(|(_, kind)| kind.is_dir());
        level = below.into_iter().map(|(entry, _)| entry.path()).collect();
        files.into_iter().map(|(entry, _)| entry)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn work_that_would_leave_its_run_is_refused() {
        let code = |line: &str| {
            let argv: Vec<String> = line.split(' ').map(str::to_owned).collect();
            find(&Choice::Auto, &argv, &Surroundings::default()).err().map(|e| e.code())
        };
        for line in ["claude --bg hello", "npx @anthropic-ai/claude-code -p --background x"] {
            assert_eq!(code(line), Some("work_leaves_the_run"), "{line}");
        }
        for line in ["claude -p bg", "claude -- --bg", "sh --bg"] {
            assert_eq!(code(line), None, "{line}");
        }
    }
}
