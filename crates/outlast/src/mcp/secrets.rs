//! Secrets of an MCP server: values that do not reach the journal, though tools are asked with them and answer with them.
//!
//! A value is taken out of what is recorded, and its place is kept. Whoever gives the recorded answer again has the value
//! from its own environment and puts it back: the client gets the bytes that came.

use std::{collections::BTreeMap, ffi::OsString};

use serde_json::{Value, json};

/// Member of a recorded answer that tells where values were taken out.
const PLACES: &str = "outlast/masked";

/// Shortest value that is taken for a secret, in bytes. A shorter one is in many texts by chance.
const SHORTEST: usize = 8;

/// Words in the names of variables whose values are secrets.
const WORDS: [&str; 9] =
    ["TOKEN", "SECRET", "PASSWORD", "PASSWD", "PASSPHRASE", "CREDENTIAL", "AUTHORIZATION", "LOGIN", "APIKEY"];

/// Ends of such names.
const ENDS: [&str; 4] = ["_KEY", "_PAT", "_AUTH", "_DSN"];

/// Values that are not recorded, by the names that stand in their place.
#[derive(Clone, Default)]
pub struct Secrets(BTreeMap<String, String>);

impl std::fmt::Debug for Secrets {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_set().entries(self.0.keys()).finish()
    }
}

/// Place in a text at which a value was taken out: bytes before it, name of the value, and number of the form in which it
/// was written.
type Taken = (usize, String, usize);

impl Secrets {
    /// Collects the secrets of a server's environment: variables that are `named`, and those whose names say so.
    pub fn of(variables: impl Iterator<Item = (OsString, OsString)>, named: &[String]) -> Secrets {
        let mut secrets = Secrets::default();
        for (name, value) in variables {
            let (Some(name), Some(value)) = (name.to_str(), value.to_str()) else { continue };
            if named.iter().any(|n| n == name) || says_so(name) {
                secrets.add(name, value);
            }
        }
        secrets
    }

    /// Adds the values of headers. Of a value such as `Bearer x`, `x` is the secret.
    pub fn with_headers(mut self, headers: &[(String, String)]) -> Secrets {
        for (name, value) in headers {
            let secret = value.split_once(' ').map_or(value.as_str(), |(_, secret)| secret);
            self.add(name, secret.trim());
        }
        self
    }

    fn add(&mut self, name: &str, value: &str) {
        if value.len() >= SHORTEST {
            let plain = |c: char| if c.is_ascii_alphanumeric() || c == '-' { c } else { '_' };
            self.0.insert(name.chars().map(plain).collect(), value.to_owned());
        }
    }

    /// Takes the secrets out of an answer, which is the members of a JSON object. See [`Secrets::restored`].
    pub fn masked(&self, body: &str) -> String {
        let (text, taken) = self.taken_out(body);
        match taken.is_empty() {
            true => text,
            false => format!("{}:{},{text}", json!(PLACES), json!(taken)),
        }
    }

    /// Puts the secrets back into an answer that [`Secrets::masked`] returned, as they are now. A name whose value is not
    /// known any more stays in its place. `None` if the answer is damaged.
    pub fn restored(&self, kept: &str) -> Option<String> {
        let Some(rest) = kept.strip_prefix(&format!("{}:", json!(PLACES))) else {
            return Some(kept.to_owned());
        };
        let mut places = serde_json::Deserializer::from_str(rest).into_iter::<Vec<Taken>>();
        let taken = places.next()?.ok()?;
        let body = rest.get(places.byte_offset()..)?.strip_prefix(',')?;
        let (mut out, mut at) = (String::new(), 0);
        for (place, name, form) in taken {
            out.push_str(body.get(at..place)?);
            let stands = stand_in(&name);
            at = place + stands.len();
            if body.get(place..at)? != stands {
                return None;
            }
            match self.0.get(&name) {
                Some(value) => out.push_str(forms(value).get(form)?),
                None => out.push_str(&stands),
            }
        }
        out.push_str(body.get(at..)?);
        Some(out)
    }

    /// Takes the secrets out of a text for people.
    pub fn hidden(&self, text: &str) -> String {
        self.taken_out(text).0
    }

    /// Takes the secrets out of arguments for people.
    pub fn hidden_value(&self, value: Value) -> Value {
        match value {
            Value::String(text) => self.hidden(&text).into(),
            Value::Array(list) => list.into_iter().map(|v| self.hidden_value(v)).collect(),
            Value::Object(members) => {
                members.into_iter().map(|(name, v)| (self.hidden(&name), self.hidden_value(v))).collect()
            }
            Value::Number(number) => match self.hidden(&number.to_string()) {
                hidden if hidden == number.to_string() => number.into(),
                hidden => hidden.into(),
            },
            other => other,
        }
    }

    /// Replaces each secret by its name. Of two that overlap, the earlier and longer one is taken.
    fn taken_out(&self, text: &str) -> (String, Vec<Taken>) {
        let mut found: Vec<(usize, usize, &String, usize)> = Vec::new();
        for (name, value) in &self.0 {
            for (no, form) in forms(value).iter().enumerate() {
                found.extend(text.match_indices(form.as_str()).map(|(at, _)| (at, form.len(), name, no)));
            }
        }
        found.sort_by_key(|(at, length, _, form)| (*at, usize::MAX - length, *form));
        let (mut out, mut taken, mut at) = (String::new(), Vec::new(), 0);
        for (place, length, name, form) in found {
            if place < at {
                continue;
            }
            out.push_str(&text[at..place]);
            taken.push((out.len(), name.clone(), form));
            out.push_str(&stand_in(name));
            at = place + length;
        }
        out.push_str(&text[at..]);
        (out, taken)
    }
}

