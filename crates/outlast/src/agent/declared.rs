//! Adapter of an agent that is declared in `outlast.toml`.

use std::sync::LazyLock;

use regex::{Captures, Regex};

use super::{
    Adapter, Names, Reading, With,
    declaration::{Declared, holds},
    eyes::Patterns,
    line::Line,
    row::Row,
};

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
