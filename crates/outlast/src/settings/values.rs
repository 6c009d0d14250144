//! Values as they are typed, read into the domain's types.

use std::{ffi::OsStr, net::SocketAddr};

use clap::{
    Arg,
    builder::{PossibleValue, PossibleValuesParser, TypedValueParser},
};
use outlast_core::{
    engine::state::transaction::Conflicts,
    envelope::{Limits, PerUnit, Unit},
    reads::spend::Grouping,
    words::{BadText, NanoUsd, duration, size},
};

use super::store_address::Durability;
use crate::render::time::{self, BadMoment, When};

/// A limit: a value of its unit, or `none`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Limit {
    None,
    At(i64),
}

impl Limit {
    /// Returns the limit as an envelope stores it.
    pub fn at(self) -> Option<i64> {
        match self {
            Limit::None => None,
            Limit::At(value) => Some(value),
        }
    }
}

/// A program with its arguments.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Argv(pub Vec<String>);

/// Longest time that orphans may go on, in milliseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Orphans(pub i64);

/// Error of a flag's value that cannot be parsed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BadValue {
    #[error(transparent)]
    Text(#[from] BadText),
    #[error(transparent)]
    Moment(#[from] BadMoment),
    #[error(
        "not a program with its arguments: {text:?} {why} (wanted for example \"notify-send 'a run halted'\")"
    )]
    Argv { text: String, why: &'static str },
    #[error("a base URL must not hold a credential: keys are taken from the environment")]
    Credential,
}

/// Parser of an amount, in its unit's base.
pub type Read = fn(&str) -> Result<i64, BadValue>;

/// Parses an amount in dollars. Returns nano-USD.
pub fn usd(text: &str) -> Result<i64, BadValue> {
    Ok(NanoUsd::parse(text)?.0)
}

pub fn count(text: &str) -> Result<i64, BadValue> {
    let plain = !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit());
    let number = if plain { text.parse().ok() } else { None };
    Ok(number.ok_or_else(|| BadText::new("a whole number", text, "for example 20"))?)
}

/// Parses a duration. Returns milliseconds.
pub fn ms(text: &str) -> Result<i64, BadValue> {
    Ok(duration::parse_ms(text)?)
}

/// Returns the parser of an amount that is added to a limit, and that `read` parses. Errors: 0 adds nothing.
pub fn more(read: Read) -> impl Fn(&str) -> Result<i64, BadValue> + Clone + Send + Sync + 'static {
    move |text| match read(text)? {
        0 => Err(BadText::new("an amount to add", text, "for example 1: 0 adds nothing").into()),
        more => Ok(more),
    }
}

/// Parses a size. Returns bytes.
pub fn bytes(text: &str) -> Result<u64, BadValue> {
    Ok(size::parse_bytes(text)?)
}

pub fn when(text: &str) -> Result<When, BadValue> {
    Ok(time::parse_when(text)?)
}

/// Returns the parser of a limit that `read` parses, or of `none`.
pub fn limit(read: Read) -> impl Fn(&str) -> Result<Limit, BadValue> + Clone + Send + Sync + 'static {
    move |text| if text == "none" { Ok(Limit::None) } else { read(text).map(Limit::At) }
}

/// Parses an address and port on loopback. Errors: any other address.
pub fn loopback(text: &str) -> Result<SocketAddr, String> {
    let bad = |wanted: &str| format!("{text:?} is not an address ({wanted})");
    let address: SocketAddr =
        text.parse().map_err(|_| bad("wanted for example 127.0.0.1:50051, and `--` before the command"))?;
    if address.ip().is_loopback() { Ok(address) } else { Err(bad("wanted one on loopback")) }
}

pub fn tag(text: &str) -> Result<(String, String), BadValue> {
    match text.split_once('=') {
        Some((key, value)) if !key.is_empty() => Ok((key.to_owned(), value.to_owned())),
        _ => Err(BadText::new("KEY=VALUE", text, "for example team=search").into()),
    }
}

/// Parses the name of an environment variable.
pub fn variable(text: &str) -> Result<String, BadValue> {
    // A value beside the name would be stored with the run: `--env` takes names, so that it is seen.
    let name = !text.is_empty()
        && text.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_')
        && !text.as_bytes()[0].is_ascii_digit();
    let shown = text.split('=').next().unwrap_or_default();
    match name {
        true => Ok(text.to_owned()),
        false => Err(BadText::new("the name of a variable", shown, "for example AWS_PROFILE").into()),
    }
}

/// Moment at which the agent is killed once, for people who test their own recovery.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KillAt {
    /// Number of the call, counted from 1 over the run's new calls.
    pub call: u64,
    /// Whether the agent is killed in the middle of the call's answer, rather than before the call is sent.
    pub mid: bool,
}

pub fn kill_at(text: &str) -> Result<KillAt, BadValue> {
    let read = || {
        let rest = text.strip_prefix("call:")?;
        let (number, mid) = rest.strip_suffix(":mid").map_or((rest, false), |n| (n, true));
        let call = u64::try_from(count(number).ok()?).ok().filter(|n| *n > 0)?;
        Some(KillAt { call, mid })
    };
    let wanted = "call:N or call:N:mid, with N from 1";
    Ok(read().ok_or_else(|| BadText::new("a point to kill at", text, wanted))?)
}

