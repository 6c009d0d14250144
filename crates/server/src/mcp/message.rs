//! Messages of MCP: one JSON object a line, read as far as the recorder needs.
//!
//! A message is passed on as the bytes that came, so that unknown fields, spellings of numbers and the order of members
//! survive, in each version of the protocol. Rejected: a typed model of the protocol (`rmcp`), which drops what it does
//! not know when it writes a message again.

use std::{borrow::Cow, collections::BTreeMap};

use outlast_core::words::Digest;
use serde::Deserialize;
use serde_json::{Value, json, value::RawValue};

use super::era::Era;
use crate::dialect::canonical::canonical_value;

/// Member of `_meta` that carries the idempotency key of a tool call to the tool. The key is the same in each
/// attempt.
pub const KEY: &str = "outlast/idempotencyKey";

/// Members of `_meta` by which clients name a tool call: the id that the model's answer gave it.
const IDS: [&str; 2] = ["claudecode/toolUseId", "outlast/toolCallId"];

/// Member by which Codex names a call, and a member of Codex's that stands beside it: the name alone could be anybody's.
const CODEX: (&str, &str) = ("callId", "x-codex-turn-metadata");

/// JSON-RPC's error code for a line that is not JSON-RPC.
pub const PARSE: i64 = -32700;
pub const INVALID: i64 = -32600;
pub const PARAMS: i64 = -32602;
pub const INTERNAL: i64 = -32603;

/// Members of a JSON-RPC message. Duplicate members are refused: two readers could take them for two messages.
#[derive(Debug, Deserialize)]
pub struct Message<'a> {
    #[serde(borrow, default)]
    pub id: Option<&'a RawValue>,
    #[serde(borrow, default)]
    pub method: Option<Cow<'a, str>>,
    #[serde(borrow, default)]
    pub params: Option<&'a RawValue>,
    #[serde(borrow, default)]
    pub result: Option<&'a RawValue>,
    #[serde(borrow, default)]
    pub error: Option<&'a RawValue>,
}

/// Parameters by which a notification names a request: the token of its progress, or its id, as raw JSON.
#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Named<'a> {
    #[serde(borrow)]
    pub progress_token: Option<&'a RawValue>,
    #[serde(borrow)]
    pub request_id: Option<&'a RawValue>,
}

impl<'a> Named<'a> {
    pub fn read(params: Option<&'a RawValue>) -> Named<'a> {
        params.and_then(|p| serde_json::from_str(p.get()).ok()).unwrap_or_default()
    }
}

/// Parses a line as a message. Errors: code and text of a JSON-RPC error.
pub fn read(line: &[u8]) -> Result<Message<'_>, (i64, String)> {
    if line.iter().find(|b| !b.is_ascii_whitespace()) == Some(&b'[') {
        return Err((INVALID, "batches are not recorded: send each message on a line of its own".into()));
    }
    serde_json::from_slice(line).map_err(|e| (PARSE, format!("not a message of JSON-RPC: {e}")))
}

/// Tool and arguments of a `tools/call` request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ToolCall {
    pub tool: String,
    /// Id of the call in the model's answer, as the client names it in `_meta`; `None` if it does not.
    pub id: Option<String>,
    /// Token under which the client wants to hear of progress, as raw JSON; `None` if it does not want to.
    pub progress: Option<String>,
    pub era: Era,
    /// Arguments as canonical JSON.
    pub arguments: String,
    /// Digest of all parameters but `_meta`, in canonical JSON. Equal calls have equal digests.
    pub digest: Digest,
}

impl ToolCall {
    /// Parses the parameters of a `tools/call`. The error says what is wrong with them.
    pub fn read(params: Option<&RawValue>) -> Result<ToolCall, String> {
        let era = Era::of(params);
        let params = params.ok_or("tools/call without params")?.get();
        // Refuses duplicate members, at any depth.
        canonical(params)?;
        let members: BTreeMap<Cow<'_, str>, &RawValue> =
            serde_json::from_str(params).map_err(|e| format!("params: {e}"))?;
        let meta: Value = members
            .get("_meta")
            .map_or(Ok(Value::Null), |m| serde_json::from_str(m.get()))
            .unwrap_or_default();
        let name = members.get("name").ok_or("params have no name")?;
        let mut asked = String::new();
        for (member, value) in members.iter().filter(|(member, _)| *member != "_meta") {
            asked.push_str(&format!("{}:{}\n", json!(member), canonical(value.get())?));
        }
        let codex = meta.get(CODEX.1).is_some().then_some(CODEX.0);
        Ok(ToolCall {
            tool: serde_json::from_str(name.get()).map_err(|e| format!("the tool's name: {e}"))?,
            id: IDS.iter().copied().chain(codex).find_map(|id| meta[id].as_str()).map(str::to_owned),
            era,
            progress: meta.get("progressToken").filter(|t| !t.is_null()).map(Value::to_string),
            arguments: members.get("arguments").map_or(Ok("{}".into()), |a| canonical(a.get()))?,
            digest: Digest::of(asked.as_bytes()),
        })
    }
}

