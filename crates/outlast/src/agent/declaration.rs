//! `[agents.NAME]` of `outlast.toml`: how a program starts in a new session, and how it resumes an old one.

use std::path::Path;

use super::{
    eyes::{self, Patterns},
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
