//! `[agents.NAME]` of `outlast.toml`: how a program starts in a new session, and how it resumes an old one.

use std::{path::Path, sync::LazyLock};

use regex::{Captures, Regex};

use super::{
    Adapter, Names, Reading, With,
    eyes::{self, Patterns},
    line::Line,
    row::{self, Row},
};
use crate::settings::{
    file::{self, BadDeclaration, Error},
    surroundings::Surroundings,
};

/// Name of the table of declared agents.
pub const TABLE: &str = "agents";

/// Returns the agents that the user's own `outlast.toml` declares.
pub fn load(around: &Surroundings) -> Result<Vec<Declared>, Error> {
    let Some((path, tables)) = file::own_tables(around, TABLE)? else { return Ok(Vec::new()) };
    read(&tables, &path)
}

/// Reads the tables `[agents.NAME]`. Errors: `BadAgent`, which names `path`.
pub fn read(agents: &toml::Table, path: &Path) -> Result<Vec<Declared>, Error> {
    let of = |(name, value): (&String, &toml::Value)| {
        let no_table = || (String::new(), BadDeclaration::Wanted("a table"));
        let read = value.as_table().ok_or_else(no_table).and_then(|table| Declared::read(name, table));
        read.map_err(|(key, why)| {
            let key = if key.is_empty() { key } else { format!(".{key}") };
            Error::BadAgent { path: path.into(), agent: name.clone(), key, why }
        })
    };
    agents.iter().map(of).collect()
}

/// Declared agent: one table `[agents.NAME]`.
///
/// In `new_args` and `resume_args`, the word `{args}` stands for what the person typed behind the program.
/// `{session}` and `{note}`, also within a word, stand for the session's id and the note to the model.
#[derive(Clone, Debug)]
pub struct Declared {
    /// Facts about the agent that a person cannot declare: only its name is known.
    pub row: Row,
    /// Name of the program for which the agent is recognized (`match`).
    pub program: String,
    pub new_args: Vec<String>,
    pub resume_args: Vec<String>,
    /// Patterns of the session id and of a usage limit: `session_id_regex` and `limit_regex`.
    pub patterns: Patterns,
}

impl Declared {
    /// Reads the table `[agents.NAME]`. Errors: the key that is wrong, and the reason.
    pub fn read(name: &str, table: &toml::Table) -> Result<Declared, (String, BadDeclaration)> {
        let bad = |key: &str, why| Err((key.to_owned(), why));
        if row::rows().iter().any(|row| row.name == name) || ["auto", "none"].contains(&name) {
            return bad("", BadDeclaration::BuiltIn(name.to_owned()));
        }
        let all = || vec!["{args}".to_owned()];
        let mut declared = Declared {
            row: Row { name: name.to_owned(), bodies_name_session: true, ..Row::default() },
            program: name.to_owned(),
            new_args: all(),
            resume_args: all(),
            patterns: Patterns::default(),
        };
        for (key, value) in table {
            match key.as_str() {
                "match" => match value.as_str().filter(|program| !program.is_empty()) {
                    Some(program) => declared.program = program.to_owned(),
                    None => return bad(key, BadDeclaration::Wanted("a program's name")),
                },
                "new_args" | "resume_args" => {
                    let words = value.as_array().map(|list| list.iter().map(|word| word.as_str()));
                    let words: Option<Vec<String>> =
                        words.and_then(|words| words.map(|word| word.map(str::to_owned)).collect());
                    let Some(words) = words else {
                        return bad(key, BadDeclaration::Wanted("a list of words"));
                    };
                    match key.as_str() {
                        "new_args" => declared.new_args = words,
                        _ => declared.resume_args = words,
                    }
                }
                "session_id_regex" | "limit_regex" => {
                    let text = value.as_str().filter(|text| !text.is_empty());
                    let Some(text) = text else { return bad(key, BadDeclaration::Wanted("a pattern")) };
                    let pattern = match eyes::pattern(text) {
                        Ok(pattern) => Some(pattern),
                        Err(e) => return bad(key, BadDeclaration::Regex(e.to_string())),
                    };
                    match key.as_str() {
                        "limit_regex" => declared.patterns.limit = pattern,
                        _ => declared.patterns.session = pattern,
                    }
                }
                _ => return bad(key, BadDeclaration::UnknownKey),
            }
        }
        let (chooses, reads) = (holds(&declared.new_args, "{session}"), declared.patterns.session.is_some());
        if chooses && reads {
            return bad("session_id_regex", BadDeclaration::TwoSessions);
        }
        if (chooses || reads) && !holds(&declared.resume_args, "{session}") {
            return bad("resume_args", BadDeclaration::NoSession);
        }
        Ok(declared)
    }
}