/// Parses a provider's base URL. Removes a slash at its end.
pub fn base_url(text: &str) -> Result<String, BadValue> {
    let rest = text.strip_prefix("https://").or_else(|| text.strip_prefix("http://"));
    let authority = rest.and_then(|r| r.split('/').next()).unwrap_or_default();
    // First, so that no message repeats it.
    if authority.contains('@') {
        return Err(BadValue::Credential);
    }
    let plain = !text.contains(['?', '#', '\\']) && text.bytes().all(|b| b.is_ascii_graphic());
    if authority.is_empty() || authority.starts_with(':') || !plain {
        let wanted = "http://HOST… or https://HOST…, without a query";
        return Err(BadText::new("a base URL", text, wanted).into());
    }
    Ok(text.trim_end_matches('/').to_owned())
}

/// Parses a host name as in a `Host` header, without a port.
pub fn host_name(text: &str) -> Result<String, BadValue> {
    let label = |l: &str| !l.is_empty() && l.bytes().all(|b| b.is_ascii_alphanumeric() || b"-_".contains(&b));
    match text.split('.').all(label) {
        true => Ok(text.to_ascii_lowercase()),
        false => {
            Err(BadText::new("a host's name", text, "for example outlast.internal, without a port").into())
        }
    }
}

pub fn grouping(text: &str) -> Result<Grouping, BadValue> {
    Ok(Grouping::parse(text)?)
}

/// Parser of a flag whose value is one of a few words. `-` may be typed for `_`.
#[derive(Clone)]
struct Words<T>(Vec<(&'static str, T)>);

impl<T: Clone + Send + Sync + 'static> TypedValueParser for Words<T> {
    type Value = T;

    fn parse_ref(&self, cmd: &clap::Command, arg: Option<&Arg>, typed: &OsStr) -> Result<T, clap::Error> {
        let word = typed.to_string_lossy().replace('-', "_");
        if let Some((_, value)) = self.0.iter().find(|(known, _)| *known == word) {
            return Ok(value.clone());
        }
        // For its message, which lists the words.
        PossibleValuesParser::new(self.0.iter().map(|(known, _)| *known)).parse_ref(cmd, arg, typed)?;
        Err(clap::Error::new(clap::error::ErrorKind::InvalidValue).with_cmd(cmd))
    }

    fn possible_values(&self) -> Option<Box<dyn Iterator<Item = PossibleValue> + '_>> {
        Some(Box::new(self.0.iter().map(|(known, _)| PossibleValue::new(*known))))
    }
}

/// Returns the parser of a flag whose value is the name of one of `all`.
pub fn words<T: Copy + Send + Sync + 'static, const N: usize>(
    all: [T; N],
    name: fn(T) -> &'static str,
) -> impl TypedValueParser<Value = T> {
    Words(all.map(|one| (name(one), one)).to_vec())
}

pub fn durability() -> impl TypedValueParser<Value = Durability> {
    Words(vec![("full", Durability::Full), ("process", Durability::Process)])
}

pub fn orphans(text: &str) -> Result<Orphans, BadValue> {
    match text.strip_prefix("wait:") {
        Some(time) => Ok(Orphans(duration::parse_ms(time)?)),
        None if text == "kill" => Ok(Orphans(0)),
        None => {
            Err(BadText::new("a rule for orphans", text, "kill, or wait:TIME, for example wait:60s").into())
        }
    }
}

/// Checks the name of a host, or the path of a socket, that a confined run may reach.
pub fn allowed_net(text: &str) -> Result<String, outlast_server::intercept::allowed::BadHost> {
    if text.starts_with('/') {
        return Ok(text.to_owned());
    }
    text.parse::<outlast_server::intercept::allowed::Allowed>().map(|_| text.to_owned())
}

pub fn program(text: &str) -> Result<String, BadValue> {
    match text.is_empty() || text.contains(['/', '\n']) {
        true => Err(BadText::new("the name of a program", text, "for example tmux, without a path").into()),
        false => Ok(text.to_owned()),
    }
}

/// Parses a share of one processor, such as `150%`. Returns percent.
pub fn percent(text: &str) -> Result<u32, BadValue> {
    let number = text.strip_suffix('%').filter(|n| n.bytes().all(|b| b.is_ascii_digit()));
    let percent = number.and_then(|n| n.parse().ok()).filter(|n| *n > 0);
    Ok(percent.ok_or_else(|| BadText::new("a share of a processor", text, "for example 150%"))?)
}

pub fn conflicts() -> impl TypedValueParser<Value = Conflicts> {
    Words(vec![("last_writer", Conflicts::Expected), ("first_committer", Conflicts::FirstCommitter)])
}

pub fn unit() -> impl TypedValueParser<Value = Unit> {
    words(Unit::ALL, Unit::word)
}

