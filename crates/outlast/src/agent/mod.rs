//! CLI agents: what it takes to start one under a run, and to start it again in its own session.
//!
//! An agent that keeps its conversation itself is not helped by replays: started again it must be told which
//! session to go on with, and what became of the tools it had begun (`truth`). What each program wants is in a
//! file of its own behind [`Adapter`]; `conduct` applies it to the attempts of a run, `seat` to an agent that
//! a script of the run starts (`outlast agent`).

pub mod capture;
pub mod claude;
pub mod codex;
pub mod conduct;
pub mod declared;
pub mod eyes;
pub mod hook;
pub mod hooks;
pub mod inside;
pub mod line;
pub mod note;
pub mod options;
pub mod seat;
pub mod session;
pub mod truth;

use std::{
    collections::BTreeMap,
    ffi::OsString,
    path::{Path, PathBuf},
};

use self::{eyes::Patterns, line::Line};
use crate::{
    cli,
    program::error::CliError,
    settings::{config, surroundings::Surroundings},
};

/// Where a line leaves the choice of its session.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Names {
    /// The person named it: it is new.
    Session(String),
    /// The person named one to go on with.
    Resumed(String),
    /// We may choose it.
    Ours,
    /// The program chooses: it is known once the program has said it.
    Theirs,
    /// There is nothing to go on with: a subcommand that is no conversation, or one that is not kept.
    Nothing,
}

/// What an adapter reads off a line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reading {
    pub names: Names,
    /// It ends with its answer, and asks nobody.
    pub headless: bool,
}

/// What a start is given beside the person's own words.
#[derive(Clone, Debug, Default)]
pub struct With {
    /// Settings of its own for this run.
    pub settings: Option<PathBuf>,
    /// The proxy, as OpenAI's base URL.
    pub openai_url: String,
    /// We have the provider's key: the agent shows the run's token in its place.
    pub has_openai_key: bool,
    pub has_anthropic_key: bool,
    /// The run has a limit in usd.
    pub has_usd_limit: bool,
    /// Standard output is no terminal.
    pub piped: bool,
    /// What it is to send in `X-Outlast-Agent`, where several agents share a run.
    pub name: Option<String>,
}

/// A process that an agent's tool left, as its environment tells.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ToolProcess {
    /// Of the tool call with this id.
    Of(String),
    /// Of some tool call.
    Some,
}

/// What one program wants. All of it is pure.
pub trait Adapter: Send + Sync {
    fn name(&self) -> &str;
    /// Whether it is for this program.
    fn matches(&self, program: &str) -> bool {
        program == self.name()
    }
    /// `piped`: standard output is no terminal.
    fn read(&self, line: &Line, piped: bool) -> Reading;
    /// The arguments of a new session.
    fn begin(&self, line: &Line, with: &With, session: Option<&str>) -> Vec<String>;
    /// The arguments that go on with a session. `note` is what its model is to be told, where the line is
    /// headless; else it gets it through a hook, or not at all.
    fn resume(&self, line: &Line, with: &With, session: &str, note: &str) -> Vec<String>;
    /// Changes the environment that any agent gets.
    fn environment(&self, env: &mut BTreeMap<OsString, OsString>, with: &With);
    /// Whether our hooks are to be given to it, in settings of its own.
    fn has_hooks(&self, _line: &Line) -> bool {
        false
    }
    /// The settings that the person gave: a file, or JSON itself.
    fn settings(&self, _line: &Line) -> Option<String> {
        None
    }
    /// Where it keeps its sessions, and how a session's file is named there.
    fn transcripts(&self, _around: &Surroundings) -> Option<PathBuf> {
        None
    }
    /// Whether a file's text is a conversation that can be gone on with.
    fn is_begun(&self, _transcript: &str) -> bool {
        true
    }
    /// What is to be read off what it prints.
    fn patterns(&self) -> Patterns {
        Patterns::default()
    }
    /// What a process is, by its environment: a tool's, or none.
    fn tool_process(&self, _variable: &dyn Fn(&str) -> Option<String>) -> Option<ToolProcess> {
        None
    }
    /// What is worth saying to the person before it starts.
    fn remarks(&self, _line: &Line, _with: &With) -> Vec<String> {
        Vec::new()
    }
}

/// What `--agent` says.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Choice {
    /// By the command.
    #[default]
    Auto,
    None,
    Named(String),
}

impl Choice {
    /// As it is kept with a run; `None` for the default.
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

/// An adapter, and the line of its program.
pub type Found = (Box<dyn Adapter>, Line);

/// The adapter for a command, with its line; `None` where the command is no agent that is known.
///
/// Errors: an adapter that is not there, or whose program is not in the command; settings that cannot be read.
pub fn find(choice: &Choice, argv: &[String], around: &Surroundings) -> Result<Option<Found>, CliError> {
    if *choice == Choice::None {
        return Ok(None);
    }
    let line = Line::read(argv);
    let mut adapters: Vec<Box<dyn Adapter>> = vec![Box::new(claude::Claude), Box::new(codex::Codex)];
    adapters.extend(
        config::agents(around, &cli::command())?.into_iter().map(|d| Box::new(d) as Box<dyn Adapter>),
    );
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
        (Some(_), None) => Err(CliError::Usage {
            message: format!("--agent {wanted}: the command names no program: {}", argv.join(" ")),
            hint: None,
        }),
        (None, _) => Err(CliError::Usage {
            message: format!("--agent {wanted}: no such adapter (wanted auto, none, {})", known.join(", ")),
            hint: Some("declare it as [agents.NAME] in ~/.config/outlast/outlast.toml".into()),
        }),
    }
}

/// Where an agent of this user keeps the session.
pub fn transcript_of(session: &str) -> Option<PathBuf> {
    let around = Surroundings::of_process();
    let adapters: [&dyn Adapter; 2] = [&claude::Claude, &codex::Codex];
    adapters.into_iter().find_map(|a| transcript(&a.transcripts(&around)?, session))
}

/// The file of a session below a directory of transcripts: the first whose name has the id.
pub fn transcript(directory: &Path, session: &str) -> Option<PathBuf> {
    // Codex keeps them by year, month and day; Claude Code by project.
    const DEPTH: usize = 4;
    let mut level = vec![directory.to_owned()];
    for _ in 0..=DEPTH {
        let mut below = Vec::new();
        for directory in level {
            for entry in std::fs::read_dir(directory).into_iter().flatten().flatten() {
                let name = entry.file_name();
                let is_its = name.to_str().and_then(|n| n.strip_suffix(".jsonl"));
                match entry.file_type() {
                    Ok(kind) if kind.is_dir() => below.push(entry.path()),
                    Ok(_) if is_its.is_some_and(|n| n.ends_with(session)) => return Some(entry.path()),
                    _ => {}
                }
            }
        }
        level = below;
    }
    None
}
