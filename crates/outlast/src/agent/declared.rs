//! Agents that are declared in `outlast.toml`: `[agents.NAME]`.

use std::{collections::BTreeMap, ffi::OsString};

use super::{
    Adapter, Names, Reading, With,
    eyes::{self, Patterns},
    line::Line,
};

/// One `[agents.NAME]`.
///
/// In `new_args` and `resume_args`, `{args}` alone stands for what the person typed behind the program, and
/// `{session}` and `{note}`, also within a word, for the session's id and what the model is to be told.
#[derive(Clone, Debug)]
pub struct Declared {
    pub name: String,
    /// The program's name.
    pub program: String,
    pub new_args: Vec<String>,
    pub resume_args: Vec<String>,
    /// `session_id_regex` and `limit_regex`.
    pub patterns: Patterns,
}

/// Why a declaration is not taken.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BadDeclaration {
    #[error("unknown key (wanted match, new_args, resume_args, session_id_regex, limit_regex)")]
    UnknownKey,
    #[error("wanted {0}")]
    Wanted(&'static str),
    #[error("`{0}` is an adapter of its own already")]
    BuiltIn(String),
    #[error("resume_args without {{session}} would not go on with the session that new_args begin")]
    NoSession,
    #[error("cannot be read as a regular expression: {0}")]
    Regex(String),
    #[error("new_args with {{session}} choose the session: there is none to be read off what it prints")]
    TwoSessions,
}

impl Declared {
    /// Reads the table below `[agents.NAME]`. Errors: with the key that is wrong.
    pub fn read(name: &str, table: &toml::Table) -> Result<Declared, (String, BadDeclaration)> {
        let bad = |key: &str, why| Err((key.to_owned(), why));
        if ["claude", "codex", "auto", "none"].contains(&name) {
            return bad("", BadDeclaration::BuiltIn(name.to_owned()));
        }
        let all = || vec!["{args}".to_owned()];
        let mut declared = Declared {
            name: name.to_owned(),
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

fn holds(words: &[String], place: &str) -> bool {
    words.iter().any(|word| word.contains(place))
}

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

/// In one pass: what was put in is not looked at again.
fn fill(word: &str, session: &str, note: &str) -> String {
    let mut out = String::new();
    let mut rest = word;
    while let Some(at) = rest.find('{') {
        out.push_str(&rest[..at]);
        rest = &rest[at..];
        let (put, len) = if rest.starts_with("{session}") {
            (session, "{session}".len())
        } else if rest.starts_with("{note}") {
            (note, "{note}".len())
        } else {
            ("{", 1)
        };
        out.push_str(put);
        rest = &rest[len..];
    }
    out + rest
}

impl Adapter for Declared {
    fn name(&self) -> &str {
        &self.name
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

    fn patterns(&self) -> Patterns {
        self.patterns.clone()
    }

    fn environment(&self, _env: &mut BTreeMap<OsString, OsString>, _with: &With) {}
}

#[cfg(test)]
mod tests {
    use super::*;

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