/// Returns whether any of `words` contains the placeholder `place`.
pub fn holds(words: &[String], place: &str) -> bool {
    words.iter().any(|word| word.contains(place))
}

// --- Adapter of an agent that is declared in `outlast.toml`.

fn filled(words: &[String], line: &Line, session: &str, note: &str) -> Vec<String> {
    let mut out = Vec::new();
    for word in words {
        match word.as_str() {
            "{args}" => out.extend(line.tail.iter().cloned()),
            _ => out.push(fill(word, session, note)),
        }
    }
    line.with(out)
}

/// Fills in the placeholders in one pass: inserted text is not searched again.
fn fill(word: &str, session: &str, note: &str) -> String {
    static PLACE: LazyLock<Regex> = LazyLock::new(|| Regex::new(r"\{(session|note)\}").expect("it is one"));
    let put =
        |place: &Captures<'_>| if &place[1] == "session" { session.to_owned() } else { note.to_owned() };
    PLACE.replace_all(word, put).into_owned()
}

impl Adapter for Declared {
    fn row(&self) -> &Row {
        &self.row
    }

    fn matches(&self, program: &str) -> bool {
        program == self.program
    }

    fn read(&self, _line: &Line, _piped: bool) -> Reading {
        let names = match &self.patterns.session {
            Some(_) => Names::Theirs,
            None if holds(&self.new_args, "{session}") => Names::Ours,
            None => Names::Nothing,
        };
        Reading { names, headless: holds(&self.resume_args, "{note}") }
    }

    fn begin(&self, line: &Line, _with: &With, session: Option<&str>) -> Vec<String> {
        filled(&self.new_args, line, session.unwrap_or_default(), "")
    }

    fn resume(&self, line: &Line, _with: &With, session: &str, note: &str) -> Vec<String> {
        filled(&self.resume_args, line, session, note)
    }

    fn tells(&self, _line: &Line) -> bool {
        holds(&self.resume_args, "{note}")
    }

    fn patterns(&self) -> Patterns {
        self.patterns.clone()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::settings::file::BadDeclaration;

    fn declared(text: &str) -> Result<Declared, (String, BadDeclaration)> {
        Declared::read("kimi", &text.parse().unwrap())
    }

    #[test]
    fn places_are_filled_once() {
        let kimi = declared(
            r#"match = "kimi-cli"
               new_args = ["--session={session}", "{args}"]
               resume_args = ["--session", "{session}", "-p", "{note}", "{other}"]"#,
        )
        .unwrap();
        let words = ["kimi-cli", "-p", "{session}"].map(str::to_owned);
        let line = Line::read(&words).unwrap();
        assert!(kimi.matches(&line.program));
        assert_eq!(
            kimi.begin(&line, &With::default(), Some("s1")).join(" "),
            "kimi-cli --session=s1 -p {session}"
        );
        let resumed = kimi.resume(&line, &With::default(), "s1", "see {session}");
        assert_eq!(resumed, ["kimi-cli", "--session", "s1", "-p", "see {session}", "{other}"]);
    }

    #[test]
    fn a_declaration_that_means_nothing_is_refused_with_its_key() {
        for (text, key) in [
            ("match = 1", "match"),
            ("new_args = \"x\"", "new_args"),
            ("resume_args = [1]", "resume_args"),
            ("extra = 1", "extra"),
            ("new_args = [\"{session}\"]\nresume_args = [\"x\"]", "resume_args"),
            ("session_id_regex = \"id\"\nresume_args = [\"x\"]", "resume_args"),
            ("session_id_regex = \"(\"", "session_id_regex"),
            ("limit_regex = 1", "limit_regex"),
            (
                "new_args = [\"{session}\"]\nresume_args = [\"{session}\"]\nsession_id_regex = \"id\"",
                "session_id_regex",
            ),
        ] {
            assert_eq!(declared(text).unwrap_err().0, key, "{text}");
        }
        assert!(Declared::read("claude", &toml::Table::new()).is_err());
    }
}
