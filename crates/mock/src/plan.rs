//! Plans of subscriptions: windows of time in which a share may be used, told in the head of each answer.
//!
//! `5h:1000000,used=20%,others=0.5%,turns=4s`: a window that is told as one of five hours, of a million tokens, of which a
//! fifth is used at the start. With each call another device takes half a percent of it. It begins with its first call,
//! turns 4 s later and is empty then. What an answer tells is from before its own call was counted, as with the real ones.
//! A window that is used up refuses every call until it turns.

use std::{
    str::FromStr,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use http::{HeaderMap, HeaderValue, header::HeaderName};
use outlast_core::{
    envelope::{Ceilings, Length, Share},
    words::duration,
};
use serde::Serialize;

use super::{options::BadOption, request::Dialect};

/// A window, as an option describes it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Window {
    length: Length,
    /// Number of tokens that make up the whole window.
    tokens: u64,
    /// Share of the window that is used when the provider starts.
    used: Share,
    /// Share of the window that another device takes with each call.
    others: Share,
    /// Time after which the window ends and its count starts again.
    turns: Duration,
}

impl FromStr for Window {
    type Err = BadOption;

    fn from_str(text: &str) -> Result<Window, BadOption> {
        read(text).ok_or_else(|| {
            BadOption::new("LENGTH:TOKENS[,used=40%][,others=0.5%][,turns=4s], such as 5h:1000000", text)
        })
    }
}

fn read(text: &str) -> Option<Window> {
    let (length, rest) = text.split_once(':')?;
    let mut parts = rest.split(',');
    let tokens = parts.next()?.trim().parse().ok().filter(|n| *n > 0)?;
    // A share is read as a ceiling on the window is.
    let share = |text: &str| Some(format!("{length}={text}").parse::<Ceilings>().ok()?.iter().next()?.1);
    let length = format!("{length}=1%").parse::<Ceilings>().ok()?.iter().next()?.0;
    let turns = Duration::from_micros(u64::try_from(length.us()).ok()?);
    let mut window = Window { length, tokens, used: Share(0), others: Share(0), turns };
    for part in parts {
        match part.trim().split_once('=')? {
            ("used", text) => window.used = share(text)?,
            ("others", text) => window.others = share(text)?,
            ("turns", text) => {
                let ms = u64::try_from(duration::parse_ms(text).ok()?).ok().filter(|ms| *ms > 0)?;
                window.turns = Duration::from_millis(ms);
            }
            _ => return None,
        }
    }
    Some(window)
}

/// The plan of one provider.
#[derive(Debug, Default)]
pub(super) struct Plan(Vec<Counted>);

#[derive(Debug)]
struct Counted {
    window: Window,
    /// Number of times that the window has ended and begun again.
    turn: u64,
    /// Time at which the window ends and its count starts again; `None` before its first call.
    ends: Option<SystemTime>,
    used: Share,
    others: Share,
}

/// Use of a window, as the head of an answer reports it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct ReportedUse {
    /// Position of the window in the plan's list of windows.
    place: usize,
    length: Length,
    used: Share,
    ends: SystemTime,
}

/// Use of a window after a call, for the log.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(super) struct Used {
    window: String,
    turn: u64,
    used_percent: f64,
    /// Part of the use, in percent, that another device took, together with what was used at the start.
    others_percent: f64,
}

impl Plan {
    pub fn begin(windows: Vec<Window>) -> Plan {
        let each =
            |window: Window| Counted { turn: 0, ends: None, used: window.used, others: window.used, window };
        Plan(windows.into_iter().map(each).collect())
    }

    /// Returns the time after which calls are accepted again, if a window is used up; `None` if none is.
    pub fn refuses(&mut self) -> Option<Duration> {
        let now = SystemTime::now();
        self.turn(now);
        let full = self.0.iter().filter(|c| c.used >= Share::WHOLE);
        full.map(|c| c.ends.unwrap_or(now).duration_since(now).unwrap_or_default()).max()
    }

