//! Times as providers and agents write them: numbers, spans, dates, and words such as "try again at 5pm (UTC)".
//!
//! Whatever can be read is. What a number means follows from its size: no limit lasts thirty years, so from a thousand
//! million on it is seconds since 1970, and from a million million on milliseconds.
//!
//! Times in an upstream's headers: how long to wait, and until when.

use http::HeaderMap;
use jiff::{
    Span, SpanRelativeTo, Timestamp, Unit,
    civil::{Date, Time, Weekday},
    tz::{Offset, TimeZone},
};
use outlast_core::words::Micros;

/// Smallest number that is a moment, in seconds since 1970 (2001).
const FIRST_MOMENT_S: f64 = 1e9;

/// Smallest number that is a moment in milliseconds since 1970 (2001).
const FIRST_MOMENT_MS: f64 = 1e12;

/// Time at which a text was written, and the zones that it may name.
#[derive(Clone, Copy)]
pub struct Reader<'z> {
    pub now: Micros,
    /// Looks up a zone that is neither an offset nor a short name known here, such as `Asia/Tokyo`. The empty name stands
    /// for the zone of a time that names none: UTC, unless it is found.
    pub zones: &'z dyn Fn(&str) -> Option<TimeZone>,
}

/// Zones of a machine that has none.
pub fn no_zones(_: &str) -> Option<TimeZone> {
    None
}

impl Reader<'_> {
    /// Reads a text that is nothing but a time, or a span from now. A plain number is seconds, or a moment.
    pub fn read(&self, text: &str) -> Option<Micros> {
        let text = text.trim().trim_end_matches('.');
        if let Some(at) = self.number(text, 1000.0) {
            return Some(at);
        }
        if let Some(ms) = span_ms(text) {
            return Some(self.now.plus_ms(ms));
        }
        if let Ok(at) = text.parse::<Timestamp>() {
            return micros(at);
        }
        let (at, used) = self.moment(&words(text))?;
        (used == words(text).len()).then_some(at)
    }

    /// Reads a plain number: a span in units of `unit_ms` milliseconds, or a moment.
    pub fn number(&self, text: &str, unit_ms: f64) -> Option<Micros> {
        let plain = text.bytes().all(|b| b.is_ascii_digit() || b == b'.');
        let number: f64 = text.parse().ok().filter(|_| plain)?;
        if number >= FIRST_MOMENT_MS {
            Some(Micros(whole(number)?.checked_mul(1000)?))
        } else if number >= FIRST_MOMENT_S {
            Some(Micros(whole(number * 1000.0)?.checked_mul(1000)?))
        } else {
            Some(self.now.plus_ms(whole(number * unit_ms)?))
        }
    }

    /// Finds the first time in a sentence that says when something is possible again: behind "try again", "resets",
    /// "available", "wait" and the like.
    pub fn find(&self, text: &str) -> Option<Micros> {
        let words = words(text);
        let marks = words.iter().enumerate().filter(|(_, word)| is_mark(word)).map(|(at, _)| at + 1);
        marks.filter_map(|from| self.soon_after(&words[from..])).next()
    }

    /// Reads the time that the first few words lead to.
    fn soon_after(&self, words: &[&str]) -> Option<Micros> {
        for skipped in 0..words.len().min(FILLERS) {
            let rest = &words[skipped..];
            if let Some(ms) = longest_span(rest) {
                return Some(self.now.plus_ms(ms));
            }
            let leads = skipped.checked_sub(1).is_some_and(|at| LEADS.contains(&trimmed(words[at])));
            if let Some(at) = self.number(trimmed(rest[0]), 1000.0).filter(|_| leads) {
                return Some(at);
            }
            if let Some((at, _)) = self.moment(rest) {
                return Some(at);
            }
            if is_mark(rest[0]) {
                return None;
            }
        }
        None
    }

    /// Reads the moment that the words begin with: a day, a time of the day, or both, and a zone. Returns the number of
    /// its words, too. Without a day, or a year, it is the next such moment.
    fn moment(&self, words: &[&str]) -> Option<(Micros, usize)> {
        let mut found = Found::default();
        let mut used = 0;
        for (at, word) in words.iter().enumerate() {
            if let Ok(moment) = trimmed(word).parse::<Timestamp>() {
                return micros(moment).map(|moment| (moment, at + 1));
            }
            let next = words.get(at + 1).copied().unwrap_or_default();
            match found.take(word, next, self) {
                Taken::Part => used = at + 1,
                Taken::Joint if at > 0 => {}
                Taken::Joint | Taken::Nothing => break,
            }
        }
        let moment = found.at(self)?;
        Some((moment, used))
    }
}