/// Builds the limits of a named budget, which can limit dollars, tokens and calls.
pub fn shared_limits(usd: Option<i64>, tokens: Option<i64>, calls: Option<i64>) -> Limits {
    PerUnit([usd, tokens, calls, None, None, None, None])
}

/// Splits a program with its arguments into words, with a shell's quotes and backslashes. No shell runs: `$`, `*` and
/// `;` are ordinary characters.
pub fn argv(text: &str) -> Result<Argv, BadValue> {
    let bad = |why| BadValue::Argv { text: text.into(), why };
    let (mut words, mut word, mut quote) = (Vec::new(), None::<String>, None::<char>);
    let mut rest = text.chars();
    while let Some(c) = rest.next() {
        match (quote, c) {
            (Some(open), c) if c == open => quote = None,
            (None, '\'' | '"') => {
                quote = Some(c);
                word.get_or_insert_default();
            }
            (None | Some('"'), '\\') => {
                let next = rest.next().ok_or_else(|| bad("ends with a backslash"))?;
                word.get_or_insert_default().push(next);
            }
            (None, c) if c.is_whitespace() => words.extend(word.take()),
            (_, c) => word.get_or_insert_default().push(c),
        }
    }
    if quote.is_some() {
        return Err(bad("has a quote that is not closed"));
    }
    words.extend(word);
    match words.first() {
        Some(program) if !program.is_empty() => Ok(Argv(words)),
        _ => Err(bad("names no program")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_host_is_a_name_without_a_port() {
        for (text, wanted) in [("Outlast.Internal", Some("outlast.internal")), ("outlast", Some("outlast"))]
            .into_iter()
            .chain(["", "a:80", "http://a", "a..b", "a/b", "*.a"].map(|text| (text, None)))
        {
            assert_eq!(host_name(text).ok().as_deref(), wanted, "{text}");
        }
    }

    #[test]
    fn a_command_in_one_word_is_split_by_quotes_alone() {
        let check = |text: &str, want: Option<&[&str]>| {
            let had = argv(text).ok().map(|argv| argv.0);
            assert_eq!(had, want.map(|words| words.iter().map(|w| (*w).to_owned()).collect()), "{text}");
        };
        check("mail me", Some(&["mail", "me"]));
        check("  say 'it is \"over\"' \"a'b\" c\\ d '' ", Some(&["say", "it is \"over\"", "a'b", "c d", ""]));
        check("echo $HOME; rm -rf *", Some(&["echo", "$HOME;", "rm", "-rf", "*"]));
        for none in ["", "  ", "''", "say 'open", "say \"open", "say \\"] {
            check(none, None);
        }
    }

    #[test]
    fn values_are_read_as_typed() {
        assert_eq!(limit(usd)("0.25"), Ok(Limit::At(250_000_000)));
        assert_eq!(limit(usd)("none"), Ok(Limit::None));
        assert_eq!(limit(ms)("1h30m"), Ok(Limit::At(5_400_000)));
        assert_eq!(limit(count)("20"), Ok(Limit::At(20)));
        assert_eq!(tag("team=a=b"), Ok(("team".into(), "a=b".into())));
        assert_eq!(kill_at("call:3"), Ok(KillAt { call: 3, mid: false }));
        assert_eq!(kill_at("call:12:mid"), Ok(KillAt { call: 12, mid: true }));
        assert_eq!(base_url("https://x.example/v1/"), Ok("https://x.example/v1".into()));
        assert_eq!(base_url("http://127.0.0.1:7078"), Ok("http://127.0.0.1:7078".into()));
        assert_eq!(grouping("tag.team"), Ok(Grouping::Tag("team".into())));
    }

    #[test]
    fn what_a_flag_does_not_want_is_refused_with_an_example() {
        fn check<T: std::fmt::Debug>(read: impl Fn(&str) -> Result<T, BadValue>, texts: &[&str]) {
            for text in texts {
                let error = read(text).unwrap_err().to_string();
                assert!(error.contains("wanted"), "{text}: {error}");
            }
        }
        check(limit(usd), &["", "5 usd", "-1", "None", "1e3"]);
        check(limit(count), &["", "-1", "+1", "1.5", "99999999999999999999"]);
        check(limit(ms), &["", "90", "1.5h"]);
        check(tag, &["", "team", "=x"]);
        check(variable, &["", "A-B", "1A", "A B"]);
        check(kill_at, &["call:0", "call:", "step:1", "call:1:end", "call:+1"]);
        check(
            base_url,
            &["", "x.example", "ftp://x", "https://", "http://:80", "https://x/?a=b", "http://x y"],
        );
        check(grouping, &["", "tag.", "team", "Day"]);
    }

    #[test]
    fn a_credential_is_not_repeated() {
        let url = base_url("https://me:s3cret@x.example").unwrap_err().to_string();
        let variable = variable("TOKEN=s3cret").unwrap_err().to_string();
        assert!(!url.contains("s3cret") && !variable.contains("s3cret"), "{url} {variable}");
    }
}