    /// Counts a call of `tokens`. Returns what the head of its answer reports, and the use of each window
    /// after the call.
    pub fn count(&mut self, tokens: u64) -> (Vec<ReportedUse>, Vec<Used>) {
        let now = SystemTime::now();
        self.turn(now);
        let mut told = Vec::new();
        let mut used = Vec::new();
        for (place, c) in self.0.iter_mut().enumerate() {
            let ends = *c.ends.get_or_insert(now + c.window.turns);
            told.push(ReportedUse { place, length: c.window.length, used: c.used, ends });
            let own = i64::try_from(u128::from(tokens) * 1_000_000 / u128::from(c.window.tokens));
            c.others.0 += c.window.others.0;
            c.used.0 += own.unwrap_or(i64::MAX / 4) + c.window.others.0;
            used.push(Used {
                window: c.window.length.to_string(),
                turn: c.turn,
                used_percent: c.used.percent(),
                others_percent: c.others.percent(),
            });
        }
        (told, used)
    }

    fn turn(&mut self, now: SystemTime) {
        for c in self.0.iter_mut().filter(|c| c.ends.is_some_and(|ends| ends <= now)) {
            (c.turn, c.ends, c.used, c.others) = (c.turn + 1, None, Share(0), Share(0));
        }
    }
}

impl ReportedUse {
    /// Writes the headers of the dialect's provider. The ChatGPT backend tells a primary and a secondary window.
    pub fn write(&self, dialect: Dialect, headers: &mut HeaderMap) {
        let ends_s = self.ends.duration_since(UNIX_EPOCH).unwrap_or_default().as_millis().div_ceil(1000);
        let mut put = |name: String, value: String| {
            if let (Ok(name), Ok(value)) = (HeaderName::try_from(name), HeaderValue::try_from(value)) {
                headers.insert(name, value);
            }
        };
        match dialect {
            Dialect::Anthropic => {
                let name =
                    if self.length == Length::WEEK { "7d".to_owned() } else { self.length.to_string() };
                let of = |what: &str| format!("anthropic-ratelimit-unified-{name}-{what}");
                put("anthropic-ratelimit-unified-status".into(), "allowed".into());
                put(of("utilization"), (self.used.percent() / 100.0).to_string());
                put(of("reset"), ends_s.to_string());
            }
            Dialect::OpenAi | Dialect::Responses | Dialect::Embeddings => {
                let name = if self.place == 0 { "primary" } else { "secondary" };
                let of = |what: &str| format!("x-codex-{name}-{what}");
                put(of("used-percent"), self.used.percent().to_string());
                put(of("window-minutes"), self.length.0.to_string());
                put(of("reset-at"), ends_s.to_string());
            }
            Dialect::Gemini => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_window_is_read_as_it_is_written() {
        let hours = Duration::from_secs(5 * 3600);
        let window = Window {
            length: Length(300),
            tokens: 1000,
            used: Share(200_000),
            others: Share(5_000),
            turns: Duration::from_secs(4),
        };
        assert_eq!("5h:1000,used=20%,others=0.5%,turns=4s".parse(), Ok(window.clone()));
        let plain = Window { used: Share(0), others: Share(0), turns: hours, ..window };
        assert_eq!("5h:1000".parse(), Ok(plain));
        for text in ["", "5h", "5h:0", "5h:x", ":9", "5h:9,used=2", "5h:9,turns=0s", "5h:9,more=1%"] {
            assert!(text.parse::<Window>().is_err(), "{text}");
        }
    }

    #[test]
    fn an_answer_tells_what_was_used_before_it_and_a_used_up_window_refuses() {
        let mut plan = Plan::begin(vec!["5h:1000,others=10%".parse().unwrap()]);
        let mut told = HeaderMap::new();
        for (before, after) in [(0.0, 40.0), (40.0, 80.0), (80.0, 120.0)] {
            assert_eq!(plan.refuses(), None);
            let (tells, used) = plan.count(300);
            tells[0].write(Dialect::Anthropic, &mut told);
            let name = "anthropic-ratelimit-unified-5h-utilization";
            assert_eq!(told[name].to_str().unwrap().parse::<f64>().unwrap() * 100.0, before);
            assert_eq!(used[0].used_percent, after);
        }
        assert!(plan.refuses().unwrap() > Duration::from_secs(4 * 3600));
    }
}
