//! Agents that take the id of a new session by one option and resume it by another: Gemini CLI, Qwen Code, Copilot CLI.
//! Each is a table of its options, in a file of its own.

use std::{collections::BTreeMap, ffi::OsString, path::PathBuf};

use serde_json::Value;

use super::{
    Adapter, Names, Reading, ToolProcess, With,
    claude::is_uuid,
    line::Line,
    options::{self, Piece, Takes, has, value},
};
use crate::settings::surroundings::Surroundings;

/// Adapter of a program that begins a session by `--session-id ID` and resumes it by `--resume=ID`.
pub struct Flagged {
    pub name: &'static str,
    pub takes: fn(&str) -> Option<Takes>,
    /// First words that are subcommands without a conversation.
    pub subcommands: &'static [&'static str],
    /// Options that carry a prompt which the program answers before it ends. The note to the model is given by the
    /// first option of this list.
    pub prompts: &'static [&'static str],
    /// Options that carry the first prompt of a conversation with a person. The note to the model is given by the first
    /// option of this list.
    pub talks: &'static [&'static str],
    /// Whether the program also ends after the answer to a prompt that is given without an option.
    pub ends_after_words: bool,
    /// Options that make the program choose the session itself, such as its newest one.
    pub finds: &'static [&'static str],
    /// Options with which the program starts without a session, or starts no conversation.
    pub sessionless: &'static [&'static str],
    /// Options that are given only when a session begins, besides those for prompts and sessions.
    pub starts: &'static [&'static str],
    /// Places of the program's own files: the environment variable that names their directory, the directory below the
    /// home directory if that variable is not set, and the directory of sessions below either.
    pub files: (&'static str, &'static str, &'static str),
    /// Values of the field `type` in those lines of a session's file that belong to a conversation. A session with such
    /// a line can be resumed.
    pub begun: &'static [&'static str],
    /// Environment variable that all processes of the program's tools have.
    pub tool: &'static str,
    pub environment: fn(&mut BTreeMap<OsString, OsString>, &With),
    /// Function that returns the options which make the program call the proxy, given the options that the person
    /// typed.
    pub leads: fn(&[Piece], &With) -> Vec<String>,
    /// Function that reads, from the program's own files, by which methods the program authenticates.
    pub logins: fn(&Surroundings) -> Vec<String>,
    pub remarks: fn(&With) -> Vec<String>,
}

const SESSION: &[&str] = &["--session-id"];
const RESUME: &[&str] = &["--resume", "-r"];

impl Flagged {
    fn pieces(&self, line: &Line) -> Vec<Piece> {
        options::read(&line.tail, self.takes)
    }

    fn is_conversation(&self, pieces: &[Piece]) -> bool {
        !options::words(pieces).first().is_some_and(|word| self.subcommands.contains(word))
            && !has(pieces, &["-h", "--help", "-v", "--version"])
            && !has(pieces, self.sessionless)
    }

    fn is_prompt(&self, piece: &Piece) -> bool {
        piece.word().is_some() || piece.is(self.prompts) || piece.is(self.talks)
    }

    /// Returns the arguments with `note` appended to the last prompt.
    fn noted(&self, mut pieces: Vec<Piece>, note: &str) -> Vec<String> {
        match pieces.iter_mut().rfind(|piece| self.is_prompt(piece)) {
            Some(Piece::Word(prompt)) => *prompt = format!("{prompt}\n\n{note}"),
            Some(Piece::Option { values, .. }) => {
                values.iter_mut().for_each(|prompt| *prompt = format!("{prompt}\n\n{note}"));
            }
            None => {}
        }
        pieces.iter().flat_map(Piece::words).collect()
    }
}

/// Returns the authentication method that the first of these settings files chooses; empty if no file chooses one.
pub fn selected_type<const N: usize>(files: [Option<PathBuf>; N]) -> Vec<String> {
    let chosen = |file: PathBuf| {
        let settings: Value = serde_json::from_slice(&std::fs::read(file).ok()?).ok()?;
        settings["security"]["auth"]["selectedType"].as_str().map(str::to_owned)
    };
    files.into_iter().flatten().find_map(chosen).into_iter().collect()
}

impl Adapter for Flagged {
    fn name(&self) -> &str {
        self.name
    }

