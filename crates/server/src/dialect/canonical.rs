//! The canonical form of a request body, from which the request digest is computed.

use std::borrow::Cow;

use outlast_core::run::masks::Rules;

use super::{
    json_spans::{Kind, Scanner, duplicate},
    json_text::{Part, push_canonical, scan_string},
    request::{BadRequest, Result},
};

/// Top-level members, as JSON pointers, that identify who asks and do not change the answer. The canonical
/// form leaves them out.
pub const LEFT_OUT: [&str; 4] = ["/metadata", "/user", "/prompt_cache_key", "/client_metadata"];

/// Returns the canonical form of a request: one spelling, whatever client library wrote it. Works in one pass.
///
/// Keys are sorted by the bytes of their canonical encoding, whitespace is removed, strings are decoded and
/// written with the shortest escapes. Numbers keep their text (`1` and `1.0` stay different: some upstreams
/// tell them apart), except that the exponent is normalised: `1E+5` and `1e5` are equal. Members that
/// `LEFT_OUT` and the run's rules point to (a number names an array's element) are left out, but still checked.
/// Strings are masked by the run's masks; keys are not. Errors: anything but a JSON object, duplicate keys.
pub fn canonical(body: &[u8], rules: &Rules) -> Result<Vec<u8>> {
    let pointers: Vec<Vec<String>> =
        LEFT_OUT.iter().copied().chain(rules.leave_out()).map(segments).collect();
    let dropped: Vec<&[String]> = pointers.iter().map(Vec::as_slice).collect();
    let mut writer = Writer::new(body, rules)?;
    match writer.json.kind()? {
        Kind::Object => writer.object(&dropped)?,
        other => return Err(BadRequest::NotAnObject { had: other.name() }),
    }
    writer.json.end()?;
    Ok(writer.out.into_bytes())
}

/// Returns any JSON value in the same spelling as [`canonical`], with nothing left out. The digest that binds an
/// approval to its arguments is computed from this form.
///
/// Errors: invalid JSON, duplicate keys.
pub fn canonical_value(json: &[u8]) -> Result<Vec<u8>> {
    let rules = Rules::default();
    let mut writer = Writer::new(json, &rules)?;
    writer.value(&[])?;
    writer.json.end()?;
    Ok(writer.out.into_bytes())
}

/// Splits a JSON pointer into names, each in canonical encoding so that it compares with keys as written.
fn segments(pointer: &str) -> Vec<String> {
    let names = pointer.split('/').skip(1);
    names.map(|name| encode(&name.replace("~1", "/").replace("~0", "~"))).collect()
}

fn encode(name: &str) -> String {
    let mut out = String::with_capacity(name.len());
    name.chars().for_each(|c| push_canonical(Part::Escaped(c), &mut out));
    out
}

struct Writer<'a> {
    json: Scanner<'a>,
    rules: &'a Rules,
    out: String,
    /// Members, in `out`, of the objects that are open; innermost last.
    members: Vec<Member>,
    /// Scratch buffer in which an object is rebuilt when its keys were not in order.
    sorted: String,
}

#[derive(Clone, Copy)]
struct Member {
    start: usize,
    /// Byte position just after the key's closing quote.
    key_end: usize,
    end: usize,
}

impl Member {
    fn key<'o>(&self, out: &'o str) -> &'o str {
        &out[self.start + 1..self.key_end - 1]
    }
}

impl<'a> Writer<'a> {
    fn new(json: &'a [u8], rules: &'a Rules) -> Result<Self> {
        Ok(Self {
            json: Scanner::new(json)?,
            rules,
            out: String::with_capacity(json.len()),
            members: Vec::new(),
            sorted: String::new(),
        })
    }
}

