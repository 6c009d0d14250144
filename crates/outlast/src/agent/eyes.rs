//! Reads an agent's output for the session id it has chosen, and for its provider's usage limit. Pure.
//!
//! The provider's answers to the proxy take precedence: an agent may print anything, for example what its
//! tools found.

use std::sync::atomic::{AtomicUsize, Ordering};

use outlast_core::words::Micros;
use outlast_server::dialect::told_time::Reader;
use regex::bytes::{Captures, Regex, RegexBuilder};

use crate::render::time;

/// Longest part of a line that is searched, in bytes.
const LONGEST_LINE: usize = 4096;

/// Longest session id. No known program has longer ones.
const LONGEST_ID: usize = 200;

/// Time after which a run tries again when the agent printed a limit without its end.
const UNSAID_MS: i64 = 15 * 60 * 1000;

/// Furthest end of a limit that is believed. No provider would name a later one.
const FARTHEST_MS: i64 = 32 * 86_400_000;

/// Patterns to search for in an agent's output, each within one line as it reads on a screen. `None`: not searched for.
#[derive(Clone, Debug, Default)]
pub struct Patterns {
    /// Pattern of the session id: its first group, or else the whole match.
    pub session: Option<Regex>,
    /// Pattern of a usage limit. Group `at` is its end, as [`Reader::read`] reads it; `days`, `hours`, `minutes` and
    /// `seconds` give its length instead.
    pub limit: Option<Regex>,
}

/// Match of a pattern in an agent's output.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Sight {
    Session(String),
    /// A usage limit, with the time at which it ends.
    Limit(Micros),
    /// A line of other text.
    Text,
}

/// Most lines of other text behind a usage limit that belongs to an agent's last words: a box to type in, and a hint.
const LAST_WORDS: usize = 5;

/// Usage limits among what an agent prints last. A program also prints what its tools have read, which may quote a limit:
/// an agent that goes on printing was not stopped by it.
#[derive(Debug)]
pub struct LastWords {
    /// Number of lines since the newest limit; `LAST_WORDS` or more: it counts no more, or there was none.
    lines: AtomicUsize,
}

impl Default for LastWords {
    fn default() -> Self {
        LastWords { lines: AtomicUsize::new(LAST_WORDS) }
    }
}

impl LastWords {
    /// Takes the next sight of any of the agent's streams. Returns the new state, if there is one: the end of the limit in
    /// the last words, or `None` when the limit is no longer among them.
    pub fn note(&self, sight: &Sight) -> Option<Option<Micros>> {
        match sight {
            Sight::Session(_) => None,
            Sight::Limit(until) => {
                self.lines.store(0, Ordering::Relaxed);
                Some(Some(*until))
            }
            Sight::Text => (self.lines.fetch_add(1, Ordering::Relaxed) + 1 == LAST_WORDS).then_some(None),
        }
    }
}

/// Compiles a pattern of `outlast.toml`. Bytes that are no UTF-8 can match; letter classes are ASCII.
pub fn pattern(text: &str) -> Result<Regex, regex::Error> {
    RegexBuilder::new(text).unicode(false).size_limit(1 << 20).build()
}

impl Patterns {
    pub fn is_empty(&self) -> bool {
        self.session.is_none() && self.limit.is_none()
    }

    fn see(&self, line: &[u8], now: Micros) -> Vec<Sight> {
        let session =
            self.session.as_ref().and_then(|pattern| pattern.captures(line)).and_then(|found| id(&found));
        let limit = self.limit.as_ref().and_then(|pattern| pattern.captures(line));
        let is_text = self.limit.is_some() && limit.is_none() && line.iter().any(u8::is_ascii_alphanumeric);
        let until = limit.map(|found| until(&found, now)).filter(|until| {
            let left = until.ms_since(now);
            left > 0 && left <= FARTHEST_MS
        });
        let text = (is_text && session.is_none()).then_some(Sight::Text);
        session.map(Sight::Session).into_iter().chain(until.map(Sight::Limit)).chain(text).collect()
    }
}

/// Returns the session id that the pattern found; `None` if it could be mistaken for an option, or is not one
/// word.
fn id(found: &Captures<'_>) -> Option<String> {
    let id = std::str::from_utf8(found.get(1).or_else(|| found.get(0))?.as_bytes()).ok()?;
    let is_word = !id.is_empty() && id.len() <= LONGEST_ID && id.bytes().all(|b| b.is_ascii_graphic());
    (is_word && !id.starts_with('-')).then(|| id.to_owned())
}