    fn read(&self, line: &Line, piped: bool) -> Reading {
        let pieces = self.pieces(line);
        let ends = has(&pieces, self.prompts)
            || self.ends_after_words && pieces.iter().any(|piece| piece.word().is_some());
        let names = if !self.is_conversation(&pieces) {
            Names::Nothing
        } else if has(&pieces, self.finds) {
            Names::Theirs
        } else if let Some(id) = value(&pieces, SESSION) {
            Names::Session(id)
        } else if has(&pieces, RESUME) {
            // Any other value is a place in a list, or a name.
            value(&pieces, RESUME).filter(|id| is_uuid(id)).map_or(Names::Theirs, Names::Resumed)
        } else {
            Names::Ours
        };
        Reading { names, headless: (ends || piped) && !has(&pieces, self.talks) }
    }

    fn begin(&self, line: &Line, with: &With, session: Option<&str>) -> Vec<String> {
        let pieces = self.pieces(line);
        let mut added = if self.is_conversation(&pieces) { (self.leads)(&pieces, with) } else { Vec::new() };
        if let Some(id) = session.filter(|_| self.read(line, with.piped).names == Names::Ours) {
            added.extend(["--session-id".to_owned(), id.to_owned()]);
        }
        match &with.note {
            Some(note) => line.with(added.into_iter().chain(self.noted(pieces, note))),
            None => line.with(added.into_iter().chain(line.tail.iter().cloned())),
        }
    }

    fn takes_note_anew(&self, line: &Line) -> bool {
        self.pieces(line).iter().any(|piece| self.is_prompt(piece))
    }

    fn resume(&self, line: &Line, with: &With, session: &str, note: &str) -> Vec<String> {
        let pieces = self.pieces(line);
        let mut out = (self.leads)(&pieces, with);
        out.push(format!("--resume={session}"));
        let gone = [self.prompts, self.talks, self.finds, self.starts, SESSION, RESUME].concat();
        out.extend(pieces.iter().filter(|p| p.word().is_none() && !p.is(&gone)).flat_map(Piece::words));
        let options = if self.read(line, with.piped).headless { self.prompts } else { self.talks };
        out.extend(options.first().map(|option| (*option).to_owned()));
        out.push(note.to_owned());
        line.with(out)
    }

    fn environment(&self, _line: &Line, env: &mut BTreeMap<OsString, OsString>, with: &With) {
        (self.environment)(env, with);
    }

    fn logins(&self, around: &Surroundings) -> Vec<String> {
        (self.logins)(around)
    }

    fn names_session_in_bodies(&self) -> bool {
        false
    }

    fn transcripts(&self, around: &Surroundings) -> Option<PathBuf> {
        let (variable, below_home, sessions) = self.files;
        Some(around.named_or_home(variable, below_home)?.join(sessions))
    }

    fn is_begun(&self, transcript: &str) -> bool {
        let is_said = |line: &str| {
            serde_json::from_str::<Value>(line)
                .is_ok_and(|line| line["type"].as_str().is_some_and(|kind| self.begun.contains(&kind)))
        };
        transcript.lines().any(is_said)
    }

    fn tool_process(&self, variable: &dyn Fn(&str) -> Option<String>) -> Option<ToolProcess> {
        variable(self.tool).map(|_| ToolProcess::Some)
    }

    fn remarks(&self, line: &Line, with: &With) -> Vec<String> {
        if self.is_conversation(&self.pieces(line)) { (self.remarks)(with) } else { Vec::new() }
    }
}

#[cfg(test)]
pub mod tests {
    use super::*;

    pub const ID: &str = "11111111-1111-4111-8111-111111111111";

    pub fn line(text: &str) -> Line {
        let words: Vec<String> = text.split_whitespace().map(|w| w.replace("ID", ID)).collect();
        Line::read(&words).unwrap()
    }

    /// Checks who chooses the session, whether the agent ends by itself, and both command lines.
    pub fn check(agent: &Flagged, text: &str, names: Names, headless: bool, begun: &str, resumed: &str) {
        let (line, with) = (line(text), With::default());
        let had = agent.read(&line, false);
        assert_eq!(had, Reading { names, headless }, "{text}");
        let clear = |words: Vec<String>| words.join(" ").replace(ID, "ID");
        assert_eq!(clear(agent.begin(&line, &with, Some("OURS"))), begun, "{text}");
        let noted = agent.begin(&line, &With { note: Some("NOTE".into()), ..With::default() }, Some("OURS"));
        let is_noted = noted.iter().any(|word| word.ends_with("\n\nNOTE"));
        assert_eq!(is_noted, agent.takes_note_anew(&line), "{text}");
        assert_eq!(clear(agent.resume(&line, &with, "OURS", "NOTE")), resumed, "{text}");
    }
}
