//! Facts about each CLI agent as data: its command line, its sessions, its logins. Each agent has a file in `known/`.

use std::sync::LazyLock;

use serde::Deserialize;
use serde_json::Value;

use super::{
    Names,
    line::{self, Line, Piece, Takes, has, value},
};
use crate::settings::surroundings::Surroundings;

/// Files of the known agents, in the order in which they are named to people.
const FILES: [&str; 7] = [
    include_str!("known/claude.toml"),
    include_str!("known/codex.toml"),
    include_str!("known/opencode.toml"),
    include_str!("known/aider.toml"),
    include_str!("known/gemini.toml"),
    include_str!("known/qwen.toml"),
    include_str!("known/copilot.toml"),
];

/// Facts of a CLI agent, as its file has them.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Row {
    /// Name of the agent and of its program.
    pub name: String,
    /// Parts of the names of packages that hold the program.
    pub packages: Vec<String>,
    /// First words that are subcommands without a conversation.
    pub subcommands: Vec<String>,
    /// Options with which the program starts no conversation, or one without a session.
    pub sessionless: Vec<String>,
    /// Options that give a new session its id.
    pub begins: Vec<String>,
    /// Options that resume a session by its id. Any other value is a place in a list, or a name.
    pub resumes: Vec<String>,
    /// Options that make the program choose the session itself, such as its newest one.
    pub finds: Vec<String>,
    /// Options that carry a prompt which the program answers before it ends. The note to the model is given by the
    /// first of them.
    pub prompts: Vec<String>,
    /// Options that carry the first prompt of a conversation with a person. The note to the model is given by the first
    /// of them.
    pub talks: Vec<String>,
    /// Options that are given only when a session begins, besides those for prompts and sessions.
    pub starts: Vec<String>,
    /// Whether the program also ends after the answer to a prompt that is given without an option.
    pub ends_after_words: bool,
    /// Directory of the session files, as [`Surroundings::expand`] reads it.
    pub sessions: String,
    /// Values of the field `type` in those lines of a session's file that belong to a conversation. A session with such
    /// a line can be resumed; any session can if there are none.
    pub begun: Vec<String>,
    /// Variable that all processes of the program's tools have, and whether its value is the tool call's id.
    pub tool: String,
    pub tool_is_call: bool,
    /// Options by which the program hands its work over to a background server, outside of every run.
    pub background: Vec<String>,
    /// Whether the program's session is a file in the run's own directory.
    pub session_with_run: bool,
    /// Whether the bodies of the program's requests hold the session's id.
    pub bodies_name_session: bool,
    /// Texts that the program itself adds to a conversation that was cut off, when it goes on with it.
    pub goes_on_with: Vec<String>,
    /// Variables that are not set where connections to the provider's own address are redirected to the proxy.
    pub unset_if_intercepted: Vec<String>,
    /// Short form of `--model`; empty: there is none.
    pub model_short: String,
    /// Variable and settings file that name the model where the command line does not.
    pub model_variable: String,
    pub model_settings: String,
    /// Directory of the sockets of the server that the program begins in the background for its user; `{user}` in it is
    /// the user's number. Empty: there is none.
    pub daemon: String,
    /// Command that ends that server.
    pub daemon_ended_by: String,
    pub login: Login,
    pub options: Options,
}

/// Ways to authenticate that an agent's settings choose.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Login {
    /// Settings files, of which the first that chooses a way counts.
    pub settings: Vec<String>,
    /// Option that chooses a way where neither the files nor the person have chosen one.
    pub choose: Vec<String>,
    /// The only way by which calls pass the proxy; empty: all ways do.
    pub metered: String,
    /// Remark for the user where no way is chosen, though the proxy wants `metered`.
    pub missing: String,
}

/// Options of a program, by the number of values that they take.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Options {
    pub nothing: Vec<String>,
    pub one: Vec<String>,
    pub perhaps: Vec<String>,
    pub many: Vec<String>,
    /// Number of values that all other options take; `None` where they are not known.
    pub others: Option<Takes>,
}

/// Returns what is known of each agent.
pub fn rows() -> &'static [Row] {
    static ROWS: LazyLock<Vec<Row>> = LazyLock::new(|| {
        let read = |file: &&str| toml::from_str(file).expect("a test reads the same files");
        FILES.iter().map(read).collect()
    });
    &ROWS
}