impl Writer<'_> {
    /// Writes one value. `dropped` holds the remaining parts of the pointers that lead into it.
    fn value(&mut self, dropped: &[&[String]]) -> Result<()> {
        match self.json.kind()? {
            Kind::Object => self.object(dropped)?,
            Kind::Array => self.array(dropped)?,
            Kind::String => self.string()?,
            Kind::Number => {
                let number = self.json.number()?;
                self.number(number);
            }
            Kind::Bool | Kind::Null => self.out.push_str(self.json.literal()?),
        }
        Ok(())
    }

    fn object(&mut self, dropped: &[&[String]]) -> Result<()> {
        let base = self.members.len();
        let mut dropped_keys: Vec<String> = Vec::new();
        let mut in_order = true;
        self.out.push('{');
        self.json.enter(b'{')?;
        let mut first = true;
        while self.json.more(b'}', &mut first)? {
            let before = self.out.len();
            if self.members.len() > base {
                self.out.push(',');
            }
            let mut member = Member { start: self.out.len(), key_end: 0, end: 0 };
            self.key()?;
            member.key_end = self.out.len();
            let key = member.key(&self.out);
            if drops(dropped, key) {
                if dropped_keys.iter().any(|k| k == key) {
                    return Err(duplicate(key));
                }
                dropped_keys.push(key.to_owned());
                self.out.truncate(before);
                self.json.skip()?;
                continue;
            }
            let inside = below(dropped, key);
            in_order &= self.members[base..].last().is_none_or(|m| m.key(&self.out) < key);
            self.out.push(':');
            self.value(&inside)?;
            member.end = self.out.len();
            self.members.push(member);
        }
        if !in_order {
            self.sort(base)?;
        }
        self.members.truncate(base);
        self.out.push('}');
        Ok(())
    }

    /// Sorts the members from `base` on, which end `out`, by their keys.
    fn sort(&mut self, base: usize) -> Result<()> {
        let (out, members) = (&mut self.out, &mut self.members[base..]);
        let from = members.first().map_or(out.len(), |m| m.start);
        members.sort_unstable_by(|a, b| a.key(out).cmp(b.key(out)));
        if let Some(pair) = members.windows(2).find(|pair| pair[0].key(out) == pair[1].key(out)) {
            return Err(duplicate(pair[0].key(out)));
        }
        self.sorted.clear();
        for (i, member) in members.iter().enumerate() {
            if i > 0 {
                self.sorted.push(',');
            }
            self.sorted.push_str(&out[member.start..member.end]);
        }
        out.truncate(from);
        out.push_str(&self.sorted);
        Ok(())
    }

    fn array(&mut self, dropped: &[&[String]]) -> Result<()> {
        self.out.push('[');
        self.json.enter(b'[')?;
        let (mut first, mut index, mut written) = (true, 0usize, 0usize);
        while self.json.more(b']', &mut first)? {
            // Indices are written out only if a pointer leads into this array.
            let name = if dropped.is_empty() { String::new() } else { index.to_string() };
            index += 1;
            if drops(dropped, &name) {
                self.json.skip()?;
                continue;
            }
            if written > 0 {
                self.out.push(',');
            }
            written += 1;
            self.value(&below(dropped, &name))?;
        }
        self.out.push(']');
        Ok(())
    }

    fn key(&mut self) -> Result<()> {
        let key = self.json.key()?.canonical();
        self.out.push('"');
        self.out.push_str(&key);
        self.out.push('"');
        Ok(())
    }

    fn string(&mut self) -> Result<()> {
        let (text, start) = self.json.open_string()?;
        self.out.push('"');
        let at = self.out.len();
        let out = &mut self.out;
        let end = scan_string(text, start, |part| push_canonical(part, out))?;
        if self.rules.masks_strings() {
            let mut decoded = String::with_capacity(end - start);
            scan_string(text, start, |part| match part {
                Part::Plain(run) => decoded.push_str(run),
                Part::Escaped(c) => decoded.push(c),
                Part::LoneSurrogate(_) => decoded.push(char::REPLACEMENT_CHARACTER),
            })?;
            if let Cow::Owned(masked) = self.rules.mask(&decoded) {
                self.out.truncate(at);
                self.out.push_str(&encode(&masked));
            }
        }
        self.out.push('"');
        self.json.close_string(end);
        Ok(())
    }

    fn number(&mut self, number: &str) {
        match number.find(['e', 'E']) {
            None => self.out.push_str(number),
            Some(exponent) => {
                self.out.push_str(&number[..exponent]);
                self.out.push('e');
                self.out.push_str(number[exponent + 1..].trim_start_matches('+'));
            }
        }
    }
}

