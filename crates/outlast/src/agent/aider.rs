//! aider: `aider`. It knows no sessions: a conversation is a file of Markdown, which `--restore-chat-history` reads. So a
//! session has a file of its own, in the directory of its run.
//!
//! Measured with 0.86: OPENAI_BASE_URL and ANTHROPIC_BASE_URL are obeyed; a prompt is in the file before it is asked, an
//! answer once it has come; edits are made after the answer, and models get no tools.

use std::{
    collections::BTreeMap,
    ffi::{OsStr, OsString},
    sync::LazyLock,
};

use super::{
    Adapter, Names, Reading, With,
    line::{Line, Piece, has},
    row::{self, Row},
};

pub struct Aider;

static ROW: LazyLock<&Row> = LazyLock::new(|| row::named("aider"));

/// Returns the option that gives the session a file of its own, where the person names none.
fn history(pieces: &[Piece], with: &With, session: Option<&str>) -> Vec<String> {
    match (&with.files, session) {
        (Some(files), Some(session)) if !has(pieces, &ROW.begins) && ROW.converses(pieces) => {
            let file = files.join(format!("aider-{session}.md"));
            ["--chat-history-file".to_owned(), file.to_string_lossy().into_owned()].into()
        }
        _ => Vec::new(),
    }
}

impl Adapter for Aider {
    fn row(&self) -> &Row {
        &ROW
    }

    fn read(&self, line: &Line, _piped: bool) -> Reading {
        let pieces = ROW.pieces(line);
        let names = if ROW.converses(&pieces) { Names::Ours } else { Names::Nothing };
        Reading { names, headless: has(&pieces, &ROW.prompts) }
    }

    fn begin(&self, line: &Line, with: &With, session: Option<&str>) -> Vec<String> {
        let added = history(&ROW.pieces(line), with, session);
        line.with(added.into_iter().chain(line.tail.iter().cloned()))
    }

    fn resume(&self, line: &Line, with: &With, session: &str, note: &str) -> Vec<String> {
        let pieces = ROW.pieces(line);
        let mut out = history(&pieces, with, Some(session));
        out.push("--restore-chat-history".into());
        // Words are files to edit.
        let gone = ["--load", "--restore-chat-history", "--no-restore-chat-history"];
        let stays = |piece: &&Piece| !piece.is(&gone) && !piece.is(&ROW.prompts);
        out.extend(pieces.iter().filter(stays).flat_map(Piece::words));
        if self.read(line, with.piped).headless {
            // Its file quotes the command line, and of more lines than one it reads the rest as an answer.
            out.extend(["--message".to_owned(), note.replace('\n', " ")]);
        }
        line.with(out)
    }

    fn tells(&self, line: &Line) -> bool {
        self.read(line, false).headless
    }

    fn environment(&self, _line: &Line, env: &mut BTreeMap<OsString, OsString>, _with: &With) {
        // For Gemini's models the library that it calls them by has a variable of its own.
        if let Some(url) = env.get(OsStr::new("GOOGLE_GEMINI_BASE_URL")).and_then(|url| url.to_str()) {
            let url = format!("{url}/v1beta");
            env.entry("GEMINI_API_BASE".into()).or_insert(url.into());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn line(text: &str) -> Line {
        Line::read(&text.split_whitespace().map(str::to_owned).collect::<Vec<_>>()).unwrap()
    }

    fn check(text: &str, headless: bool, begun: &str, resumed: &str) {
        let with = With { files: Some("/r".into()), ..With::default() };
        let line = line(text);
        assert_eq!(Aider.read(&line, true), Reading { names: Names::Ours, headless }, "{text}");
        assert_eq!(Aider.begin(&line, &with, Some("S")).join(" "), begun, "{text}");
        assert_eq!(Aider.resume(&line, &with, "S", "NOTE").join(" "), resumed, "{text}");
    }

    #[test]
    fn a_session_has_a_file_of_its_own_which_is_read_when_it_goes_on() {
        check(
            "aider --yes-always --model gpt-4o -m hello src/a.py",
            true,
            "aider --chat-history-file /r/aider-S.md --yes-always --model gpt-4o -m hello src/a.py",
            "aider --chat-history-file /r/aider-S.md --restore-chat-history --yes-always --model gpt-4o src/a.py \
             --message NOTE",
        );
        check(
            "aider --sonnet a.py b.py",
            false,
            "aider --chat-history-file /r/aider-S.md --sonnet a.py b.py",
            "aider --chat-history-file /r/aider-S.md --restore-chat-history --sonnet a.py b.py",
        );
    }

    #[test]
    fn a_note_is_one_line() {
        let resumed = Aider.resume(&line("aider -m x"), &With::default(), "S", "a\nb c");
        assert_eq!(resumed.last().map(String::as_str), Some("a b c"));
    }

    #[test]
    fn a_file_of_the_persons_own_is_kept() {
        check(
            "aider --chat-history-file h.md --no-restore-chat-history --msg hello",
            true,
            "aider --chat-history-file h.md --no-restore-chat-history --msg hello",
            "aider --restore-chat-history --chat-history-file h.md --message NOTE",
        );
    }

    #[test]
    fn a_start_that_is_no_conversation_has_no_session() {
        let with = With { files: Some("/r".into()), ..With::default() };
        for text in ["aider --version", "aider --list-models gpt", "aider --commit", "aider --gui"] {
            assert_eq!(Aider.read(&line(text), false).names, Names::Nothing, "{text}");
            assert_eq!(Aider.begin(&line(text), &with, Some("S")).join(" "), text);
        }
    }

    #[test]
    fn geminis_models_are_called_by_the_proxy_unless_the_person_says_otherwise() {
        let of = |set: &[(&str, &str)]| {
            let mut env: BTreeMap<OsString, OsString> =
                set.iter().map(|(name, value)| (name.into(), value.into())).collect();
            Aider.environment(&line("aider"), &mut env, &With::default());
            env.get(OsStr::new("GEMINI_API_BASE")).map(|v| v.to_string_lossy().into_owned())
        };
        let ours = ("GOOGLE_GEMINI_BASE_URL", "http://p");
        assert_eq!(of(&[ours]).as_deref(), Some("http://p/v1beta"));
        assert_eq!(of(&[ours, ("GEMINI_API_BASE", "http://own")]).as_deref(), Some("http://own"));
        assert_eq!(of(&[]), None);
    }
}