fn until(found: &Captures<'_>, now: Micros) -> Micros {
    let text = |name: &str| found.name(name).and_then(|group| std::str::from_utf8(group.as_bytes()).ok());
    if let Some(at) = text("at") {
        let reader = Reader { now, zones: &time::zone_named };
        return reader.read(at).unwrap_or_else(|| now.plus_ms(UNSAID_MS));
    }
    let units = [("days", 86_400_000), ("hours", 3_600_000), ("minutes", 60_000), ("seconds", 1000)];
    let spans =
        units.iter().filter_map(|(name, ms)| Some(text(name)?.parse::<i64>().ok()?.saturating_mul(*ms)));
    let whole = spans.fold(0, i64::saturating_add);
    now.plus_ms(if whole > 0 { whole.min(FARTHEST_MS + 1) } else { UNSAID_MS })
}

/// Lines of one output stream as a person sees them. Escape sequences are not text, and whatever moves the
/// cursor elsewhere ends a line.
#[derive(Debug, Default)]
pub struct Screen {
    line: Vec<u8>,
    state: State,
    /// Line that was last reported: programs draw the same line again and again.
    last: Vec<u8>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum State {
    #[default]
    Text,
    Escape,
    /// In a control sequence: `ESC [ …` up to its final byte.
    Control,
    /// In a title or a link: `ESC ] …`, up to BEL or `ESC \`.
    Title,
    TitleEscape,
    /// Before the byte that names a character set.
    Charset,
}

impl Screen {
    /// Adds printed bytes, and returns the matches in the lines that they end.
    pub fn print(&mut self, bytes: &[u8], patterns: &Patterns, now: Micros) -> Vec<Sight> {
        let mut sights = Vec::new();
        for &byte in bytes {
            if self.ends_line(byte) || self.line.len() >= LONGEST_LINE {
                sights.extend(self.end(patterns, now));
            }
        }
        sights
    }

    /// Ends the current line, and returns the matches in it.
    pub fn end(&mut self, patterns: &Patterns, now: Micros) -> Vec<Sight> {
        let line = std::mem::take(&mut self.line);
        if line.is_empty() {
            return Vec::new();
        }
        let mut sights = patterns.see(&line, now);
        if line == self.last {
            // A limit that is drawn again is still on the screen; a session is reported once.
            sights.retain(|sight| matches!(sight, Sight::Limit(_)));
        } else if sights.iter().any(|sight| *sight != Sight::Text) {
            self.last = line;
        }
        sights
    }

