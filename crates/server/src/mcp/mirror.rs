//! Headers that repeat a message, for those between client and server who read no bodies: `Mcp-Method`, `Mcp-Name` and
//! `Mcp-Param-*` of the protocol from 2026-07-28 on.

use std::collections::HashMap;

use base64::{Engine as _, engine::general_purpose::STANDARD};
use http::{HeaderMap, HeaderName, HeaderValue};
use serde_json::{Value, value::RawValue};

/// Name of the header that carries the protocol's version.
pub const VERSION_HEADER: HeaderName = HeaderName::from_static("mcp-protocol-version");

/// Member of a property's schema which names the header that repeats the property's value.
const ANNOTATION: &str = "x-mcp-header";

/// Methods, each with the member of its parameters that the header `Mcp-Name` repeats.
const NAMED: [(&str, &str); 3] = [("tools/call", "name"), ("prompts/get", "name"), ("resources/read", "uri")];

/// Path to a value in a tool's arguments, and the name of the header that repeats this value.
type MirroredArgument = (Vec<String>, HeaderName);

/// Arguments that headers of a call repeat, for each tool, as the server last listed its tools.
#[derive(Debug, Default)]
pub struct Mirror {
    tools: HashMap<String, Vec<MirroredArgument>>,
}

impl Mirror {
    /// Records which headers each tool asks for, from the result of a `tools/list`.
    pub fn learn(&mut self, result: &RawValue) {
        let Ok(result) = serde_json::from_str::<Value>(result.get()) else { return };
        for tool in result["tools"].as_array().into_iter().flatten() {
            let Some(name) = tool["name"].as_str() else { continue };
            let mut places = Vec::new();
            find(&tool["inputSchema"], &mut Vec::new(), &mut places);
            self.tools.insert(name.to_owned(), places);
        }
    }

    /// Adds the headers that repeat a request's method, name and arguments, as `version` of the protocol asks.
    pub fn add(&self, version: &str, method: &str, params: Option<&RawValue>, headers: &mut HeaderMap) {
        let mut put = |name: HeaderName, text: &str| {
            if let Some(value) = encoded(text) {
                headers.insert(name, value);
            }
        };
        put(VERSION_HEADER, version);
        put(HeaderName::from_static("mcp-method"), method);
        let params: Value = params.and_then(|p| serde_json::from_str(p.get()).ok()).unwrap_or_default();
        let named = NAMED.iter().find(|(named, _)| *named == method);
        let Some(name) = named.and_then(|(_, member)| params[*member].as_str()) else { return };
        put(HeaderName::from_static("mcp-name"), name);
        let places = self.tools.get(name).filter(|_| method == "tools/call");
        for (path, header) in places.into_iter().flatten() {
            let at = path.iter().try_fold(&params["arguments"], |value, member| value.get(member));
            match at {
                Some(Value::String(text)) => put(header.clone(), text),
                Some(other @ (Value::Bool(_) | Value::Number(_))) => put(header.clone(), &other.to_string()),
                _ => {}
            }
        }
    }
}

/// Finds annotated properties that a chain of `properties` leads to; an annotation elsewhere has no meaning.
fn find(schema: &Value, path: &mut Vec<String>, places: &mut Vec<MirroredArgument>) {
    for (name, property) in schema["properties"].as_object().into_iter().flatten() {
        path.push(name.clone());
        let header = property[ANNOTATION].as_str().filter(|header| !header.is_empty());
        let header = header.and_then(|h| HeaderName::from_bytes(format!("mcp-param-{h}").as_bytes()).ok());
        places.extend(header.map(|header| (path.clone(), header)));
        find(property, path, places);
        path.pop();
    }
}

/// Returns the value of a header for a text: the text itself, or, where it is not allowed in a header, its
/// base64 encoding, marked as such. `None` if there is no value.
fn encoded(text: &str) -> Option<HeaderValue> {
    let is_plain = text.bytes().all(|b| (0x20..0x7f).contains(&b)) && text == text.trim();
    let is_marked = text.starts_with("=?base64?") && text.ends_with("?=");
    let value = match is_plain && !is_marked {
        true => HeaderValue::from_str(text),
        false => HeaderValue::from_str(&format!("=?base64?{}?=", STANDARD.encode(text))),
    };
    value.ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn raw(json: &str) -> &RawValue {
        serde_json::from_str(json).unwrap()
    }

    fn check(method: &str, params: &str, wanted: &[(&str, &str)]) {
        let mut mirror = Mirror::default();
        mirror.learn(raw(r#"{"tools":[{"name":"sql","inputSchema":{"properties":{
                "region":{"type":"string","x-mcp-header":"Region"},
                "at":{"type":"object","properties":{"row":{"type":"integer","x-mcp-header":"Row"}}},
                "bad":{"x-mcp-header":"a b"},"none":{"x-mcp-header":""},"dry":{"x-mcp-header":"Dry"},
                "list":{"items":{"x-mcp-header":"Never"}}}}}]}"#));
        let mut headers = HeaderMap::new();
        mirror.add("2026-07-28", method, Some(raw(params)), &mut headers);
        let mut had: Vec<(&str, &str)> =
            headers.iter().map(|(name, value)| (name.as_str(), value.to_str().unwrap())).collect();
        had.sort_unstable();
        let mut wanted = [&[("mcp-method", method), ("mcp-protocol-version", "2026-07-28")], wanted].concat();
        wanted.sort_unstable();
        assert_eq!(had, wanted, "{method} {params}");
    }

    #[test]
    fn a_request_is_repeated_in_its_headers() {
        check("tools/list", r#"{"name":"x"}"#, &[]);
        check("resources/read", r#"{"uri":"file:///a b"}"#, &[("mcp-name", "file:///a b")]);
        check("prompts/get", r#"{"name":"é"}"#, &[("mcp-name", "=?base64?w6k=?=")]);
        check("tools/call", r#"{"name":" a"}"#, &[("mcp-name", "=?base64?IGE=?=")]);
        check("tools/call", r#"{"name":"=?base64?x?="}"#, &[("mcp-name", "=?base64?PT9iYXNlNjQ/eD89?=")]);
    }

    #[test]
    fn annotated_arguments_are_repeated_and_absent_ones_are_not() {
        check(
            "tools/call",
            r#"{"name":"sql","arguments":{"region":"us\n","at":{"row":-7},"dry":false,"bad":"x","list":["x"]}}"#,
            &[
                ("mcp-name", "sql"),
                ("mcp-param-region", "=?base64?dXMK?="),
                ("mcp-param-row", "-7"),
                ("mcp-param-dry", "false"),
            ],
        );
        check("tools/call", r#"{"name":"sql","arguments":{"region":null,"at":{}}}"#, &[("mcp-name", "sql")]);
        check("prompts/get", r#"{"name":"sql","arguments":{"region":"x"}}"#, &[("mcp-name", "sql")]);
    }
}