/// Words behind which a plain number is a time.
const LEADS: [&str; 4] = ["in", "after", "at", "until"];

/// Most words between the mark of a time and the time.
const FILLERS: usize = 7;

/// Returns whether a word says that a time follows at which something is possible again.
fn is_mark(word: &str) -> bool {
    const MARKS: [&str; 18] = [
        "again",
        "retry",
        "retrying",
        "reset",
        "resets",
        "resetting",
        "wait",
        "available",
        "renews",
        "renewed",
        "refreshes",
        "refreshed",
        "replenishes",
        "until",
        "expires",
        "restored",
        "lifted",
        "resume",
    ];
    MARKS.iter().any(|mark| trimmed(word).eq_ignore_ascii_case(mark))
}

/// Splits a text into words. Brackets and commas separate them, too.
fn words(text: &str) -> Vec<&str> {
    let is_between =
        |c: char| c.is_whitespace() || matches!(c, ',' | '(' | ')' | '[' | ']' | '"' | '\'' | '|');
    text.split(is_between).filter(|word| !word.is_empty()).collect()
}

/// Returns a word without the punctuation around it.
fn trimmed(word: &str) -> &str {
    word.trim_end_matches(['.', ';', ':', '!', '?']).trim_start_matches([':', '~', '≈', '@'])
}

/// Returns the longest span that the words begin with, in milliseconds: `2 hours and 5 minutes`.
fn longest_span(words: &[&str]) -> Option<i64> {
    let most = words.len().min(12);
    if !trimmed(words.first()?).starts_with(|c: char| c.is_ascii_digit() || c == 'P') {
        return None;
    }
    (1..=most).rev().find_map(|n| {
        let joined: Vec<&str> =
            words[..n].iter().map(|w| trimmed(w)).filter(|w| !w.eq_ignore_ascii_case("and")).collect();
        span_ms(&joined.join(" "))
    })
}

/// Parses a span such as `6m0s`, `1h2m3.5s`, `120ms`, `2 hours 5 minutes` or `PT1H` into milliseconds, rounded up;
/// `None` for any other text. A day has 24 hours.
pub fn span_ms(text: &str) -> Option<i64> {
    let span: Span = text.parse().ok().filter(|_| !text.contains(':'))?;
    whole(span.total((Unit::Millisecond, SpanRelativeTo::days_are_24_hours())).ok()?)
}

/// Rounds up to whole milliseconds: a retry that comes too early is refused again.
fn whole(ms: f64) -> Option<i64> {
    (ms.is_finite() && (0.0..1e15).contains(&ms)).then(|| ms.ceil() as i64)
}

/// Drops fractions of a second, and times before 1970, which no limit can name.
pub fn micros(at: Timestamp) -> Option<Micros> {
    (at.as_second() >= 0).then(|| Micros(at.as_second() * 1_000_000))
}

/// Parts of a moment that were found in a text.
#[derive(Default)]
struct Found {
    date: Option<Date>,
    month: Option<i8>,
    day: Option<i8>,
    year: Option<i16>,
    weekday: Option<Weekday>,
    days_ahead: i64,
    time: Option<Time>,
    zone: Option<TimeZone>,
}

/// Meaning of a word in a moment.
enum Taken {
    Part,
    /// A word between two parts, such as "at".
    Joint,
    Nothing,
}

impl Found {
    fn take(&mut self, word: &str, next: &str, reader: &Reader<'_>) -> Taken {
        let word = trimmed(word);
        let lower = word.to_ascii_lowercase();
        match lower.as_str() {
            "at" | "on" | "of" | "the" | "today" => return Taken::Joint,
            "am" | "pm" | "a.m" | "p.m" | "o'clock" if self.time.is_some() => return Taken::Part,
            "tomorrow" => self.days_ahead = 1,
            "midnight" if self.time.is_none() => self.time = Some(Time::midnight()),
            "noon" if self.time.is_none() => self.time = Some(Time::constant(12, 0, 0, 0)),
            _ if self.date.is_none() && self.takes_day(word, next) => {}
            _ if self.month.is_some()
                && self.year.is_none()
                && lower.len() == 4
                && number::<i16>(&lower).is_some() =>
            {
                self.year = number(&lower);
            }
            _ if self.time.is_none() && clock(&lower, next).is_some() => self.time = clock(&lower, next),
            _ if self.zone.is_none() && (self.time.is_some() || self.has_day()) => match zone(word, reader) {
                Some(zone) => self.zone = Some(zone),
                None => return Taken::Nothing,
            },
            _ => return Taken::Nothing,
        }
        Taken::Part
    }

