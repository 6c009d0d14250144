//! Patterns of model names, by which a named upstream takes calls: `models_match = ["llama-*"]`.

use std::{fmt, str::FromStr};

/// Largest number of characters in a pattern. Model names are shorter.
const LONGEST: usize = 200;

/// Pattern of model names, in which `*` stands for any characters or none. Case counts.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Pattern(String);

/// Error of a text that is not a pattern.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "not a pattern of models: {text:?} (wanted for example \"llama-*\": a name of up to {LONGEST} characters, * for any)"
)]
pub struct BadPattern {
    pub text: String,
}

impl FromStr for Pattern {
    type Err = BadPattern;

    fn from_str(text: &str) -> Result<Pattern, BadPattern> {
        let plain = |c: char| !c.is_control() && !c.is_whitespace() && !"?[]{}\"\\".contains(c);
        if (1..=LONGEST).contains(&text.chars().count()) && text.chars().all(plain) {
            Ok(Pattern(text.to_owned()))
        } else {
            Err(BadPattern { text: text.chars().take(80).collect() })
        }
    }
}

impl fmt::Display for Pattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl Pattern {
    pub fn matches(&self, model: &str) -> bool {
        let Some((head, rest)) = self.0.split_once('*') else { return self.0 == model };
        let Some(mut left) = model.strip_prefix(head) else { return false };
        let mut parts: Vec<&str> = rest.split('*').collect();
        let tail = parts.pop().unwrap_or_default();
        // The leftmost match of a part leaves the most text for the parts after it.
        for part in parts {
            let Some(at) = left.find(part) else { return false };
            left = &left[at + part.len()..];
        }
        left.ends_with(tail)
    }

    /// Returns the number of characters other than `*`. Of several matching patterns, the one with the largest weight
    /// wins.
    pub fn weight(&self) -> usize {
        self.0.chars().filter(|c| *c != '*').count()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_star_stands_for_any_characters_and_nothing_else_does() {
        let check = |pattern: &str, yes: &[&str], no: &[&str]| {
            let pattern: Pattern = pattern.parse().unwrap();
            yes.iter().for_each(|m| assert!(pattern.matches(m), "{pattern} {m}"));
            no.iter().for_each(|m| assert!(!pattern.matches(m), "{pattern} {m}"));
        };
        check("llama-*", &["llama-", "llama-3.1-8b"], &["llama", "meta-llama-3", "Llama-3", ""]);
        check("gpt-4o", &["gpt-4o"], &["gpt-4o-mini", "xgpt-4o", "gpt-4"]);
        check("*/llama*-70b", &["meta/llama-3-70b", "/llama-70b"], &["llama-70b", "meta/llama-3-70b-x"]);
        check("a*a", &["aa", "aba"], &["a", "ab"]);
        check("*ab*ab", &["abab", "xabyab"], &["ab", "xab"]);
        check("a.b", &["a.b"], &["axb"]);
        check("*", &["", "anything"], &[]);
    }

    #[test]
    fn what_is_no_pattern_is_told_apart() {
        for bad in ["", "a b", "llama-?", "[ab]", "a\n", &"x".repeat(201)] {
            assert!(bad.parse::<Pattern>().is_err(), "{bad:?}");
        }
    }
}
