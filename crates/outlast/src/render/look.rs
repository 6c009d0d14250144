//! The look of output (colour, JSON) and the page that commands print on.

use std::io::{self, Write};

use outlast_core::run::Status;
use serde::Serialize;

pub use super::text::{clean, clean_line, exact_line};

/// Look of output: with or without colours, as text or JSON.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Look {
    pub color: bool,
    pub json: bool,
}

impl Look {
    pub fn paint(self, paint: Paint, text: &str) -> String {
        match paint.code() {
            Some(code) if self.color && !text.is_empty() => format!("\x1b[{code}m{text}\x1b[0m"),
            _ => text.to_owned(),
        }
    }
}

/// Colour of text, named by what it tells the reader.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Paint {
    #[default]
    Plain,
    Strong,
    Faint,
    Good,
    Bad,
    Care,
    Calm,
}

impl Paint {
    fn code(self) -> Option<&'static str> {
        Some(match self {
            Paint::Plain => return None,
            Paint::Strong => "1",
            Paint::Faint => "2",
            Paint::Good => "32",
            Paint::Bad => "31",
            Paint::Care => "33",
            Paint::Calm => "36",
        })
    }
}

pub fn of_status(status: Status) -> Paint {
    match status {
        Status::Running => Paint::Good,
        Status::Interrupted | Status::Halted => Paint::Care,
        Status::Waiting | Status::Sleeping => Paint::Calm,
        Status::Completed | Status::Cancelled => Paint::Faint,
        Status::Failed => Paint::Bad,
    }
}

/// Output of a command, with the look that the output has.
pub struct Page<'a> {
    pub(super) out: &'a mut dyn Write,
    pub look: Look,
    /// Options of the typed command by which the commands that it suggests find the same store; empty if they find it
    /// without.
    pub place: String,
}

/// Beginning of a line that suggests a command.
const SUGGESTS: &str = "  → outlast ";

/// Error of a page whose output could not be written.
#[derive(Debug, thiserror::Error)]
#[error("cannot write the output: {0}")]
pub struct Unwritten(#[from] pub io::Error);

impl From<Unwritten> for io::Error {
    fn from(Unwritten(error): Unwritten) -> io::Error {
        error
    }
}

impl<'a> Page<'a> {
    pub fn new(out: &'a mut dyn Write, look: Look) -> Self {
        Page { out, look, place: String::new() }
    }

    pub fn line(&mut self, text: &str) -> Result<(), Unwritten> {
        self.put(text)?;
        self.bytes(b"\n")
    }

    /// Writes text that already ends in a newline.
    pub fn text(&mut self, text: &str) -> Result<(), Unwritten> {
        text.split_inclusive('\n').try_for_each(|line| self.put(line))
    }

    fn put(&mut self, line: &str) -> Result<(), Unwritten> {
        let written = match line.strip_prefix(SUGGESTS).filter(|command| !command.contains("--store")) {
            Some(command) => write!(self.out, "{SUGGESTS}{}{command}", self.place),
            None => self.out.write_all(line.as_bytes()),
        };
        Ok(written?)
    }

    /// Writes bytes unchanged.
    pub fn bytes(&mut self, bytes: &[u8]) -> Result<(), Unwritten> {
        Ok(self.out.write_all(bytes)?)
    }

    /// Writes one indented JSON document.
    pub fn json(&mut self, value: &impl Serialize) -> Result<(), Unwritten> {
        serde_json::to_writer_pretty(&mut *self.out, value).map_err(io::Error::from)?;
        self.bytes(b"\n")
    }

    /// Writes one JSON value on a line, for output that goes on, such as with `-f`.
    pub fn json_line(&mut self, value: &impl Serialize) -> Result<(), Unwritten> {
        serde_json::to_writer(&mut *self.out, value).map_err(io::Error::from)?;
        self.bytes(b"\n")
    }

    pub fn flush(&mut self) -> Result<(), Unwritten> {
        Ok(self.out.flush()?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_from_outside_cannot_steer_a_terminal() {
        assert_eq!(clean("a\x1b[2Jb\u{202e}c\r\n"), "a\u{fffd}[2Jb\u{fffd}c\u{fffd}\n");
        assert_eq!(clean_line("one\ntwo", 20), "one two");
        assert_eq!(exact_line("one\ntwo", 20), "one\\ntwo");
        assert_eq!(clean_line("0123456789", 5), "0123…");
    }
}