    fn has_day(&self) -> bool {
        self.date.is_some() || self.day.is_some()
    }

    /// Takes a date, the name of a weekday or a month, or a day of the month beside one.
    fn takes_day(&mut self, word: &str, next: &str) -> bool {
        let (day, time) = word.split_once('T').map_or((word, None), |(day, time)| (day, Some(time)));
        if let Ok(date) = day.parse::<Date>() {
            self.date = Some(date);
            self.time = time.and_then(|time| time.parse().ok()).or(self.time);
            return true;
        }
        if let (None, Some(month)) = (self.month, position(&MONTHS, word)) {
            self.month = Some(month + 1);
            return true;
        }
        if let (None, Some(weekday)) = (self.weekday, position(&WEEKDAYS, word)) {
            self.weekday = Weekday::from_monday_zero_offset(weekday).ok();
            return true;
        }
        let figures = ["st", "nd", "rd", "th"].iter().find_map(|end| word.strip_suffix(end)).unwrap_or(word);
        let day = number(figures).filter(|day| (1..=31).contains(day));
        let is_beside = self.month.is_some() || self.weekday.is_some() || position(&MONTHS, next).is_some();
        if self.day.is_some() || day.is_none() || !is_beside || half_day(next).is_some() {
            return false;
        }
        self.day = day;
        true
    }

    /// Returns the moment; `None` if there is neither a day nor a time.
    fn at(&self, reader: &Reader<'_>) -> Option<Micros> {
        let has_day = self.has_day() || self.weekday.is_some() || self.days_ahead > 0;
        if !has_day && self.time.is_none() {
            return None;
        }
        let zone = self.zone.clone().or_else(|| (reader.zones)("")).unwrap_or(TimeZone::UTC);
        let now = Timestamp::from_microsecond(reader.now.0).ok()?;
        let here = now.to_zoned(zone.clone());
        let time = self.time.unwrap_or_default();
        let on = |date: Date| date.to_datetime(time).to_zoned(zone.clone()).ok().map(|at| at.timestamp());
        let is_ahead = |at: &Timestamp| *at >= now;
        let today = here.date();
        let at = match (self.date, self.month, self.day) {
            (Some(date), ..) => on(date),
            (None, Some(month), Some(day)) => match self.year {
                Some(year) => on(Date::new(year, month, day).ok()?),
                // The year that brings the moment closest behind now; a moment of this day may have passed.
                None => [today.year(), today.year().checked_add(1)?]
                    .into_iter()
                    .filter_map(|year| on(Date::new(year, month, day).ok()?))
                    .find(|at| is_ahead(at) || now.duration_since(*at).as_hours() < 24),
            },
            _ => (self.days_ahead..self.days_ahead + 9)
                .filter_map(|ahead| today.checked_add(Span::new().days(ahead)).ok())
                .filter(|date| self.weekday.is_none_or(|weekday| date.weekday() == weekday))
                .filter_map(on)
                .find(is_ahead),
        };
        micros(at?)
    }
}

const MONTHS: [&str; 12] =
    ["jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec"];

const WEEKDAYS: [&str; 7] = ["mon", "tue", "wed", "thu", "fri", "sat", "sun"];

/// Returns the position of the name with which a word of letters begins.
fn position(names: &[&str], word: &str) -> Option<i8> {
    let is_name = word.bytes().all(|b| b.is_ascii_alphabetic());
    let start = word.get(..3).filter(|_| is_name)?;
    names.iter().position(|name| name.eq_ignore_ascii_case(start)).map(|at| at as i8)
}

fn number<N: std::str::FromStr>(text: &str) -> Option<N> {
    text.parse().ok().filter(|_| text.bytes().all(|b| b.is_ascii_digit()))
}

/// Reads a time of the day in lower case: `17:00`, `17:00:30`, `5pm`, `5:30pm`; or `5` and `5:30` before `pm`.
fn clock(word: &str, next: &str) -> Option<Time> {
    let digits = word.find(|c: char| !c.is_ascii_digit() && c != ':').unwrap_or(word.len());
    let (figures, rest) = word.split_at(digits);
    let half = if rest.is_empty() { half_day(next) } else { Some(half_day(rest)?) };
    let mut parts = figures.split(':').map(number::<i8>);
    let (hour, minute, second) = (parts.next()??, parts.next(), parts.next());
    if parts.next().is_some() || (minute.is_none() && half.is_none()) {
        return None;
    }
    let part = |part: Option<Option<i8>>| part.map_or(Some(0), |part| part);
    let hour = match half {
        Some(half) if (1..=12).contains(&hour) => hour % 12 + half,
        Some(_) => return None,
        None => hour,
    };
    Time::new(hour, part(minute)?, part(second)?, 0).ok()
}

