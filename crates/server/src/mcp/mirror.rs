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

/// Members of a schema that hold values and no schemas.
const DATA: [&str; 4] = ["const", "default", "enum", "examples"];

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
            self.tools.insert(name.to_owned(), mirrored(&tool["inputSchema"]).unwrap_or_default());
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

/// Returns the result of a `tools/list` without the tools whose annotations break the protocol's rules, which a client over
/// HTTP leaves out, and the name of each of those with the rule that it breaks; `None` if all tools are sound.
pub fn sound_tools(result: &RawValue) -> Option<(Value, Vec<(String, String)>)> {
    let mut result: Value = serde_json::from_str(result.get()).ok()?;
    let mut left_out = Vec::new();
    result["tools"].as_array_mut()?.retain(|tool| match mirrored(&tool["inputSchema"]) {
        Ok(_) => true,
        Err(why) => {
            left_out.push((tool["name"].as_str().unwrap_or_default().to_owned(), why));
            false
        }
    });
    (!left_out.is_empty()).then_some((result, left_out))
}

/// Returns the arguments that headers repeat. Errors: the rule that an annotation of the schema breaks.
fn mirrored(schema: &Value) -> Result<Vec<MirroredArgument>, String> {
    let mut places = Vec::new();
    find(schema, Some(&[]), &mut places)?;
    Ok(places)
}

/// Finds the annotated properties of a schema that a chain of `properties` leads to: by `path`, `None` where something
/// else does, and an annotation is wrong.
fn find(schema: &Value, path: Option<&[String]>, places: &mut Vec<MirroredArgument>) -> Result<(), String> {
    let members = match schema {
        Value::Object(members) => members,
        Value::Array(each) => return each.iter().try_for_each(|each| find(each, None, places)),
        _ => return Ok(()),
    };
    if let Some(annotation) = members.get(ANNOTATION) {
        let broken = |rule: &str| Err(format!("{ANNOTATION} {annotation} {rule}"));
        let Some(path) = path.filter(|path| !path.is_empty()) else {
            return broken("is on no property that `properties` alone lead to");
        };
        if !matches!(members.get("type").and_then(Value::as_str), Some("string" | "integer" | "boolean")) {
            return broken("is on a property whose type is not string, integer or boolean");
        }
        let name = annotation.as_str().filter(|name| !name.is_empty());
        let Some(header) =
            name.and_then(|name| HeaderName::from_bytes(format!("mcp-param-{name}").as_bytes()).ok())
        else {
            return broken("is no name of a header");
        };
        if places.iter().any(|(_, other)| *other == header) {
            return broken("is there twice");
        }
        places.push((path.to_vec(), header));
    }
    for (member, value) in members.iter().filter(|(member, _)| !DATA.contains(&member.as_str())) {
        let Some(properties) = value.as_object().filter(|_| member == "properties") else {
            find(value, None, places)?;
            continue;
        };
        for (name, property) in properties {
            let path = path.map(|path| [path, std::slice::from_ref(name)].concat());
            find(property, path.as_deref(), places)?;
        }
    }
    Ok(())
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
                "dry":{"type":"boolean","x-mcp-header":"Dry"},"list":{"default":{"x-mcp-header":"Never"}}}}}]}"#));
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
            r#"{"name":"sql","arguments":{"region":"us\n","at":{"row":-7},"dry":false,"list":["x"]}}"#,
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

    // Bug: a server's tool whose annotation is invalid was handed on, and called. Consequence: what the protocol forbids a
    // client over HTTP was done, as a client of a command does not look. Cause: the recorder is the client over HTTP, and
    // passed over annotations that it did not understand.
    #[test]
    fn a_tool_whose_annotation_breaks_a_rule_is_left_out_with_the_rule() {
        let check = |schema: &str, rule: Option<&str>| {
            let list = format!(
                r#"{{"nextCursor":"n","tools":[{{"name":"a"}},{{"name":"b","inputSchema":{schema}}}]}}"#
            );
            let had = sound_tools(raw(&list));
            let why = had.as_ref().map(|(_, left_out)| left_out[0].1.as_str());
            assert!(
                why.is_none() && rule.is_none() || why.unwrap().contains(rule.unwrap()),
                "{schema} {why:?}"
            );
            if let Some((result, left_out)) = had {
                assert_eq!(result.to_string(), r#"{"nextCursor":"n","tools":[{"name":"a"}]}"#);
                assert_eq!(left_out[0].0, "b");
            }
        };
        let property = |property: &str| format!(r#"{{"properties":{{"p":{property}}}}}"#);
        check(r#"{"properties":{"x-mcp-header":{"type":"string"}}}"#, None);
        check(&property(r#"{"type":"string","x-mcp-header":"Region"}"#), None);
        check(&property(r#"{"enum":[{"x-mcp-header":""}],"type":"object"}"#), None);
        for name in ["\"\"", "\"a b\"", "\"a:b\"", "\"é\"", "\"a\\tb\"", "7", "null"] {
            let schema = property(&format!(r#"{{"type":"string","x-mcp-header":{name}}}"#));
            check(&schema, Some("is no name of a header"));
        }
        for of_type in
            ["\"type\":\"object\",", "\"type\":\"array\",", "\"type\":\"null\",", "\"type\":\"number\",", ""]
        {
            check(&property(&format!(r#"{{{of_type}"x-mcp-header":"A"}}"#)), Some("whose type is not"));
        }
        let twice = r#"{"properties":{"p":{"type":"string","x-mcp-header":"A"},"q":{"type":"string","x-mcp-header":"a"}}}"#;
        check(twice, Some("is there twice"));
        let elsewhere = r#"{"type":"string","x-mcp-header":"A"}"#;
        check(elsewhere, Some("is on no property"));
        check(&property(&format!(r#"{{"items":{elsewhere}}}"#)), Some("is on no property"));
        check(&format!(r#"{{"oneOf":[{{"properties":{{"p":{elsewhere}}}}}]}}"#), Some("is on no property"));
        check(&format!(r#"{{"$defs":{{"d":{elsewhere}}}}}"#), Some("is on no property"));
    }
}
