//! MCP servers that an agent starts by its own settings: which of them are recorded, and how the agent is told so, for
//! one attempt. No file of the person's is changed.
//!
//! A server is recorded by `outlast mcp` before its command. What an agent would not start, or would ask a person about
//! first, is left to it: nothing here may start a server that the agent itself would not have started.

pub mod claude;
pub mod codex;

use std::{
    collections::BTreeMap,
    fs, io,
    path::{Path, PathBuf},
};

use outlast_core::{
    engine::{Actor, Checkpoint, checkpoint::Name},
    store::{self, Store},
    words::RunNo,
};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::session;
use crate::settings::surroundings::Surroundings;

/// Reasons for which a server is not recorded, as people read them.
pub const AT_A_URL: &str = "at a URL";
pub const NOT_APPROVED: &str = "not approved in your own settings";
pub const OF_THE_PROJECT: &str = "in the project's settings";
pub const OF_A_PROFILE: &str = "in a profile";
pub const OF_THE_MACHINE: &str = "in the machine's settings";
pub const ON_THE_LINE: &str = "set on the command line";
pub const RESTRICTED: &str = "your settings say which servers are allowed";
pub const ODD_NAME: &str = "its name is not of A-Z a-z 0-9 _ -";
pub const ODD: &str = "not a command";
pub const CONFINED: &str = "the agent is confined";
pub const UNREADABLE: &str = "its settings cannot be read";

/// Longest name of a server, in characters.
pub const MAX_NAME: usize = 64;

/// Returns whether a text may be the name of a server.
pub fn is_name(text: &str) -> bool {
    let fits = |c: char| c.is_ascii_alphanumeric() || "._-".contains(c);
    !text.is_empty() && text.len() <= MAX_NAME && text.chars().all(fits)
}

/// Place in which an agent is started.
#[derive(Clone, Copy, Debug)]
pub struct StartContext<'a> {
    pub around: &'a Surroundings,
    /// Working directory of the agent.
    pub directory: &'a Path,
    /// Directory of the machine's settings: `/etc`.
    pub machine: &'a Path,
    /// Path of the `outlast` that records.
    pub program: &'a Path,
}

/// Servers of an agent, as its settings name them.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Servers {
    pub told: ServerNames,
    pub handed: Handed,
}

impl Servers {
    /// Records a server, unless `why` says why not. Returns the command that is to be handed to the agent in place of its
    /// own, if any. `variables`: see [`recorded`].
    fn record(
        &mut self,
        program: &Path,
        (name, entry): (&str, &Value),
        why: Option<&'static str>,
        variables: &[String],
    ) -> Option<Recorded> {
        let (command, arguments) = (entry["command"].as_str(), texts(&entry["args"]));
        match why.map_or_else(|| recorded(program, name, command, arguments, variables), Err) {
            Err(why) => {
                self.told.leave(name, why);
                None
            }
            Ok(recorded) => {
                self.told.recorded.push(name.to_owned());
                recorded
            }
        }
    }

    /// Leaves all servers as they are: their recorder could not reach the store.
    pub fn confined(mut self) -> Servers {
        for name in std::mem::take(&mut self.told.recorded) {
            self.told.leave(&name, CONFINED);
        }
        Servers { handed: Handed::Nothing, ..self }
    }
}

/// Form in which an agent is given its recorded servers.
#[derive(Clone, Debug, Default, PartialEq)]
pub enum Handed {
    #[default]
    Nothing,
    /// A file with this content, whose path the agent gets.
    File(Value),
    /// Settings on the agent's command line.
    Words(Vec<String>),
}

/// Names of an agent's servers, as they are stored with the run.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ServerNames {
    pub recorded: Vec<String>,
    /// Servers that are not recorded, each with its reason.
    #[serde(default)]
    pub left: BTreeMap<String, String>,
}

impl ServerNames {
    /// Formats the servers for people; `None` if there are none.
    pub fn words(&self) -> Option<String> {
        let left: Vec<String> = self.left.iter().map(|(name, why)| format!("{name} ({why})")).collect();
        match (self.recorded.as_slice(), left.as_slice()) {
            ([], []) => None,
            (recorded, []) => Some(format!("MCP servers: {} recorded", recorded.join(", "))),
            ([], left) => Some(format!("MCP servers: not recorded {}", left.join(", "))),
            (recorded, left) => Some(format!(
                "MCP servers: {} recorded; not recorded {}",
                recorded.join(", "),
                left.join(", ")
            )),
        }
    }

    fn leave(&mut self, name: &str, why: &str) {
        self.left.insert(name.to_owned(), why.to_owned());
    }
}

/// Command of a server that is recorded: `outlast mcp` before the server's own.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Recorded {
    command: String,
    arguments: Vec<String>,
}