/// Returns the hours to add for `am` and `pm`.
fn half_day(word: &str) -> Option<i8> {
    match trimmed(word).to_ascii_lowercase().as_str() {
        "am" | "a.m" => Some(0),
        "pm" | "p.m" => Some(12),
        _ => None,
    }
}

/// Rules of Pacific time, in which Google and Anthropic count their days.
const PACIFIC: &str = "PST8PDT,M3.2.0,M11.1.0";

/// Reads a zone's name or offset.
fn zone(word: &str, reader: &Reader<'_>) -> Option<TimeZone> {
    match word.to_ascii_uppercase().as_str() {
        "UTC" | "GMT" | "Z" => Some(TimeZone::UTC),
        "PT" | "PST" | "PDT" | "PACIFIC" | "AMERICA/LOS_ANGELES" => TimeZone::posix(PACIFIC).ok(),
        "ET" | "EST" | "EDT" | "AMERICA/NEW_YORK" => TimeZone::posix("EST5EDT,M3.2.0,M11.1.0").ok(),
        "CT" | "CST" | "CDT" => TimeZone::posix("CST6CDT,M3.2.0,M11.1.0").ok(),
        "CET" | "CEST" => TimeZone::posix("CET-1CEST,M3.5.0,M10.5.0/3").ok(),
        "JST" => TimeZone::posix("JST-9").ok(),
        upper => {
            let offset = upper.trim_start_matches("UTC").trim_start_matches("GMT");
            offset_zone(offset).or_else(|| if word.contains('/') { (reader.zones)(word) } else { None })
        }
    }
}

/// Reads an offset: `+9`, `-05`, `+0530` or `+05:30`.
fn offset_zone(text: &str) -> Option<TimeZone> {
    let sign = match text.bytes().next()? {
        b'+' => 1,
        b'-' => -1,
        _ => return None,
    };
    let digits = text[1..].replace(':', "");
    let (hours, minutes) = if digits.len() == 4 { digits.split_at(2) } else { (digits.as_str(), "0") };
    let (hours, minutes): (i32, i32) = (number(hours)?, number(minutes)?);
    Some(TimeZone::fixed(Offset::from_seconds(sign * (hours * 3600 + minutes * 60)).ok()?))
}

/// Returns the next midnight in `zone`, a short name such as UTC or PST.
pub fn next_midnight(now: Micros, name: &str) -> Option<Micros> {
    let zone = zone(name, &Reader { now, zones: &no_zones })?;
    let here = Timestamp::from_microsecond(now.0).ok()?.to_zoned(zone);
    micros(here.tomorrow().ok()?.start_of_day().ok()?.timestamp())
}

/// Headers of an upstream's answer, and the time at which they arrived: the source of its rate limits and
/// waits.
#[derive(Clone, Copy)]
pub struct Says<'h> {
    pub headers: &'h HeaderMap,
    /// Time at which the headers arrived, from which relative times count.
    pub now: Micros,
}

