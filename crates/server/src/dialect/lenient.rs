//! Reading of JSON that an upstream wrote, whatever of its text is not as the standard wants it.
//!
//! An answer has come and is billed, even if its text is cut inside a character. Only the facts in it must be readable.

use serde_json::{Map, Value};

use super::{
    json_spans::{Kind, Scanner},
    request::BadRequest,
};

/// Parses JSON. Bytes that are not UTF-8 and halves of surrogate pairs become U+FFFD; numbers beyond all range, `NaN`
/// and `Infinity` become null. `None` for a text that is not JSON in other ways.
pub fn parse_json(text: &[u8]) -> Option<Value> {
    if let Ok(value) = serde_json::from_slice(text) {
        return Some(value);
    }
    let text = String::from_utf8_lossy(text);
    let mut scanner = Scanner::lenient(text.as_bytes()).ok()?;
    let value = value(&mut scanner).ok()?;
    scanner.end().ok().map(|()| value)
}

fn value(json: &mut Scanner<'_>) -> Result<Value, BadRequest> {
    Ok(match json.kind()? {
        Kind::Object => {
            let mut members = Map::new();
            json.object(|json, key| {
                members.insert(key.to_owned(), value(json)?);
                Ok(())
            })?;
            Value::Object(members)
        }
        Kind::Array => {
            let mut elements = Vec::new();
            json.array(|json, _| {
                elements.push(value(json)?);
                Ok(())
            })?;
            Value::Array(elements)
        }
        Kind::String => Value::String(json.string()?.decode().into_owned()),
        Kind::Number => serde_json::from_str(json.number()?).unwrap_or(Value::Null),
        Kind::Bool | Kind::Null => serde_json::from_str(json.literal()?).unwrap_or(Value::Null),
    })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn only_what_is_needed_has_to_be_readable() {
        for (text, wanted) in [
            (&br#"{"a":"b\\ud83d"}"#[..], Some(json!({"a": "b\\ud83d"}))),
            (br#"{"a":"b\ud83d","usage":1}"#, Some(json!({"a": "b\u{fffd}", "usage": 1}))),
            (br#"{"a":"\ude00\ud83d\ude00"}"#, Some(json!({"a": "\u{fffd}\u{1f600}"}))),
            (b"{\"a\":\"b\xf0\x9f\",\"usage\":1}", Some(json!({"a": "b\u{fffd}", "usage": 1}))),
            (
                br#"{"a":[NaN,Infinity,-Infinity,1e999],"usage":1}"#,
                Some(json!({"a": [null, null, null, null], "usage": 1})),
            ),
            (br#"{"a":"\ud83d","a":2}"#, Some(json!({"a": 2}))),
            (br#" [true,false,null,-1.5] "#, Some(json!([true, false, null, -1.5]))),
            (br#"{"a":"\ud83d"} x"#, None),
            (br#"{"a":"\ud83d""#, None),
            (b"<html>", None),
            (b"", None),
        ] {
            assert_eq!(parse_json(text), wanted, "{}", String::from_utf8_lossy(text));
        }
    }
}