    fn ends_line(&mut self, byte: u8) -> bool {
        let (state, ends) = match (self.state, byte) {
            (State::Text, 0x1b) => (State::Escape, false),
            (State::Text, b'\n' | b'\r' | 0x0b | 0x0c) => (State::Text, true),
            (State::Text, b'\t' | b' '..) => {
                self.line.push(byte);
                (State::Text, false)
            }
            (State::Text, _) => (State::Text, false),
            (State::Escape, b'[') => (State::Control, false),
            (State::Escape, b']' | b'P' | b'^' | b'_') => (State::Title, false),
            (State::Escape, b'(' | b')') => (State::Charset, false),
            // These move to another line: index, next line, reverse index, reset.
            (State::Escape, b'D' | b'E' | b'M' | b'c') => (State::Text, true),
            (State::Escape | State::Charset, _) => (State::Text, false),
            // Styles, modes and erasing leave the cursor where it is; programs step over blanks.
            (State::Control, b'm' | b'h' | b'l' | b'K' | b'X' | b'n' | b't' | b'q' | b'u' | b'c') => {
                (State::Text, false)
            }
            (State::Control, b'C') => {
                self.line.push(b' ');
                (State::Text, false)
            }
            (State::Control, 0x40..=0x7e) => (State::Text, true),
            (State::Control, _) => (State::Control, false),
            (State::Title, 0x07) => (State::Text, false),
            (State::Title, 0x1b) => (State::TitleEscape, false),
            (State::Title, _) => (State::Title, false),
            (State::TitleEscape, b'\\') => (State::Text, false),
            (State::TitleEscape, _) => (State::Title, false),
        };
        self.state = state;
        ends
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// 2026-11-20 08:00:00 UTC.
    const NOW: Micros = Micros(1_795_161_600_000_000);

    fn patterns(session: &str, limit: &str) -> Patterns {
        let of = |text: &str| (!text.is_empty()).then(|| pattern(text).unwrap());
        Patterns { session: of(session), limit: of(limit) }
    }

    #[track_caller]
    fn check(patterns: &Patterns, printed: &[u8], wanted: &[Sight]) {
        // The result is the same, however the bytes are cut.
        for size in [1, 2, 3, 7, printed.len().max(1)] {
            let mut screen = Screen::default();
            let mut sights: Vec<Sight> =
                printed.chunks(size).flat_map(|piece| screen.print(piece, patterns, NOW)).collect();
            sights.extend(screen.end(patterns, NOW));
            assert_eq!(sights, wanted, "{:?} in pieces of {size}", String::from_utf8_lossy(printed));
        }
    }

    #[test]
    fn session_is_read_off_a_line_as_a_person_sees_it() {
        let by_group = patterns("session: ([0-9a-f-]+)", "");
        let seen = |id: &str| vec![Sight::Session(id.into())];
        check(&by_group, b"hello\nsession: 12-ab\r\nmore\n", &seen("12-ab"));
        check(&by_group, b"session: 12-ab", &seen("12-ab"));
        check(
            &by_group,
            b"\x1b[2J\x1b[1;3H\x1b[1mses\x1b[0msion:\x1b[C12-\x1b[31mab\x1b[5;1Hcd\n",
            &seen("12-ab"),
        );
        check(&by_group, b"\x1b]0;session: 99\x07session: 12\n", &seen("12"));
        check(&by_group, b"\x1b]8;;x\x1b\\session: 12\n", &seen("12"));
        // A line that is drawn again counts once.
        check(&by_group, b"session: 12\rsession: 12\nsession: 12\n", &seen("12"));
        check(&by_group, b"sess\nion: 12\n", &[]);
        check(&by_group, b"\xff\xfe session: 12 \xff\n", &seen("12"));
        check(&patterns("id-\\d+", ""), b"see id-77\n", &seen("id-77"));
        // Ids that a command would take for something else do not count.
        check(&patterns("session: (.+)", ""), b"session: --yes\nsession: a b\nsession: \n", &[]);
        check(&patterns("session: (.+)", ""), format!("session: {}\n", "x".repeat(300)).as_bytes(), &[]);
        check(&by_group, &[&vec![b'x'; 5000][..], b"\nsession: 12\n"].concat(), &seen("12"));
    }

    #[test]
    fn limit_says_until_when_or_for_how_long() {
        let seen = |ms: i64| vec![Sight::Limit(NOW.plus_ms(ms))];
        let at = patterns("", r"limit reached\|(?<at>.+)$");
        check(&at, b"limit reached|1795165200\n", &seen(3_600_000));
        check(&at, b"limit reached|2026-11-20T09:00:00Z\n", &seen(3_600_000));
        // The time has passed, is too far away, or is not understood.
        check(&at, b"limit reached|1795161599\nlimit reached|1895161599\n", &[]);
        check(&at, b"limit reached|soon\n", &seen(UNSAID_MS));
        let span = patterns("", r"resets in (?:(?<hours>\d+) ?h)? ?(?:(?<minutes>\d+) ?m)?");
        check(&span, b"resets in 2h 5m\n", &seen(125 * 60_000));
        check(&span, b"resets in 5 m\n", &seen(5 * 60_000));
        check(&span, b"resets in a while\n", &seen(UNSAID_MS));
        check(&span, b"resets in 99999999999999999h\n", &[]);
        check(&patterns("", "(?i)usage limit"), b"Usage Limit!\n", &seen(UNSAID_MS));
        let words = patterns("", "(?i)limit will reset at (?<at>[^.]+)");
        for text in
            ["9am (UTC)", "09:00 (GMT)", "6pm JST", "Nov 20, 9:00 AM UTC", "2026-11-20 18:00 +09:00", "3600"]
        {
            check(&words, format!("Your limit will reset at {text}.\n").as_bytes(), &seen(3_600_000));
        }
    }

    /// Bug: a usage limit that a tool's output quoted, and a crash minutes later, were a sleep of five hours. Cause: a match
    /// anywhere in the output was taken for the agent's own word.
    #[test]
    fn only_a_limit_among_the_last_words_counts() {
        let limit = patterns("", "limit reached, resets in (?<hours>\\d+) h");
        let check = |printed: &str, wanted: Option<i64>| {
            let (mut screen, words, mut state) = (Screen::default(), LastWords::default(), None);
            for sight in screen.print(printed.as_bytes(), &limit, NOW) {
                state = words.note(&sight).unwrap_or(state);
            }
            assert_eq!(state, wanted.map(|hours| NOW.plus_ms(hours * 3_600_000)), "{printed:?}");
        };
        let quote = "README: on \"limit reached, resets in 5 h\" wait\n";
        check(quote, Some(5));
        check(&format!("{quote}---\nbye\n\n{}", "> \n".repeat(9)), Some(5));
        check(&format!("{quote}{}", "more\n".repeat(LAST_WORDS - 1)), Some(5));
        check(&format!("{quote}{}", "more\n".repeat(LAST_WORDS)), None);
        check(&format!("{quote}{}{quote}", "more\n".repeat(LAST_WORDS)), Some(5));
        // A screen that is drawn again and again, with the limit at its top.
        check(&format!("{quote}a\nb\nc\n").repeat(3), Some(5));
        check("nothing\nof\nthe\nkind\nat\nall\n", None);
    }
}