fn canonical(json: &str) -> Result<String, String> {
    let bytes = canonical_value(json.as_bytes()).map_err(|e| e.to_string())?;
    String::from_utf8(bytes).map_err(|e| e.to_string())
}

/// Returns the line of a `tools/call` with the idempotency key in its `_meta`. Other bytes, and a client's own key,
/// stay.
pub fn with_key(line: &[u8], key: &str) -> Vec<u8> {
    let member = format!("\"{KEY}\":{}", json!(key));
    let Some(params) = read(line).ok().and_then(|m| m.params) else { return line.to_vec() };
    let Ok(members) = serde_json::from_str::<BTreeMap<Cow<'_, str>, &RawValue>>(params.get()) else {
        return line.to_vec();
    };
    let (object, member) = match members.get("_meta") {
        Some(meta) if meta.get().starts_with('{') => (meta.get(), member),
        // Another `_meta` is the server's to refuse.
        Some(_) => return line.to_vec(),
        None => (params.get(), format!("\"_meta\":{{{member}}}")),
    };
    let has_key = serde_json::from_str::<Value>(object).is_ok_and(|v| v.get(KEY).is_some());
    if has_key {
        return line.to_vec();
    }
    // A raw value is a part of the line that it was read from.
    let at = object.as_ptr() as usize - line.as_ptr() as usize;
    [&line[..at], with_member(object, &member).as_bytes(), &line[at + object.len()..]].concat()
}

/// Returns a JSON object with `member` before its own members. Other bytes stay.
pub(super) fn with_member(object: &str, member: &str) -> String {
    let own = object.strip_prefix('{').unwrap_or(object);
    let comma = if own.trim_start().starts_with('}') { "" } else { "," };
    format!("{{{member}{comma}{own}")
}

/// Returns the line of a request with its id replaced by `id` (raw JSON).
pub fn with_id(line: &[u8], id: &str) -> Vec<u8> {
    let Some(had) = read(line).ok().and_then(|m| m.id) else { return line.to_vec() };
    let at = had.get().as_ptr() as usize - line.as_ptr() as usize;
    [&line[..at], id.as_bytes(), &line[at + had.get().len()..]].concat()
}

/// Returns an answer as a line: `body` is the member `"result":…` or `"error":…`, `id` is raw JSON.
pub fn answer(id: &str, body: &str) -> Vec<u8> {
    format!("{{\"jsonrpc\":\"2.0\",\"id\":{id},{body}}}").into_bytes()
}

/// Returns the member `"result":…` or `"error":…` of an answer, byte for byte, in the form in which it is
/// recorded; `None` if the message has neither.
pub fn recorded(message: &Message<'_>) -> Option<String> {
    match (message.result, message.error) {
        (Some(result), _) => Some(format!("\"result\":{}", result.get())),
        (None, Some(error)) => Some(format!("\"error\":{}", error.get())),
        (None, None) => None,
    }
}

/// Returns whether an answer says that the tool failed: an error, or a result with `isError`.
pub fn is_failure(message: &Message<'_>) -> bool {
    #[derive(Deserialize)]
    #[serde(rename_all = "camelCase")]
    struct Outcome {
        #[serde(default)]
        is_error: bool,
    }
    message.error.is_some()
        || message.result.is_some_and(|r| serde_json::from_str::<Outcome>(r.get()).is_ok_and(|o| o.is_error))
}

/// Returns a tool's result that is a text.
pub fn text_result(text: &str) -> Value {
    json!({"content": [{"type": "text", "text": text}]})
}

/// Returns a tool's result whose text reports a failure to the model.
pub fn failure(text: &str) -> Value {
    let mut result = text_result(text);
    result["isError"] = true.into();
    result
}

/// Returns a `"result":…` member whose text reports a failure to the model, with `facts` for programs in its
/// `_meta`. It is completed for the era that it is given in.
pub fn told(text: &str, facts: Value) -> String {
    let mut result = failure(text);
    result["_meta"] = facts;
    format!("\"result\":{result}")
}

/// Returns a notice that the request `id` (raw JSON) is cancelled.
pub fn cancelled(id: &str, reason: &str) -> Vec<u8> {
    notice("cancelled", &format!("\"requestId\":{id},\"reason\":{}", json!(reason)))
}

/// Returns a notice of progress to the client that gave this token (raw JSON).
pub fn progress(token: &str, progress: u32, text: &str) -> Vec<u8> {
    let told = format!("\"progressToken\":{token},\"progress\":{progress},\"message\":{}", json!(text));
    notice("progress", &told)
}