/// Returns the command that records a server. `variables`: names of the variables that its settings give it, whose values
/// are not recorded. `None`: it is recorded already. The error says why it cannot be.
fn recorded(
    program: &Path,
    name: &str,
    command: Option<&str>,
    arguments: Option<Vec<String>>,
    variables: &[String],
) -> Result<Option<Recorded>, &'static str> {
    let (Some(command), Some(mut own)) = (command, arguments) else { return Err(ODD) };
    if !is_name(name) || name.contains('.') {
        return Err(ODD_NAME);
    }
    let stem = Path::new(command).file_stem().and_then(|stem| stem.to_str());
    if stem == Some("outlast") && own.first().is_some_and(|word| word == "mcp") {
        return Ok(None);
    }
    let program = program.to_str().ok_or(ODD)?.to_owned();
    let mut arguments: Vec<String> = ["mcp", "--name", name].map(str::to_owned).into();
    arguments.extend(variables.iter().flat_map(|variable| ["--hide-env".to_owned(), variable.clone()]));
    arguments.extend(["--", command].map(str::to_owned));
    arguments.append(&mut own);
    Ok(Some(Recorded { command: program, arguments }))
}

/// Returns the name of the checkpoint that keeps the servers of an agent. `agent`: see
/// [`session::key`](super::session::key).
fn key(agent: Option<&str>) -> Name {
    match agent {
        Some(agent) => Name::own(&format!("mcp:{agent}")),
        None => Name::own("mcp"),
    }
}

/// Returns the servers that were told of last; `None` if the agent had none. Errors: the store's.
pub fn find(store: &dyn Store, run: RunNo, agent: Option<&str>) -> Result<Option<ServerNames>, store::Error> {
    match session::newest(store, run, &key(agent)) {
        Err(store::Error::Corrupt { .. }) => Ok(None),
        kept => kept,
    }
}

/// Returns the checkpoint that keeps the servers, for people.
pub fn keep(actor: Actor, agent: Option<&str>, told: &ServerNames) -> Checkpoint {
    session::checkpoint(actor, key(agent), told)
}

/// Returns a list of texts; empty for none, `None` for anything else.
fn texts(value: &Value) -> Option<Vec<String>> {
    match value {
        Value::Null => Some(Vec::new()),
        Value::Array(texts) => texts.iter().map(|text| text.as_str().map(str::to_owned)).collect(),
        _ => None,
    }
}

/// Returns the names of an object's members.
fn names(value: &Value) -> impl Iterator<Item = String> {
    value.as_object().into_iter().flatten().map(|(name, _)| name.clone())
}

/// Reads a file of settings by `parse`; `null` if it does not exist. The error names the file.
fn settings(path: &Path, parse: impl FnOnce(&str) -> Option<Value>) -> Result<Value, String> {
    let parsed = text(path).ok().and_then(|text| text.map_or(Some(Value::Null), |text| parse(&text)));
    parsed.ok_or_else(|| path.file_name().unwrap_or_default().to_string_lossy().into_owned())
}

/// Returns the directory and those above it, the nearest first.
fn upwards(directory: &Path) -> impl Iterator<Item = PathBuf> {
    let directory = fs::canonicalize(directory).unwrap_or_else(|_| directory.to_owned());
    directory.ancestors().map(Path::to_owned).collect::<Vec<_>>().into_iter()
}

/// Reads a file; `None` if it does not exist.
fn text(path: &Path) -> Result<Option<String>, io::Error> {
    match fs::read_to_string(path) {
        Ok(text) => Ok(Some(text)),
        Err(e) if matches!(e.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory) => Ok(None),
        Err(e) => Err(e),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_recorder_stands_before_the_command_once() {
        let check = |name: &str, command: &str, own: &[&str]| {
            let own = own.iter().map(|word| (*word).to_owned()).collect();
            recorded(Path::new("/o/outlast"), name, Some(command), Some(own), &["T".to_owned()])
                .map(|r| r.map(|r| format!("{} {}", r.command, r.arguments.join(" "))))
        };
        let wanted = "/o/outlast mcp --name mail --hide-env T -- npx -y mail".to_owned();
        assert_eq!(check("mail", "npx", &["-y", "mail"]), Ok(Some(wanted)));
        assert_eq!(check("mail", "/bin/outlast", &["mcp", "--", "npx"]), Ok(None));
        assert_eq!(check("a.b", "npx", &[]), Err(ODD_NAME));
        assert_eq!(check("my mail", "npx", &[]), Err(ODD_NAME));
        assert_eq!(recorded(Path::new("/o"), "mail", None, Some(Vec::new()), &[]), Err(ODD));
    }

    #[test]
    fn people_read_which_servers_are_recorded_and_why_others_are_not() {
        let of = |recorded: &[&str], left: &[(&str, &str)]| {
            let recorded = recorded.iter().map(|n| (*n).to_owned()).collect();
            let left = left.iter().map(|(n, w)| ((*n).to_owned(), (*w).to_owned())).collect();
            ServerNames { recorded, left }.words()
        };
        assert_eq!(of(&[], &[]), None);
        assert_eq!(of(&["a", "b"], &[]).as_deref(), Some("MCP servers: a, b recorded"));
        assert_eq!(of(&[], &[("c", AT_A_URL)]).as_deref(), Some("MCP servers: not recorded c (at a URL)"));
        assert_eq!(
            of(&["a"], &[("c", AT_A_URL)]).as_deref(),
            Some("MCP servers: a recorded; not recorded c (at a URL)")
        );
    }
}