fn drops(dropped: &[&[String]], key: &str) -> bool {
    dropped.iter().any(|pointer| matches!(pointer, [last] if last == key))
}

fn below<'p>(dropped: &[&'p [String]], key: &str) -> Vec<&'p [String]> {
    dropped.iter().filter(|p| p.len() > 1 && p[0] == key).map(|p| &p[1..]).collect()
}

#[cfg(test)]
mod tests {
    use outlast_core::run::Masks;
    use proptest::prelude::*;

    use super::*;

    fn rules(drop: &[&str], masks: &[(&str, &str)]) -> Rules {
        let leave_out = drop.iter().map(|p| (*p).to_owned()).collect();
        let masks = masks.iter().map(|(n, t)| ((*n).to_owned(), (*t).to_owned())).collect();
        Masks { leave_out, masks }.compile().unwrap()
    }

    fn check(body: &str, drop: &[&str], wanted: &str) {
        let had = canonical(body.as_bytes(), &rules(drop, &[])).map(|out| String::from_utf8(out).unwrap());
        assert_eq!(had.as_deref(), Ok(wanted), "{body}");
    }

    #[test]
    fn one_request_has_one_spelling() {
        for (body, wanted) in [
            ("{}", "{}"),
            (r#"{ "b" : 1 , "a" : [ 1 , { "d" : 2, "c" : null } ] }"#, r#"{"a":[1,{"c":null,"d":2}],"b":1}"#),
            (r#"{"a":"\u0041\/\u000a\u0007\u0008\"\\"}"#, r#"{"a":"A/\n\u0007\b\"\\"}"#),
            (r#"{"a":"\u4e2d\ud83d\ude00 \ud83d"}"#, r#"{"a":"中😀 \ud83d"}"#),
            (r#"{"a":[1E+5,1e5,1.0,-0,1E-7]}"#, r#"{"a":[1e5,1e5,1.0,-0,1e-7]}"#),
            (r#"{"\u0062":1,"a":2,"a!":3,"a\n":4}"#, r#"{"a":2,"a!":3,"a\n":4,"b":1}"#),
        ] {
            check(body, &[], wanted);
        }
    }

    #[test]
    fn who_asks_and_what_is_configured_is_left_out() {
        let body = r#"{"user":"u","model":"m","metadata":{"user_id":"x"},"prompt_cache_key":"k",
            "client_metadata":{},"messages":[{"metadata":1,"id":2},{"id":3}]}"#;
        check(body, &[], r#"{"messages":[{"id":2,"metadata":1},{"id":3}],"model":"m"}"#);
        check(body, &["/messages/0/id", "/model"], r#"{"messages":[{"metadata":1},{"id":3}]}"#);
        check(body, &["/messages/0"], r#"{"messages":[{"id":3}],"model":"m"}"#);
        check(
            r#"{"a/b":1,"a~b":2,"q\"":3,"z":{"user":4}}"#,
            &["/a~1b", "/a~0b", "/q\""],
            r#"{"z":{"user":4}}"#,
        );
        check(r#"{"user":1}"#, &[], "{}");
    }

    #[test]
    fn strings_count_as_their_masks_leave_them() {
        let rules = rules(&[], &[("day", r"\d{4}-\d\d-\d\d"), ("quote", "\"x\"")]);
        for (body, wanted) in [
            (r#"{"a":"on 2026-11-20"}"#, r#"{"a":"on <day>"}"#),
            (r#"{"a":["\u0032026-11-20\n",{"b":"2026-11-21"}]}"#, r#"{"a":["<day>\n",{"b":"<day>"}]}"#),
            (r#"{"2026-11-20":1,"a":"\"x\" \"y\""}"#, r#"{"2026-11-20":1,"a":"<quote> \"y\""}"#),
            (r#"{"a":"\ud83d"}"#, r#"{"a":"\ud83d"}"#),
        ] {
            let had = canonical(body.as_bytes(), &rules).map(|out| String::from_utf8(out).unwrap());
            assert_eq!(had.as_deref(), Ok(wanted), "{body}");
        }
    }

    #[test]
    fn what_cannot_be_one_request_is_refused() {
        for (body, drop, wanted) in [
            (r#"{"a":1,"a":1}"#, "/x", BadRequest::DuplicateKey { key: "a".into() }),
            (r#"{"a":[{"b":1,"c":2,"\u0062":1}]}"#, "/x", BadRequest::DuplicateKey { key: "b".into() }),
            (r#"{"user":1,"user":2}"#, "/x", BadRequest::DuplicateKey { key: "user".into() }),
            (r#"{"metadata":{"k":1,"k":2}}"#, "/x", BadRequest::DuplicateKey { key: "k".into() }),
            ("[1]", "/x", BadRequest::NotAnObject { had: "an array" }),
        ] {
            assert_eq!(canonical(body.as_bytes(), &rules(&[drop], &[])), Err(wanted), "{body}");
        }
    }

    #[test]
    fn a_value_is_spelled_alike_and_nothing_of_it_is_left_out() {
        let check = |json: &str, wanted: &str| {
            let had = canonical_value(json.as_bytes()).map(|out| String::from_utf8(out).unwrap());
            assert_eq!(had.as_deref(), Ok(wanted), "{json}");
        };
        check(
            r#" { "user" : "u", "metadata": {"b":1,"a":[ ]} } "#,
            r#"{"metadata":{"a":[],"b":1},"user":"u"}"#,
        );
        check(" null ", "null");
        check(r#""\u0041""#, r#""A""#);
        check("[1E+5, 1.0]", "[1e5,1.0]");
        for bad in ["", "{", "1 2", r#"{"a":1,"a":2}"#, "nul"] {
            assert!(canonical_value(bad.as_bytes()).is_err(), "{bad}");
        }
    }

    /// Bodies as the proptest below shuffles them: serde_json keeps insertion order here.
    fn json() -> impl Strategy<Value = serde_json::Value> {
        let leaf = prop_oneof![
            Just(serde_json::Value::Null),
            any::<bool>().prop_map(Into::into),
            any::<i64>().prop_map(Into::into),
            any::<String>().prop_map(Into::into),
        ];
        leaf.prop_recursive(4, 40, 6, |inner| {
            prop_oneof![
                prop::collection::vec(inner.clone(), 0..5).prop_map(Into::into),
                prop::collection::vec((".{0,3}", inner), 0..6)
                    .prop_map(|members| serde_json::Value::Object(members.into_iter().collect())),
            ]
        })
    }

    fn reversed(value: &serde_json::Value) -> serde_json::Value {
        match value {
            serde_json::Value::Object(members) => {
                members.iter().rev().map(|(k, v)| (k.clone(), reversed(v))).collect()
            }
            serde_json::Value::Array(values) => values.iter().map(reversed).collect(),
            other => other.clone(),
        }
    }

    proptest! {
        #[test]
        fn order_and_layout_do_not_matter_and_meaning_stays(value in json()) {
            let body = serde_json::json!({ "b": value, "a": 1 });
            let once = canonical(body.to_string().as_bytes(), &Rules::default()).unwrap();
            let pretty = serde_json::to_string_pretty(&reversed(&body)).unwrap();
            prop_assert_eq!(&canonical(pretty.as_bytes(), &Rules::default()).unwrap(), &once);
            prop_assert_eq!(&canonical(&once, &Rules::default()).unwrap(), &once);
            prop_assert_eq!(serde_json::from_slice::<serde_json::Value>(&once).unwrap(), body);
        }
    }
}