/// Returns what is known of the agent `name`.
pub fn named(name: &str) -> &'static Row {
    rows().iter().find(|row| row.name == name).expect("callers name an agent of the files")
}

impl Row {
    /// Splits the program's arguments into options and words.
    pub fn pieces(&self, line: &Line) -> Vec<Piece> {
        line::pieces(&line.tail, |name| self.options.takes(name))
    }

    /// Returns whether the arguments begin or resume a conversation.
    pub fn converses(&self, pieces: &[Piece]) -> bool {
        let first = pieces.iter().find_map(Piece::word);
        !first.is_some_and(|word| self.subcommands.iter().any(|known| known == word))
            && !has(pieces, &self.sessionless)
    }

    /// Returns the command line with those pieces that `stays` keeps.
    pub fn kept(&self, line: &Line, stays: impl FnMut(&Piece) -> bool) -> Line {
        // Words behind `--` stay there. An option with many values before other words would take them, too.
        let end = line.tail.iter().position(|argument| argument == "--").unwrap_or(line.tail.len());
        let (before, behind) = line.tail.split_at(end);
        let all = line::pieces(before, |name| self.options.takes(name));
        let count = all.len();
        let mut pieces: Vec<Piece> = all.into_iter().filter(stays).collect();
        if pieces.len() == count {
            return line.clone();
        }
        pieces.sort_by_key(|piece| piece.is(&self.options.many));
        let tail = pieces.iter().flat_map(Piece::words).chain(behind.iter().cloned());
        Line { tail: tail.collect(), ..line.clone() }
    }

    /// Returns who chooses the session, where Outlast can choose its id.
    pub fn names(&self, pieces: &[Piece]) -> Names {
        if !self.converses(pieces) {
            Names::Nothing
        } else if let Some(id) = value(pieces, &self.begins) {
            Names::Session(id)
        } else if has(pieces, &self.finds) {
            Names::Theirs
        } else if has(pieces, &self.resumes) {
            value(pieces, &self.resumes).filter(|id| is_uuid(id)).map_or(Names::Theirs, Names::Resumed)
        } else {
            Names::Ours
        }
    }

    /// Returns whether a session file's text is a conversation that can be resumed.
    pub fn is_begun(&self, transcript: &str) -> bool {
        let is_said = |line: &str| {
            let kind = serde_json::from_str::<Value>(line)
                .ok()
                .and_then(|line| line["type"].as_str().map(str::to_owned));
            kind.is_some_and(|kind| self.begun.contains(&kind))
        };
        self.begun.is_empty() || transcript.lines().any(is_said)
    }
}

impl Options {
    pub fn takes(&self, name: &str) -> Option<Takes> {
        let lists = [
            (&self.nothing, Takes::Nothing),
            (&self.one, Takes::One),
            (&self.perhaps, Takes::Perhaps),
            (&self.many, Takes::Many),
        ];
        let listed = lists.into_iter().find(|(list, _)| list.iter().any(|option| option == name));
        listed.map(|(_, takes)| takes).or(self.others)
    }
}

impl Login {
    /// Returns the way to authenticate that the program's settings choose; empty if none do.
    pub fn chosen(&self, around: &Surroundings) -> Vec<String> {
        let chosen = |file: &String| {
            let settings: Value = serde_json::from_slice(&std::fs::read(around.expand(file)?).ok()?).ok()?;
            settings["security"]["auth"]["selectedType"].as_str().map(str::to_owned)
        };
        self.settings.iter().find_map(chosen).into_iter().collect()
    }
}

fn is_uuid(text: &str) -> bool {
    text.len() == 36 && text.bytes().all(|b| b.is_ascii_hexdigit() || b == b'-')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_file_is_read_and_no_option_is_in_two_lists() {
        for row in rows() {
            let Options { nothing, one, perhaps, many, .. } = &row.options;
            let mut all: Vec<&String> = [nothing, one, perhaps, many].into_iter().flatten().collect();
            let count = all.len();
            all.sort();
            all.dedup();
            assert_eq!(all.len(), count, "{}", row.name);
            // An option that means something is one whose values are known.
            let meant = [&row.begins, &row.resumes, &row.finds, &row.prompts, &row.talks, &row.starts];
            for option in meant.into_iter().flatten() {
                assert!(row.options.takes(option).is_some(), "{} {option}", row.name);
            }
        }
    }
}
