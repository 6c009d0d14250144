//! Masks: parts of a request that do not count when two requests are compared.
//!
//! A time of day or a temporary path in a prompt would make each restart's request a new one. A run keeps the
//! masks it was created under for all its life, as they were written: the text is also their version.

use std::{borrow::Cow, collections::BTreeMap};

use regex::{Regex, RegexBuilder};
use serde::{Deserialize, Serialize};

/// Greatest length of an expression in bytes, and of its compiled form in memory.
const LONGEST: usize = 1_000;
const LARGEST: usize = 1 << 20;

/// Masks as the user writes them and the run keeps them.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Masks {
    /// JSON pointers (RFC 6901, from the top of the body) to the parts left out.
    pub leave_out: Vec<String>,
    /// Regular expressions by name. In each string of the body, whatever an expression matches is replaced by
    /// its name.
    pub masks: BTreeMap<String, String>,
}

/// Error for an invalid mask. `at` is its key: `leave_out`, or `masks.NAME`.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{why}")]
pub struct BadMask {
    pub at: String,
    pub why: String,
}

/// Compiled masks of a run: the parts of a request, such as a date, that are left out when it is compared with recorded ones.
#[derive(Clone, Debug, Default)]
pub struct Rules {
    leave_out: Vec<String>,
    masks: Vec<(String, Regex)>,
}

impl Masks {
    pub fn is_empty(&self) -> bool {
        *self == Masks::default()
    }

    /// Checks and compiles all masks.
    pub fn compile(&self) -> Result<Rules, BadMask> {
        if let Some(bad) = self.leave_out.iter().find(|p| !is_pointer(p)) {
            let why = format!("not a JSON pointer: {bad:?} (wanted for example \"/messages/0/content\")");
            return Err(BadMask { at: "leave_out".into(), why });
        }
        let masks = self.masks.iter().map(|(name, text)| {
            let bad = |why: String| BadMask { at: format!("masks.{name}"), why };
            let plain = |b: u8| b.is_ascii_alphanumeric() || b"-_".contains(&b);
            if !(1..=64).contains(&name.len()) || !name.bytes().all(plain) {
                return Err(bad("its name is none (wanted up to 64 letters, digits, - and _)".into()));
            }
            if text.len() > LONGEST {
                return Err(bad(format!("it has {} bytes (wanted up to {LONGEST})", text.len())));
            }
            let regex = RegexBuilder::new(text).size_limit(LARGEST).build().map_err(|e| bad(reason(&e)))?;
            if regex.is_match("") {
                return Err(bad(format!("it matches the empty text: {text:?}")));
            }
            Ok((format!("<{name}>"), regex))
        });
        Ok(Rules { leave_out: self.leave_out.clone(), masks: masks.collect::<Result<_, _>>()? })
    }
}

/// Returns the last line of the library's message; the other lines draw the place in the expression.
fn reason(e: &regex::Error) -> String {
    let text = e.to_string();
    let last = text.lines().last().unwrap_or_default().trim();
    format!("not a regular expression: {}", last.trim_start_matches("error: "))
}

fn is_pointer(text: &str) -> bool {
    let escapes = text.split('~').skip(1).all(|rest| rest.starts_with(['0', '1']));
    text.starts_with('/') && escapes
}

impl Rules {
    /// Returns the pointers to the parts left out.
    pub fn leave_out(&self) -> impl Iterator<Item = &str> {
        self.leave_out.iter().map(String::as_str)
    }

    /// Returns whether any mask changes strings.
    pub fn masks_strings(&self) -> bool {
        !self.masks.is_empty()
    }

    /// Returns a string as it is compared: each mask applied, in the order of their names.
    pub fn mask<'t>(&self, text: &'t str) -> Cow<'t, str> {
        let mut masked = Cow::Borrowed(text);
        for (name, regex) in &self.masks {
            if let Cow::Owned(changed) = regex.replace_all(&masked, regex::NoExpand(name)) {
                masked = Cow::Owned(changed);
            }
        }
        masked
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn masks(all: &[(&str, &str)]) -> Masks {
        let masks = all.iter().map(|(n, t)| ((*n).to_owned(), (*t).to_owned())).collect();
        Masks { masks, ..Masks::default() }
    }

    #[test]
    fn what_a_mask_matches_counts_as_its_name() {
        let rules = masks(&[("day", r"\d{4}-\d{2}-\d{2}"), ("tmp", "/tmp/[a-z0-9]+")]).compile().unwrap();
        for (text, wanted) in [
            ("today is 2026-11-20", "today is <day>"),
            ("2026-11-20 and 2026-11-21 in /tmp/a1b", "<day> and <day> in <tmp>"),
            ("nothing", "nothing"),
            ("", ""),
        ] {
            assert_eq!(rules.mask(text), wanted);
        }
        assert!(matches!(rules.mask("nothing"), Cow::Borrowed(_)));
        // A name is a name, and no reference to a group.
        let rules = masks(&[("a", "(x)")]).compile().unwrap();
        assert_eq!(rules.mask("$1x"), "$1<a>");
    }

    #[test]
    fn a_wrong_mask_is_named() {
        let leave_out = |p: &str| Masks { leave_out: vec!["/ok".into(), p.into()], ..Masks::default() };
        let long = "x".repeat(1_001);
        for (bad, at, why) in [
            (leave_out("messages"), "leave_out", "not a JSON pointer: \"messages\""),
            (leave_out(""), "leave_out", "not a JSON pointer"),
            (leave_out("/a~2"), "leave_out", "not a JSON pointer"),
            (masks(&[("good", "a"), ("open", "(a")]), "masks.open", "unclosed group"),
            (masks(&[("all", ".*")]), "masks.all", "matches the empty text"),
            (masks(&[("two words", "a")]), "masks.two words", "its name is none"),
            (masks(&[("big", r"(\w{1000}){1000}")]), "masks.big", "not a regular expression"),
            (masks(&[("long", &long)]), "masks.long", "1001 bytes"),
        ] {
            let error = bad.compile().unwrap_err();
            assert_eq!(error.at, at);
            assert!(error.why.contains(why), "{}", error.why);
        }
        let good = Masks { leave_out: vec!["/a~1b~0/0".into(), "/".into()], ..Masks::default() };
        assert!(good.compile().is_ok() && !good.is_empty());
    }
}
