//! What is read off what an agent prints: the session it has chosen, and that it stands at its provider's usage limit.
//! Pure.
//!
//! What a provider says to the proxy is believed first: an agent may print anything, also what its tools found.

use outlast_core::words::id::Micros;
use regex::bytes::{Captures, Regex, RegexBuilder};

use crate::render::time::{self, When};

/// A line is looked at up to this length.
const LONGEST_LINE: usize = 4096;

/// No program's ids are longer.
const LONGEST_ID: usize = 200;

/// A limit that does not say when it is over is asked about again after this time.
const UNSAID_MS: i64 = 15 * 60 * 1000;

/// A moment further ahead is no time that a provider would name.
const FARTHEST_MS: i64 = 32 * 86_400_000;

/// What to look for, each in one line of what is printed, as it reads on a screen.
#[derive(Clone, Debug, Default)]
pub struct Patterns {
    /// Its first group is the session's id, or else all that it matches.
    pub session: Option<Regex>,
    /// Its group `at` is when the limit is over (seconds since 1970, or RFC 3339 in UTC), `days`, `hours`, `minutes` and
    /// `seconds` are how long it lasts.
    pub limit: Option<Regex>,
}

/// Something that was looked for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Sight {
    Session(String),
    /// Until when everything is refused.
    Limit(Micros),
}

/// The pattern of a declaration. Bytes of other encodings do not stop it; letters are ASCII's.
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
        let until = limit.map(|found| until(&found, now)).filter(|until| {
            let left = until.ms_since(now);
            left > 0 && left <= FARTHEST_MS
        });
        session.map(Sight::Session).into_iter().chain(until.map(Sight::Limit)).collect()
    }
}

/// One that could be taken for an option, or is no word, is none.
fn id(found: &Captures<'_>) -> Option<String> {
    let id = std::str::from_utf8(found.get(1).or_else(|| found.get(0))?.as_bytes()).ok()?;
    let is_word = !id.is_empty() && id.len() <= LONGEST_ID && id.bytes().all(|b| b.is_ascii_graphic());
    (is_word && !id.starts_with('-')).then(|| id.to_owned())
}

fn until(found: &Captures<'_>, now: Micros) -> Micros {
    let text = |name: &str| found.name(name).and_then(|group| std::str::from_utf8(group.as_bytes()).ok());
    if let Some(at) = text("at") {
        return moment(at).unwrap_or_else(|| now.plus_ms(UNSAID_MS));
    }
    let units = [("days", 86_400_000), ("hours", 3_600_000), ("minutes", 60_000), ("seconds", 1000)];
    let spans =
        units.iter().filter_map(|(name, ms)| Some(text(name)?.parse::<i64>().ok()?.saturating_mul(*ms)));
    let whole = spans.fold(0, i64::saturating_add);
    now.plus_ms(if whole > 0 { whole.min(FARTHEST_MS + 1) } else { UNSAID_MS })
}

fn moment(text: &str) -> Option<Micros> {
    match text.parse::<i64>() {
        Ok(seconds) => seconds.checked_mul(1_000_000).map(Micros),
        Err(_) => match time::parse_when(text).ok()? {
            When::At(at) => Some(at),
            _ => None,
        },
    }
}

/// One stream of what is printed, by the lines that a person sees: escape sequences are not text, and whatever moves
/// the cursor to another place ends a line.
#[derive(Debug, Default)]
pub struct Screen {
    line: Vec<u8>,
    state: State,
    /// What was seen last, which programs draw again and again.
    last: Vec<u8>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum State {
    #[default]
    Text,
    Escape,
    /// `ESC [ …` up to its final byte.
    Control,
    /// `ESC ] …`, a title or a link: up to BEL or `ESC \`.
    Title,
    TitleEscape,
    /// One byte that names a character set.
    Charset,
}

impl Screen {
    /// Takes what was printed next, and tells what is in the lines that it ends.
    pub fn print(&mut self, bytes: &[u8], patterns: &Patterns, now: Micros) -> Vec<Sight> {
        let mut sights = Vec::new();
        for &byte in bytes {
            if self.ends_line(byte) || self.line.len() >= LONGEST_LINE {
                sights.extend(self.end(patterns, now));
            }
        }
        sights
    }

    /// The last line has no end of its own.
    pub fn end(&mut self, patterns: &Patterns, now: Micros) -> Vec<Sight> {
        let line = std::mem::take(&mut self.line);
        if line.is_empty() || line == self.last {
            return Vec::new();
        }
        let sights = patterns.see(&line, now);
        if !sights.is_empty() {
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
            // Another line: index, next line, reverse index, reset.
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
        // However it comes in pieces.
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
        // Drawn again.
        check(&by_group, b"session: 12\rsession: 12\nsession: 12\n", &seen("12"));
        check(&by_group, b"sess\nion: 12\n", &[]);
        check(&by_group, b"\xff\xfe session: 12 \xff\n", &seen("12"));
        check(&patterns("id-\\d+", ""), b"see id-77\n", &seen("id-77"));
        // Nothing that a command would take for something else.
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
        // It has passed, is further away than any, or is not understood.
        check(&at, b"limit reached|1795161599\nlimit reached|1895161599\n", &[]);
        check(&at, b"limit reached|soon\n", &seen(UNSAID_MS));
        let span = patterns("", r"resets in (?:(?<hours>\d+) ?h)? ?(?:(?<minutes>\d+) ?m)?");
        check(&span, b"resets in 2h 5m\n", &seen(125 * 60_000));
        check(&span, b"resets in 5 m\n", &seen(5 * 60_000));
        check(&span, b"resets in a while\n", &seen(UNSAID_MS));
        check(&span, b"resets in 99999999999999999h\n", &[]);
        check(&patterns("", "(?i)usage limit"), b"Usage Limit!\n", &seen(UNSAID_MS));
    }
}
