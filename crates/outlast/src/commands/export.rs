//! `outlast export JOB`: prints what became of a job's items as JSON lines, in the order of their inputs.

use outlast_core::{
    journal::{ItemRow, Role, job::Standing},
    words::Members,
};
use serde_json::value::RawValue;

use super::prelude::*;

/// Print the results of a batch's items, one line of JSON for each item; or a run's conversations
#[derive(Args, Clone, Debug)]
#[command(
    after_help = "Examples:\n  outlast export enrich-docs > results.jsonl\n  outlast export runs/enrich-docs.jsonl | jq .value\n  outlast export nightly --transcript > nightly.md\n  outlast export nightly --bundle nightly.bundle"
)]
pub struct ExportArgs {
    /// The batch: its name, its run's id, or the start of that id; or a JSONL file of results. With --transcript or --bundle, any run
    #[arg(value_name = "JOB|FILE.jsonl")]
    pub job: String,
    /// The conversations of a run as Markdown, or with --json as JSON
    #[arg(long)]
    pub transcript: bool,
    /// Put the run and all runs below it into this file, to go on where `outlast import` takes it; here it is halted then
    #[arg(long, value_name = "FILE", conflicts_with = "transcript")]
    pub bundle: Option<PathBuf>,
    /// Sign the bundle with this private key of Ed25519, as openssl writes it; only its owner may read the file
    #[arg(long, value_name = "KEYFILE", requires = "bundle")]
    pub sign: Option<PathBuf>,
}

/// Row of the table of a job's results, as Python's `out=` and `to_pandas()` have it.
#[derive(Serialize)]
struct Line<'a> {
    key: &'a str,
    ok: bool,
    value: Option<Box<RawValue>>,
    error: Option<String>,
    attempts: i64,
    cost_usd: f64,
    started: String,
    ended: Option<String>,
}

/// Prints what became of a job's items as JSON lines. Values are read one by one, so that memory holds only the keys.
pub fn export(args: &ExportArgs, desk: Desk) -> Result {
    if let Some(file) = &args.bundle {
        return super::bundle::export(args, file, desk);
    }
    let Desk { store, page, .. } = desk;
    if args.transcript {
        return super::transcript::export(store, &args.job, page);
    }
    let run = find::job(store, &args.job, Verb::Look)?.run.no;
    let has_ended =
        |row: &Result<ItemRow, _>| row.as_ref().map_or(true, |row| row.detail.standing != Standing::Open);
    let mut rows = entries::items(store, run).filter(has_ended).collect::<Result<Vec<_>, _>>()?;
    rows.sort_by_key(|row| (row.detail.index, row.seq));
    for row in rows {
        let ok = row.detail.standing == Standing::Done;
        page.json_line(&Line {
            key: &row.key,
            ok,
            value: ok.then(|| value(store, run, row.seq)).transpose()?,
            error: if ok { None } else { Some(error(store, run, &row)?) },
            attempts: row.detail.tries(),
            cost_usd: row.spent.cost() as f64 / 1e9,
            started: time::rfc3339(row.opened_at),
            ended: row.closed_at.map(time::rfc3339),
        })?;
    }
    Ok(())
}

/// Reads why an item has no result: its exception, or the reason why it was skipped or is dead.
fn error(store: &dyn Store, run: RunNo, row: &ItemRow) -> Result<String> {
    let reason = row.detail.reason.as_deref().unwrap_or_default();
    Ok(match (row.detail.standing, exception(store, run, row.seq)?) {
        (Standing::Skipped, _) => format!("Skip: {reason}"),
        (_, Some(exception)) => exception,
        (_, None) => reason.to_owned(),
    })
}

/// Reads the exception that is recorded for an entry, as `Class: message`; `None` where there is none.
pub fn exception(store: &dyn Store, run: RunNo, seq: Seq) -> Result<Option<String>> {
    let kept = store.payload(run, seq, Role::Value)?.and_then(|kept| kept.decode().ok());
    let told: Option<Value> = kept.and_then(|raw| serde_json::from_slice(&raw).ok());
    Ok(told.and_then(|told| {
        let part = |name: &str| told.pointer(&format!("/error/{name}")).and_then(Value::as_str);
        let class = part("type")?.trim_start_matches("builtins.");
        Some(match part("message").unwrap_or_default() {
            "" => class.to_owned(),
            message => format!("{class}: {message}"),
        })
    }))
}

/// Reads the recorded result of an entry, without class tags. Numbers keep the digits they were recorded with.
fn value(store: &dyn Store, run: RunNo, seq: Seq) -> Result<Box<RawValue>> {
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
            let Members(fields) = serde_json::from_str(text)?;
            let of = |name: &str| fields.iter().find(|(key, _)| key == name).map(|(_, value)| *value);
            if let Some(class) = of("$outlast") {
                return match (class.get(), of("value")) {
                    // NaN and the infinities.
                    ("\"float\"", _) | (_, None) => Ok(RawValue::NULL.to_owned()),
                    // A dict with a key of ours: its keys and values in pairs.
                    ("\"dict\"", Some(pairs)) => {
                        let pairs: Vec<(String, &RawValue)> = serde_json::from_str(pairs.get())?;
                        object(&pairs)
                    }
                    (_, Some(value)) => plain(value),
                };
            }
            return object(&fields);
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

/// Writes a JSON object of plain values.
fn object(fields: &[(String, &RawValue)]) -> serde_json::Result<Box<RawValue>> {
    let field = |(key, value): &(String, &RawValue)| {
        Ok(format!("{}:{}", serde_json::to_string(key)?, plain(value)?.get()))
    };
    let fields = fields.iter().map(field).collect::<serde_json::Result<Vec<_>>>()?;
    RawValue::from_string(format!("{{{}}}", fields.join(",")))
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
            (r#"{"$outlast":"set","value":[{"$outlast":"decimal","value":"1.10"}]}"#, r#"["1.10"]"#),
            (
                r#"{"$outlast":"dict","value":[["$outlast",{"$outlast":"uuid","value":"a"}],["b",2]]}"#,
                r#"{"$outlast":"a","b":2}"#,
            ),
        ] {
            let value: &RawValue = serde_json::from_str(json).unwrap();
            assert_eq!(plain(value).unwrap().get(), wanted);
        }
    }
}