fn notice(name: &str, params: &str) -> Vec<u8> {
    format!("{{\"jsonrpc\":\"2.0\",\"method\":\"notifications/{name}\",\"params\":{{{params}}}}}")
        .into_bytes()
}

/// Returns an `"error":…` member: an error of the protocol.
pub fn error(code: i64, message: &str) -> String {
    format!("\"error\":{}", json!({"code": code, "message": message}))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn params(json: &str) -> Result<ToolCall, String> {
        let raw: &RawValue = serde_json::from_str(json).unwrap();
        ToolCall::read(Some(raw))
    }

    #[test]
    fn a_call_is_known_by_all_it_asks_and_not_by_its_request() {
        let call = params(r#"{"name":"a","arguments":{"x":1,"y":[2]}}"#).unwrap();
        assert_eq!((call.tool.as_str(), call.arguments.as_str()), ("a", r#"{"x":1,"y":[2]}"#));
        let same = r#"{"_meta":{"progressToken":7,"claudecode/toolUseId":"toolu_1"},"arguments":{"y":[2],"x":1},"name":"\u0061"}"#;
        let same = params(same).unwrap();
        assert_eq!(
            (same.digest, same.id.as_deref(), same.progress.as_deref()),
            (call.digest, Some("toolu_1"), Some("7"))
        );
        let id = |meta: &str| params(&format!("{{\"name\":\"a\",\"_meta\":{meta}}}")).unwrap().id;
        assert_eq!(id(r#"{"callId":"call_1","x-codex-turn-metadata":{}}"#).as_deref(), Some("call_1"));
        assert_eq!(id(r#"{"callId":"anybody's"}"#), None);
        for other in [
            r#"{"name":"b","arguments":{"x":1,"y":[2]}}"#,
            r#"{"name":"a","arguments":{"x":1.0,"y":[2]}}"#,
            r#"{"name":"a","arguments":{"x":1,"y":[2]},"requestState":"s"}"#,
            r#"{"name":"a","arguments":{"x":1,"y":[2]},"inputResponses":{}}"#,
            r#"{"name":"a"}"#,
        ] {
            assert_ne!(params(other).unwrap().digest, call.digest, "{other}");
        }
        for bad in [
            r#"{"arguments":{}}"#,
            r#"{"name":1}"#,
            r#"{"name":"a","name":"b"}"#,
            r#"{"name":"a","arguments":{"x":1,"x":2}}"#,
            "[]",
        ] {
            assert!(params(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn the_key_is_added_and_every_other_byte_stays() {
        let check = |line: &str, wanted: &str| {
            let had = String::from_utf8(with_key(line.as_bytes(), "k")).unwrap();
            assert_eq!(had, wanted);
        };
        check(
            r#"{"id":1, "method":"tools/call","params":{ "name":"a","new":1e400}}"#,
            r#"{"id":1, "method":"tools/call","params":{"_meta":{"outlast/idempotencyKey":"k"}, "name":"a","new":1e400}}"#,
        );
        check(r#"{"params":{"_meta":{ }}}"#, r#"{"params":{"_meta":{"outlast/idempotencyKey":"k" }}}"#);
        check(
            r#"{"params":{"_meta":{"a":{}},"x":0}}"#,
            r#"{"params":{"_meta":{"outlast/idempotencyKey":"k","a":{}},"x":0}}"#,
        );
        for left in [
            r#"{"params":{"_meta":{"outlast/idempotencyKey":"own"}}}"#,
            r#"{"params":{"_meta":null}}"#,
            r#"{"params":[]}"#,
            "no json",
        ] {
            check(left, left);
        }
    }

    #[test]
    fn a_message_is_one_object_without_duplicates() {
        assert!(read(br#"{"jsonrpc":"2.0","id":1,"method":"ping"}"#).is_ok());
        assert_eq!(read(br#" [{"id":1}]"#).unwrap_err().0, INVALID);
        for bad in [&br#"{"method":"ping","method":"tools/call"}"#[..], b"{", b"", b"\xff"] {
            assert_eq!(read(bad).unwrap_err().0, PARSE);
        }
    }

    #[test]
    fn an_answer_is_recorded_as_it_came() {
        let line = br#"{"jsonrpc":"2.0","id":"x","result":{"content":[ ],"isError":true,"n":1E2}}"#;
        let message = read(line).unwrap();
        let body = recorded(&message).unwrap();
        assert_eq!(body, r#""result":{"content":[ ],"isError":true,"n":1E2}"#);
        assert!(is_failure(&message));
        assert_eq!(
            answer("7", &body),
            br#"{"jsonrpc":"2.0","id":7,"result":{"content":[ ],"isError":true,"n":1E2}}"#
        );
        assert!(!is_failure(&read(br#"{"result":{"content":[]}}"#).unwrap()));
        assert!(is_failure(&read(br#"{"error":{}}"#).unwrap()));
    }
}
