//! Eras of the protocol, and what each wants of the messages that Outlast makes itself.
//!
//! Until 2025-11-25 `initialize` opens a session. From 2026-07-28 on each request names its version, and each result its
//! type. A recorded answer, and one of a person, may be given in another era than it was made in: it is completed as it
//! is given.

use std::borrow::Cow;

use serde::Deserialize;
use serde_json::{Value, value::RawValue};

use super::message::{self, INVALID, Message, PARAMS, PARSE};

/// Member of `_meta` in which each request names the protocol's version, if there was no `initialize`.
pub const VERSION: &str = "io.modelcontextprotocol/protocolVersion";

/// Newest protocol version that has sessions.
pub const WITH_SESSIONS: &str = "2025-11-25";

/// Codes of errors: no such method; headers that differ from the body; a capability that the client has not declared; a
/// version that is not spoken.
const NO_METHOD: i64 = -32601;
pub const MISMATCH: i64 = -32020;
const NO_CAPABILITY: i64 = -32021;
pub const UNSPOKEN: i64 = -32022;

/// Code of the error that ends the response of a cancelled request.
const CANCELLED: i64 = -32800;

/// Member that a result has from 2026-07-28 on. Results of other types are made by servers alone.
const RESULT_TYPE: (&str, &str) = ("resultType", "\"resultType\":\"complete\"");

/// Era of the protocol that a request belongs to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Era {
    /// A session that `initialize` has opened, until 2025-11-25.
    #[default]
    Session,
    /// From 2026-07-28 on: the request stands alone.
    Alone,
}

/// Returns the protocol version that a request names itself; `None` for a request of a session.
pub fn version(params: Option<&RawValue>) -> Option<String> {
    let params: Value = serde_json::from_str(params?.get()).ok()?;
    params["_meta"][VERSION].as_str().map(str::to_owned)
}

impl Era {
    /// Returns the era of a request with these parameters.
    pub fn of(params: Option<&RawValue>) -> Era {
        if version(params).is_some() { Era::Alone } else { Era::Session }
    }

    /// Returns an answer's member `"result":…` or `"error":…` as this era wants it. A result that this era's server made
    /// is complete, and stays as it is.
    pub fn completed<'a>(self, body: &'a str) -> Cow<'a, str> {
        let Some(result) = body.strip_prefix("\"result\":").filter(|_| self == Era::Alone) else {
            return body.into();
        };
        match serde_json::from_str::<Value>(result) {
            Ok(Value::Object(members)) if !members.contains_key(RESULT_TYPE.0) => {
                format!("\"result\":{}", message::with_member(result.trim_start(), RESULT_TYPE.1)).into()
            }
            _ => body.into(),
        }
    }

    /// Returns the answer to a cancelled request; `None` in an era whose cancelled requests have no answer.
    pub fn cancelled(self, id: &str) -> Option<Vec<u8>> {
        let error = || message::answer(id, &message::error(CANCELLED, "Request cancelled"));
        (self == Era::Session).then(error)
    }

    /// Returns the HTTP status of a response that holds this answer alone.
    pub fn status(self, answer: &[u8]) -> u16 {
        let code = message::read(answer).ok().and_then(|answer| error_code(&answer));
        match (self, code) {
            (Era::Alone, Some(NO_METHOD)) => 404,
            (Era::Alone, Some(PARSE | INVALID | PARAMS | MISMATCH | NO_CAPABILITY | UNSPOKEN)) => 400,
            _ => 200,
        }
    }
}

/// Returns whether an answer says that its request was cancelled, which tells nothing of what it did.
pub fn is_cancelled(answer: &Message<'_>) -> bool {
    error_code(answer) == Some(CANCELLED)
}

fn error_code(answer: &Message<'_>) -> Option<i64> {
    #[derive(Deserialize)]
    struct Error {
        code: i64,
    }
    answer.error.and_then(|error| serde_json::from_str::<Error>(error.get()).ok()).map(|error| error.code)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn raw(json: &str) -> &RawValue {
        serde_json::from_str(json).unwrap()
    }

    #[test]
    fn a_request_names_its_version_or_belongs_to_a_session() {
        let named = raw(r#"{"_meta":{"io.modelcontextprotocol/protocolVersion":"2026-07-28"}}"#);
        assert_eq!(version(Some(named)).as_deref(), Some("2026-07-28"));
        assert_eq!(Era::of(Some(named)), Era::Alone);
        assert_eq!([Some(raw("{}")), None].map(Era::of), [Era::Session; 2]);
    }

    /// Bug: results that Outlast made had no `resultType`. Consequence: SDKs of 2026-07-28 raised instead of telling the
    /// model that a call is in doubt. Cause: one shape for both eras, written by hand.
    #[test]
    fn what_outlast_gives_has_the_members_of_the_era_that_asks() {
        let told = message::told("unknown", json!({"outlast/outcome": "unknown"}));
        for made in [told.as_str(), "\"result\":{}", "\"result\": {\"content\":[ ],\"n\":1E2}"] {
            let result = |era: Era| -> Value {
                serde_json::from_str(&format!("{{{}}}", era.completed(made))).unwrap()
            };
            assert_eq!(result(Era::Alone)["result"]["resultType"], "complete", "{made}");
            assert_eq!(Era::Session.completed(made), made);
        }
        for whole in [
            r#""result":{"resultType":"input_required","n":1E2}"#,
            r#""result":{"content":[ ],"resultType":"complete"}"#,
            r#""error":{"code":-32603,"message":"x"}"#,
        ] {
            assert_eq!(Era::Alone.completed(whole), whole);
        }
        let spliced = Era::Alone.completed(r#""result":{ "n":1E2}"#);
        assert_eq!(spliced, r#""result":{"resultType":"complete", "n":1E2}"#, "other bytes stay");
    }

    #[test]
    fn an_error_of_a_request_that_stands_alone_has_its_own_status() {
        let check = |code: i64, wanted: u16| {
            let answer = message::answer("1", &message::error(code, "x"));
            assert_eq!(Era::Alone.status(&answer), wanted, "{code}");
            assert_eq!(Era::Session.status(&answer), 200, "{code}");
        };
        check(-32601, 404);
        [-32700, -32600, -32602, -32020, -32021, -32022].into_iter().for_each(|code| check(code, 400));
        [-32603, -32000, 7].into_iter().for_each(|code| check(code, 200));
        assert_eq!(Era::Alone.status(br#"{"id":1,"result":{}}"#), 200);
    }

    #[test]
    fn a_cancelled_request_of_a_session_is_answered() {
        let answer = String::from_utf8(Era::Session.cancelled("7").unwrap()).unwrap();
        assert!(answer.contains("\"id\":7") && answer.contains("-32800"), "{answer}");
        assert_eq!(Era::Alone.cancelled("7"), None);
    }
}
