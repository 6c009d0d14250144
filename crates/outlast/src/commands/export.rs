//! `outlast export JOB`: prints a job's results as JSON lines, in the order of their inputs.

use std::fmt;

use outlast_core::{
    journal::{
        Role,
        job::{ItemRow, Standing},
    },
    reads::items,
    store::{self, Store},
    words::id::{RunNo, Seq},
};
use serde::{
    Deserialize, Deserializer, Serialize,
    de::{MapAccess, Visitor},
};
use serde_json::value::RawValue;

use super::jobs;
use crate::{
    cli::ExportArgs,
    program::{error::CliError, find},
    render::{look::Page, time},
};

#[derive(Serialize)]
struct Line<'a> {
    job_id: &'a str,
    index: i64,
    key: &'a str,
    result: Box<RawValue>,
    attempt: i64,
    at: Option<String>,
    cost_nano_usd: i64,
}

/// Prints a job's results as JSON lines. Values are read one by one, so that memory holds only the keys.
pub fn export(store: &dyn Store, args: &ExportArgs, page: &mut Page) -> Result<(), CliError> {
    if args.transcript {
        return super::transcript::export(store, &args.job, page);
    }
    let view = find::job(store, &args.job)?;
    let (run, name) = (view.run.no, jobs::name(&view));
    let is_done =
        |row: &Result<ItemRow, _>| row.as_ref().map_or(true, |row| row.detail.standing == Standing::Done);
    let mut rows = items::each(store, run).filter(is_done).collect::<Result<Vec<_>, _>>()?;
    rows.sort_by_key(|row| (row.detail.index, row.seq));
    for row in rows {
        page.json_line(&Line {
            job_id: &name,
            index: row.detail.index,
            key: &row.key,
            result: value(store, run, row.seq)?,
            attempt: row.attempt.0,
            at: row.closed_at.map(time::rfc3339),
            cost_nano_usd: row.spent.cost(),
        })?;
    }
    Ok(())
}

/// Reads the recorded result of an entry, without class tags. Numbers keep the digits they were recorded with.
fn value(store: &dyn Store, run: RunNo, seq: Seq) -> Result<Box<RawValue>, CliError> {
    let corrupt = |what: String| store::Error::Corrupt { what: format!("the result of entry {seq}: {what}") };
    let Some(kept) = store.payload(run, seq, Role::Value)? else { return Ok(RawValue::NULL.to_owned()) };
    let bytes = kept.decode().map_err(|e| corrupt(e.to_string()))?;
    let bytes = finite(&bytes).map_or(bytes, Into::into);
    let value: &RawValue = serde_json::from_slice(&bytes).map_err(|e| corrupt(e.to_string()))?;
    Ok(plain(value).map_err(|e| corrupt(e.to_string()))?)
}

/// Replaces Python's `NaN` and infinities, which JSON does not have, by `null`. `None` if the text has none of them.
fn finite(json: &[u8]) -> Option<Vec<u8>> {
    const WORDS: [&[u8]; 3] = [b"NaN", b"-Infinity", b"Infinity"];
    let (mut out, mut at, mut in_text, mut found) = (Vec::with_capacity(json.len()), 0, false, false);
    while let Some(&byte) = json.get(at) {
        let rest = json.get(at..).unwrap_or_default();
        if let Some(word) = WORDS.iter().find(|word| !in_text && rest.starts_with(word)) {
            found = true;
            out.extend_from_slice(b"null");
            at += word.len();
            continue;
        }
        // A backslash and the character after it belong to the text, so that an escaped quote does not end it.
        let len = if in_text && byte == b'\\' { rest.len().min(2) } else { 1 };
        in_text ^= byte == b'"';
        out.extend_from_slice(&rest[..len]);
        at += len;
    }
    found.then_some(out)
}

/// Replaces values that are tagged with their class by their plain fields, as in the JSONL file of results.
fn plain(value: &RawValue) -> serde_json::Result<Box<RawValue>> {
    let text = value.get();
    if !text.contains("\"$outlast\"") {
        return Ok(value.to_owned());
    }
    let made = match text.as_bytes().first() {
        Some(b'{') => {
            let fields: Fields = serde_json::from_str(text)?;
            if let Some(class) = fields.of("$outlast") {
                // NaN and the infinities are recorded with the class `float`: they become `null`.
                let value = fields.of("value").filter(|_| class.get() != "\"float\"");
                return value.map_or_else(|| Ok(RawValue::NULL.to_owned()), plain);
            }
            let field = |(key, value): &(String, &RawValue)| {
                Ok(format!("{}:{}", serde_json::to_string(key)?, plain(value)?.get()))
            };
            let fields = fields.0.iter().map(field).collect::<serde_json::Result<Vec<_>>>()?;
            format!("{{{}}}", fields.join(","))
        }
        Some(b'[') => {
            let parts: Vec<&RawValue> = serde_json::from_str(text)?;
            let parts = parts.into_iter().map(|part| Ok(plain(part)?.get().to_owned()));
            format!("[{}]", parts.collect::<serde_json::Result<Vec<_>>>()?.join(","))
        }
        _ => return Ok(value.to_owned()),
    };
    RawValue::from_string(made)
}

/// Fields of a JSON object, in their order and as they were written.
struct Fields<'a>(Vec<(String, &'a RawValue)>);

impl<'a> Fields<'a> {
    fn of(&self, key: &str) -> Option<&'a RawValue> {
        self.0.iter().find(|(k, _)| k == key).map(|(_, value)| *value)
    }
}

impl<'de> Deserialize<'de> for Fields<'de> {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        struct Each;
        impl<'de> Visitor<'de> for Each {
            type Value = Fields<'de>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object")
            }

            fn visit_map<M: MapAccess<'de>>(self, mut map: M) -> Result<Fields<'de>, M::Error> {
                let mut fields = Vec::new();
                while let Some(field) = map.next_entry()? {
                    fields.push(field);
                }
                Ok(Fields(fields))
            }
        }
        from.deserialize_map(Each)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_that_json_does_not_have_are_null() {
        for (json, wanted) in [
            (r#"NaN"#, Some("null")),
            (r#"{"a":[Infinity,-Infinity,-1,NaN]}"#, Some(r#"{"a":[null,null,-1,null]}"#)),
            (r#"["NaN","\"NaN\\",NaN]"#, Some(r#"["NaN","\"NaN\\",null]"#)),
            (r#"{"a":"Infinity","b":"\\"}"#, None),
            (r#"["torn \"#, None),
        ] {
            let had = finite(json.as_bytes()).map(|text| String::from_utf8(text).unwrap());
            assert_eq!(had.as_deref(), wanted, "{json}");
        }
    }

    #[test]
    fn classes_are_their_fields_and_numbers_as_they_were_written() {
        for (json, wanted) in [
            (r#"{"n":1180591620717411303424,"a":1.10}"#, r#"{"n":1180591620717411303424,"a":1.10}"#),
            (
                r#"{"z":12345678901234567890123,"a":[{"$outlast":"m:C","value":{"x":{"$outlast":"m:D","value":{"y":1.10}}}},2]}"#,
                r#"{"z":12345678901234567890123,"a":[{"x":{"y":1.10}},2]}"#,
            ),
            (r#"["a \"$outlast\" text"]"#, r#"["a \"$outlast\" text"]"#),
            (r#"{"$outlast":"m:C","value":7}"#, "7"),
            (r#"[{"$outlast":"float","value":"-inf"}]"#, "[null]"),
        ] {
            let value: &RawValue = serde_json::from_str(json).unwrap();
            assert_eq!(plain(value).unwrap().get(), wanted);
        }
    }
}