fn says_so(name: &str) -> bool {
    let name = name.to_ascii_uppercase();
    WORDS.iter().any(|word| name.contains(word)) || ENDS.iter().any(|end| name.ends_with(end))
}

/// Returns the text that stands in a secret's place.
fn stand_in(name: &str) -> String {
    format!("[{name}]")
}

/// Returns the forms in which writers of JSON write a text: as it is, with what JSON escapes, in ASCII as Python does, and
/// with `/` escaped too.
fn forms(text: &str) -> [String; 4] {
    let quoted = json!(text).to_string();
    let escaped = quoted[1..quoted.len() - 1].to_owned();
    let mut ascii = String::new();
    for c in escaped.chars() {
        match c.is_ascii() {
            true => ascii.push(c),
            false => {
                ascii.extend(c.encode_utf16(&mut [0; 2]).iter().map(|unit| format!("\\u{unit:04x}")));
            }
        }
    }
    let slashed = ascii.replace('/', "\\/");
    [text.to_owned(), escaped, ascii, slashed]
}

#[cfg(test)]
mod tests {
    use super::*;

    fn secrets(variables: &[(&str, &str)], named: &[&str]) -> Secrets {
        let variables = variables.iter().map(|(n, v)| (OsString::from(n), OsString::from(v)));
        Secrets::of(variables, &named.iter().map(|n| (*n).to_owned()).collect::<Vec<_>>())
    }

    #[test]
    fn an_answer_is_recorded_without_its_secrets_and_given_again_with_them() {
        let s = secrets(
            &[("MAIL_TOKEN", "tok-12345678"), ("DB_PASSWORD", "a\"b\\c/é-9"), ("PATH", "/usr/bin")],
            &[],
        );
        for body in [
            r#""result":{"content":[{"type":"text","text":"tok-12345678 and tok-12345678"}]}"#,
            r#""result":{"text":"in JSON: a\"b\\c/é-9, é before [MAIL_TOKEN]"}"#,
            r#""result":{"text":"in ASCII: a\"b\\c/\u00e9-9, with all: a\"b\\c\/\u00e9-9"}"#,
            r#""result":{"path":"/usr/bin"}"#,
            r#""error":{"code":-1,"message":"bad tok-12345678"}"#,
        ] {
            let kept = s.masked(body);
            assert!(!kept.contains("12345678") && !kept.contains("-9"), "{kept}");
            assert!(serde_json::from_str::<Value>(&format!("{{{kept}}}")).is_ok(), "{kept}");
            assert_eq!(s.restored(&kept).as_deref(), Some(body), "{kept}");
        }
    }

    #[test]
    fn a_name_in_an_answer_brings_no_secret_out() {
        // A server's text could ask for a value by its name: only places from which one was taken get it back.
        let s = secrets(&[("MAIL_TOKEN", "tok-12345678")], &[]);
        let body = r#""result":{"text":"[MAIL_TOKEN]","outlast/masked":[[0,"MAIL_TOKEN",0]]}"#;
        assert_eq!(s.masked(body), body);
        assert_eq!(s.restored(body).as_deref(), Some(body));
        let damaged = r#""outlast/masked":[[3,"MAIL_TOKEN",0]],"result":{"text":"[MAIL_TOKEN]"}"#;
        assert_eq!(s.restored(damaged), None);
    }

    #[test]
    fn a_changed_secret_is_given_as_it_is_and_one_that_is_gone_by_its_name() {
        let body = r#""result":"tok-12345678""#;
        let kept = secrets(&[("MAIL_TOKEN", "tok-12345678")], &[]).masked(body);
        let now = |variables: &[(&str, &str)]| secrets(variables, &[]).restored(&kept).unwrap();
        assert_eq!(now(&[("MAIL_TOKEN", "new-12345678")]), r#""result":"new-12345678""#);
        assert_eq!(now(&[]), r#""result":"[MAIL_TOKEN]""#);
    }

    #[test]
    fn variables_are_secrets_by_their_names_or_by_being_named() {
        let names = |named: &[&str]| {
            let value = "long enough";
            let all = ["GITHUB_PAT", "openai_api_key", "HOME", "PROJECT", "SSH_AUTH_SOCK", "MONKEY", "LOGIN"];
            let variables: Vec<_> = all.iter().map(|name| (*name, value)).collect();
            format!("{:?}", secrets(&variables, named))
        };
        assert_eq!(names(&[]), r#"{"GITHUB_PAT", "LOGIN", "openai_api_key"}"#);
        assert_eq!(names(&["PROJECT"]), r#"{"GITHUB_PAT", "LOGIN", "PROJECT", "openai_api_key"}"#);
        assert_eq!(format!("{:?}", secrets(&[("TOKEN", "short")], &[])), "{}");
        let header = secrets(&[], &[]).with_headers(&[("Authorization".into(), "Bearer abcdefgh".into())]);
        assert_eq!(header.hidden("abcdefgh"), "[Authorization]");
    }

    #[test]
    fn arguments_are_shown_without_secrets() {
        let s = secrets(&[("PIN_TOKEN", "12345678")], &[]);
        let shown = s.hidden_value(json!({"a": ["x 12345678"], "n": 12345678, "m": 7, "12345678": true}));
        assert_eq!(shown, json!({"a": ["x [PIN_TOKEN]"], "n": "[PIN_TOKEN]", "m": 7, "[PIN_TOKEN]": true}));
    }

    #[test]
    fn of_two_secrets_that_overlap_the_longer_is_taken() {
        let s = secrets(&[("A_TOKEN", "abcdefgh"), ("B_TOKEN", "abcdefghij")], &[]);
        assert_eq!(s.hidden("abcdefghij abcdefgh"), "[B_TOKEN] [A_TOKEN]");
    }
}
