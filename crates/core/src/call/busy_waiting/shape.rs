//! Shapes of inputs and results: their text without times and ids, which differ although nothing has moved.
//!
//! Every other number counts: of a build that tells 41 % and then 42 %, the second is news.

/// Units of time: a number with one of them is a time.
const UNITS: [&str; 21] = [
    "ns", "us", "µs", "ms", "s", "sec", "secs", "second", "seconds", "m", "min", "mins", "minute", "minutes",
    "h", "hr", "hrs", "hour", "hours", "d", "days",
];

/// Parts of words that announce a time, such as a JSON member's name: a number behind such a word is a time.
const TIMES: [&str; 9] =
    ["time", "elapsed", "waited", "duration", "seconds", "timeout", "uptime", "_ms", "date"];

/// Words that announce an id: a word with a digit behind one of them is an id.
const IDS: [&str; 2] = ["id", "pid"];

/// Returns the text of a result with its times and ids replaced by `#`.
pub fn of_result(text: &str) -> String {
    masked(text, |before| TIMES.iter().any(|part| before.contains(part)) || IDS.contains(&before))
}

/// Returns the text of a call's input with its times replaced by `#`, so that calls which only wait for different times
/// are equal.
pub fn of_input(text: &str) -> String {
    masked(text, |before| TIMES.iter().any(|part| before.contains(part)) || before == "sleep")
}

/// Replaces times by `#`, and also each word with a digit whose preceding word satisfies `hides`.
fn masked(text: &str, hides: impl Fn(&str) -> bool) -> String {
    let is_word = |c: char| c.is_alphanumeric() || matches!(c, '_' | '.' | ':' | '+' | '-');
    let mut out = String::with_capacity(text.len());
    let mut before = String::new();
    let mut rest = text.trim();
    while !rest.is_empty() {
        let end = rest.find(is_word).unwrap_or(rest.len());
        let (gap, from) = rest.split_at(end);
        out.push_str(gap);
        let (word, behind) = from.split_at(from.find(|c| !is_word(c)).unwrap_or(from.len()));
        rest = behind;
        if word.is_empty() {
            continue;
        }
        let has_digit = word.bytes().any(|b| b.is_ascii_digit());
        let next = behind.trim_start_matches(' ').split(|c: char| !c.is_alphabetic()).next().unwrap_or("");
        // Claude Code tells with each result how many tokens it may still use.
        let is_left = behind.starts_with(" tokens left");
        let is_time = is_number(word) && (UNITS.contains(&next) || is_left);
        match has_digit && (is_time || is_moment(word) || is_duration(word) || hides(&before)) {
            true => out.push('#'),
            false => out.push_str(word),
        }
        if word.chars().any(char::is_alphabetic) {
            before = word.trim_end_matches([':', '.']).to_lowercase();
        }
    }
    out
}

fn is_number(word: &str) -> bool {
    word.bytes().all(|b| b.is_ascii_digit() || matches!(b, b'.' | b','))
}

/// Returns whether a word is a clock's time, a date, or both: `12:34:56.7`, `2026-11-20T08:00:00Z`.
fn is_moment(word: &str) -> bool {
    let parts =
        |by: char| word.split(by).filter(|part| part.starts_with(|c: char| c.is_ascii_digit())).count();
    let plain = word.bytes().all(|b| b.is_ascii_digit() || b"T:Z.+-".contains(&b));
    plain && (parts(':') >= 2 || parts('-') == 3)
}

/// Returns whether a word is a time with its units: `30s`, `1m20s`, `12.5ms`.
fn is_duration(word: &str) -> bool {
    let mut rest = word;
    while !rest.is_empty() {
        let unit = rest.trim_start_matches(|c: char| c.is_ascii_digit() || c == '.');
        let behind = unit.trim_start_matches(char::is_alphabetic);
        if unit.len() == rest.len() || !UNITS.contains(&&unit[..unit.len() - behind.len()]) {
            return false;
        }
        rest = behind;
    }
    true
}

#[cfg(test)]
mod tests {
    use super::*;

    fn same(before: &str, after: &str, wanted: bool) {
        assert_eq!(of_result(before) == of_result(after), wanted, "{before:?} {after:?}");
    }

    #[test]
    fn times_and_ids_are_nothing_new() {
        same("in progress, 30 s", "in progress, 60 s", true);
        same("still running after 1m20s", "still running after 2m40s", true);
        same("[12:30:01] waiting", "[12:30:31] waiting", true);
        same("at 2026-11-20T08:00:00Z queued", "at 2026-11-20T08:01:00Z queued", true);
        same(
            "Chunk ID: f800eb\nWall time: 30.0024 seconds\nProcess running with session ID 42\nOutput:\n",
            "Chunk ID: 1c\nWall time: 30.0011 seconds\nProcess running with session ID 42\nOutput:\n",
            true,
        );
        same(r#"{"status":"running","elapsed_ms":100}"#, r#"{"status":"running","elapsed_ms":200}"#, true);
        same(
            "x\n<total_tokens>149 tokens left</total_tokens>",
            "x\n<total_tokens>142 tokens left</total_tokens>",
            true,
        );
        same("", "\n", true);
    }

    #[test]
    fn every_other_number_and_word_is_new() {
        same("41 % done", "42 % done", false);
        same("3 failed, 97 passed in 3 s", "2 failed, 98 passed in 3 s", false);
        same("step 7 of 20", "step 8 of 20", false);
        same("epoch 3: loss 0.31", "epoch 4: loss 0.30", false);
        same("queued", "running", false);
        same("build-17", "build-18", false);
        same("1,024 bytes", "2,048 bytes", false);
        same("", "done", false);
    }

    #[test]
    fn how_long_a_call_waits_is_no_part_of_what_it_asks() {
        let same = |a: &str, b: &str| of_input(a) == of_input(b);
        assert!(same("sleep 30; gh run view 7", "sleep 60; gh run view 7"));
        assert!(same(
            r#"{"session_id":4,"yield_time_ms":30000}"#,
            r#"{"session_id":4,"yield_time_ms":60000}"#
        ));
        assert!(!same("gh run view 7", "gh run view 8"));
        assert!(!same(r#"{"session_id":4}"#, r#"{"session_id":5}"#));
    }
}