impl Says<'_> {
    pub fn text(&self, name: &str) -> Option<&str> {
        self.headers.get(name)?.to_str().ok().map(str::trim)
    }

    /// Returns the time in the header `name`: a moment, or a span from now. A plain number is seconds. `None` without a
    /// readable one.
    pub fn time(&self, name: &str) -> Option<Micros> {
        self.reader().read(self.text(name)?)
    }

    /// Returns the time until which the upstream asks to wait: `retry-after` and its relatives; `None` without a readable
    /// one.
    pub fn retry_after(&self) -> Option<Micros> {
        let ms = |name: &&str| self.reader().number(self.text(name)?, 1.0);
        let in_ms = ["retry-after-ms", "x-ms-retry-after-ms"].iter().find_map(ms);
        in_ms.or_else(|| ["retry-after", "x-retry-after"].iter().find_map(|name| self.time(name)))
    }

    pub fn reader(&self) -> Reader<'static> {
        Reader { now: self.now, zones: &no_zones }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// 2026-11-20 08:00:00 UTC, a Friday.
    const NOW: Micros = Micros(1_795_161_600_000_000);

    /// Zones of a machine that knows one.
    fn zones(name: &str) -> Option<TimeZone> {
        (name == "Asia/Tokyo").then(|| TimeZone::posix("JST-9").unwrap())
    }

    const READER: Reader<'static> = Reader { now: NOW, zones: &zones };

    #[track_caller]
    fn check(had: Option<Micros>, wanted_s: Option<i64>, text: &str) {
        assert_eq!(had, wanted_s.map(|s| NOW.plus_ms(s * 1000)), "{text:?}");
    }

    #[test]
    fn a_time_is_read_however_it_is_written() {
        for (text, seconds) in [
            // Spans.
            ("3600", 3600),
            ("33011.0", 33_011),
            ("6m0s", 360),
            ("1h2m3s", 3723),
            ("8h38m24s", 31_104),
            ("1d", 86_400),
            ("3600s", 3600),
            ("7200000ms", 7200),
            ("PT1H30M", 5400),
            ("2 hours 5 minutes", 7500),
            ("0", 0),
            // Moments.
            ("1795165200", 3600),
            ("1795165200000", 3600),
            ("1795165200.0", 3600),
            ("2026-11-20T09:00:00Z", 3600),
            ("2026-11-20T09:00:00.5Z", 3600),
            ("2026-11-20T18:00:00+09:00", 3600),
            ("2026-11-20T09:00:00", 3600),
            ("2026-11-20 09:00:00", 3600),
            ("2026-11-20 09:00 UTC", 3600),
            ("Fri, 20 Nov 2026 09:00:00 GMT", 3600),
            ("Fri Nov 20 09:00:00 2026", 3600),
            ("2026-11-21", 57_600),
            // As people say them: the next such moment.
            ("9am", 3600),
            ("9 AM (UTC)", 3600),
            ("9:30 a.m.", 5400),
            ("09:00", 3600),
            ("7am", 82_800),
            ("12pm", 14_400),
            ("12am", 57_600),
            ("midnight UTC", 57_600),
            ("noon", 14_400),
            ("6pm (Asia/Tokyo)", 3600),
            ("18:00 (Asia/Tokyo)", 3600),
            ("6pm JST", 3600),
            ("10am (GMT+1)", 3600),
            ("14:30 +05:30", 3600),
            ("1am PST", 3600),
            ("4am EST", 3600),
            ("10:00 CET", 3600),
            ("Nov 20, 9:00 AM", 3600),
            ("Nov 20th at 9am", 3600),
            ("November 21, 2026 at 00:00 UTC", 57_600),
            ("20 Nov 2026 09:00", 3600),
            ("Sat 8:00", 86_400),
            ("Saturday 8 am", 86_400),
            ("tomorrow at 8:00", 86_400),
            ("Jan 1, 12am", 3_600_000),
            ("Jan 1", 3_600_000),
        ] {
            check(READER.read(text), Some(seconds), text);
        }
        for text in [
            "",
            "x",
            "soon",
            "-5",
            "-1s",
            "1y",
            "s",
            "1h2",
            "5:99",
            "13pm",
            "Feb 30",
            "2026-13-20T08:00:00Z",
            "(Asia/Kyoto)",
            "1e9",
            "inf",
            "9am in a place",
        ] {
            check(READER.read(text), None, text);
        }
        // A moment that has passed is read too: who asks tells whether it counts.
        check(READER.read("1795161599"), Some(-1), "passed");
        check(READER.read("Nov 20, 7:00"), Some(-3600), "passed today");
    }

    #[test]
    fn a_sentence_tells_its_time_behind_the_word_that_announces_it() {
        for (text, seconds) in [
            ("Rate limit reached. Please try again in 2h5m.", Some(7500)),
            ("Please try again in 7m12s. Visit https://example.com/rates to learn more.", Some(432)),
            ("Please retry in 3h5m7s.", Some(11_107)),
            ("try again at 9am (UTC)", Some(3600)),
            ("Your limit will reset at 6pm (Asia/Tokyo).", Some(3600)),
            ("You've hit your usage limit. Try again at Nov 21st, 2026 9:00 AM.", Some(90_000)),
            ("5-hour limit reached ∙ resets 9am", Some(3600)),
            ("limit resets in 2 hours and 5 minutes, or upgrade", Some(7500)),
            ("Quota exceeded. Please wait 86400 seconds before retrying.", Some(86_400)),
            ("Retry after 3600.", Some(3600)),
            ("Your quota resets on 2026-11-20T09:00:00Z", Some(3600)),
            ("limit resets at: 1795165200", Some(3600)),
            ("available again in about 3 hours", Some(10_800)),
            // A number that says how much, not when.
            ("You made 500 requests in 24 hours", None),
            ("Limit 10000 per 60 s, used 10000", None),
            ("Please try again later.", None),
            ("retry with fewer than 5 tools", None),
            ("", None),
        ] {
            check(READER.find(text), seconds, text);
        }
    }
}
