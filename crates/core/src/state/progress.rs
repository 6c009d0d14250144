//! Steps kept as state (`step:7` = `{"status": "done", …}`), and the point at which a loop over them resumes.

use crate::{named, words::Members};

named! {
    /// Progress of a step, as the `status` member of a value records it.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub enum Progress {
        Pending "pending",
        Done "done",
    }
}

/// Point at which a loop over the steps `prefix0`, `prefix1`, … resumes.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct ResumePoint {
    /// Largest N for which the value of the step `prefixN` has the `status` `done`; -1 if there is none.
    pub done: i64,
    /// Largest N for which the value of the step `prefixN` has the `status` `pending`; `None` if there is
    /// none.
    pub pending: Option<i64>,
    /// Key of the step `pending`, with the leading zeros that it was written with; `None` if there is no such
    /// step.
    pub pending_key: Option<String>,
}

impl ResumePoint {
    /// Resume point of a loop without steps.
    pub const NONE: ResumePoint = ResumePoint { done: -1, pending: None, pending_key: None };
}

/// Key of a step, split into the text before its number, and the number.
///
/// The number is all the digits the key ends with, leading zeros among them, at most `i64::MAX`. Other keys are no
/// steps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StepKey<'a> {
    pub stem: &'a str,
    pub n: i64,
}

impl<'a> StepKey<'a> {
    pub fn of(key: &'a str) -> Option<StepKey<'a>> {
        let stem = key.trim_end_matches(|c: char| c.is_ascii_digit());
        number(&key[stem.len()..]).map(|n| StepKey { stem, n })
    }

    /// Returns whether the steps `prefix0`, `prefix1`, … are exactly the keys whose stem is `prefix`. They
    /// are not for a prefix that ends in a digit: the stem of `a10` is `a`, not `a1`. The caller then reads
    /// the keys `a1…` one by one.
    pub fn is_stem(prefix: &str) -> bool {
        !prefix.ends_with(|c: char| c.is_ascii_digit())
    }
}

/// Parses a decimal number without a sign.
fn number(digits: &str) -> Option<i64> {
    let plain = !digits.is_empty() && digits.bytes().all(|b| b.is_ascii_digit());
    digits.parse().ok().filter(|_| plain)
}

/// Returns the resume point among `keys` that start with `prefix`.
pub fn furthest<'a>(prefix: &str, keys: impl Iterator<Item = (&'a str, Progress)>) -> ResumePoint {
    let mut point = ResumePoint::NONE;
    for (key, progress) in keys {
        let Some(n) = key.strip_prefix(prefix).and_then(number) else { continue };
        match progress {
            Progress::Done => point.done = point.done.max(n),
            Progress::Pending if point.pending < Some(n) => {
                (point.pending, point.pending_key) = (Some(n), Some(key.to_owned()));
            }
            Progress::Pending => {}
        }
    }
    point
}

impl Progress {
    /// Returns the `status` of a JSON object, if it is `done` or `pending`. `None` for a value with another status and
    /// for one that is no JSON object.
    pub fn of(value: &[u8]) -> Option<Progress> {
        let members: Members<'_> = serde_json::from_slice(value).ok()?;
        // If a member is repeated the last counts, as in Python.
        let (_, status) = members.0.iter().rfind(|(name, _)| name == "status")?;
        Progress::parse(&serde_json::from_str::<String>(status.get()).ok()?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_is_a_step_when_it_ends_in_a_plain_number() {
        let check = |key: &str, want: Option<(&str, i64)>| {
            assert_eq!(StepKey::of(key).map(|s| (s.stem, s.n)), want, "{key:?}");
        };
        check("step:0", Some(("step:", 0)));
        check("step:10", Some(("step:", 10)));
        check("7", Some(("", 7)));
        check("a1b2", Some(("a1b", 2)));
        check("é9", Some(("é", 9)));
        check("step:9223372036854775807", Some(("step:", i64::MAX)));
        check("step:9223372036854775808", None);
        check("step:007", Some(("step:", 7)));
        check("step:00", Some(("step:", 0)));
        check("step:", None);
        check("step:x", None);
        check("step:٣", None);
        check("", None);
        assert!(StepKey::is_stem("step:") && StepKey::is_stem("") && !StepKey::is_stem("v2"));
    }

    #[test]
    fn a_value_is_a_steps_record_by_its_status() {
        let check = |value: &str, want| assert_eq!(Progress::of(value.as_bytes()), want, "{value}");
        check(r#"{"status":"done"}"#, Some(Progress::Done));
        check(r#" {"a":[{"status":"pending"}],"status":"done"}"#, Some(Progress::Done));
        check(r#"{"status": "pending", "result": null}"#, Some(Progress::Pending));
        check(r#"{"st\u0061tus":"done"}"#, Some(Progress::Done));
        check(r#"{"status":"done","status":"pending"}"#, Some(Progress::Pending));
        check(r#"{"status":"done","status":1}"#, None);
        check(r#"{"status":"Done"}"#, None);
        check(r#"{"a":{"status":"done"}}"#, None);
        check(r#"[{"status":"done"}]"#, None);
        check(r#"{"status":"done""#, None);
        check("done", None);
        check("", None);
        assert_eq!(Progress::of(&[b'{', 0xff]), None);
    }

    #[test]
    fn behind_a_prefix_that_ends_in_a_digit_the_rest_counts() {
        let keys = [("v2", 1), ("v20", 1), ("v29", 1), ("v210", 0), ("v2x", 1), ("v201", 1), ("v3", 1)];
        let keys = keys.map(|(k, p)| (k, Progress::from_code(p).unwrap()));
        assert_eq!(
            furthest("v2", keys.into_iter()),
            ResumePoint { done: 9, pending: Some(10), pending_key: Some("v210".into()) }
        );
        assert_eq!(furthest("w", keys.into_iter()), ResumePoint::NONE);
    }
}
