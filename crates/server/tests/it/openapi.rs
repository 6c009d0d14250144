//! docs/reference/openapi.json held to the routes, and to what they answer.

use std::collections::{BTreeMap, BTreeSet};

use outlast_core::{envelope::unit::Limits, run::Policy};
use outlast_mock as mock;
use outlast_server::{
    api::routes::FACES,
    door::{Access, Config},
    mcp::front,
};
use serde_json::{Value, json};

use crate::{
    client::{Api, Ask},
    rig::Rig,
};

/// Returns the text of the file, and the file.
fn described() -> (String, Value) {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/reference/openapi.json");
    let text = std::fs::read_to_string(path).unwrap();
    let file = serde_json::from_str(&text).unwrap();
    (text, file)
}

#[test]
fn the_openapi_file_has_the_routes_and_no_other() {
    let (text, file) = described();
    let names = |list: &Value, at: &str| -> Vec<String> {
        let all = list.as_array().into_iter().flatten().filter(|p| p["in"] == at);
        all.map(|p| p["name"].as_str().unwrap().to_owned()).collect()
    };
    let mut told = BTreeSet::new();
    for (path, item) in file["paths"].as_object().unwrap() {
        for (method, operation) in item.as_object().unwrap().iter().filter(|(m, _)| *m != "parameters") {
            let open = path.split('/').filter_map(|s| s.strip_prefix('{')?.strip_suffix('}'));
            assert_eq!(names(&item["parameters"], "path"), open.collect::<Vec<_>>(), "{path}");
            told.insert((method.to_uppercase(), path.clone(), names(&operation["parameters"], "query")));
        }
    }
    let words = |words: &[&str]| words.iter().map(|word| (*word).to_owned()).collect::<Vec<_>>();
    let ours = FACES.iter().flat_map(|face| face.routes);
    let ours = ours.map(|r| (r.method.to_string(), r.path.to_owned(), words(r.query)));
    let mcp = front::ROUTES.map(|(method, path)| (method.to_owned(), path.to_owned(), Vec::new()));
    let routes = ours.chain(mcp).collect();
    assert_eq!(told, routes);
    // Errors are described in the shape of their face, and that no credential is wanted where none is.
    for (face, route) in FACES.iter().flat_map(|face| face.routes.iter().map(move |route| (face, route))) {
        let operation = &file["paths"][route.path][route.method.as_str().to_lowercase()];
        let at = format!("{} {}", route.method, route.path);
        assert_eq!(operation["security"] == json!([]), route.who.is_anybody(), "{at}");
        let Some(error) = operation["responses"].get("default") else { continue };
        let wanted = format!("#/components/schemas/{}", face.shape.schema());
        assert_eq!(error["content"]["application/json"]["schema"]["$ref"], wanted, "{at}");
    }
    // Every schema that is named is there, and every one that is there is named.
    let schemas = file["components"]["schemas"].as_object().unwrap();
    for name in schemas.keys() {
        assert!(text.contains(&format!("#/components/schemas/{name}\"")), "{name}");
    }
    let named = text.split("#/components/schemas/").skip(1).map(|rest| rest.split('"').next().unwrap());
    named.for_each(|name| assert!(schemas.contains_key(name), "{name}"));
}

#[tokio::test(flavor = "multi_thread")]
async fn every_route_of_the_openapi_file_is_served_and_its_other_methods_are_not() {
    let (_, file) = described();
    let rig = Rig::in_memory(mock::Options::default()).await;
    let server = rig.serve().await;
    // MCP servers are configured, and here are none.
    let is_ours = |(path, _): &(&String, &Value)| !path.starts_with("/mcp/");
    for (path, item) in file["paths"].as_object().unwrap().iter().filter(is_ours) {
        let open = |segment: &str| if segment.starts_with('{') { "x" } else { segment }.to_owned();
        let target = path.split('/').map(open).collect::<Vec<_>>().join("/");
        for method in ["GET", "PUT", "POST", "DELETE", "PATCH"] {
            let told = item.get(method.to_lowercase()).is_some();
            // A segment that is a word in one route is any key's in another.
            let elsewhere = file["paths"].as_object().unwrap().iter().any(|(other, item)| {
                let fits = |(o, t): (&str, &str)| o.starts_with('{') || o == t;
                other.split('/').count() == target.split('/').count()
                    && other.split('/').zip(target.split('/')).all(fits)
                    && item.get(method.to_lowercase()).is_some()
            });
            // Bad requests, most of them: what is asked is whether somebody answers for them.
            let answer = Ask::new(method, &target).to(&server).await;
            let code = answer.header("x-outlast-code").unwrap_or_default();
            let is_none = ["no_route", "unknown_path", "read_only"].contains(&code);
            assert_eq!(!is_none, told || elsewhere, "{method} {target}: {} {code}", answer.status);
        }
    }
    for target in ["/v1/state/x", "/v1/state/x/y/z/w", "/livez/x", "/nowhere"] {
        let code = Ask::new("GET", target).to(&server).await.code();
        assert!(["no_route", "unknown_path"].contains(&code.as_str()), "{target}: {code}");
    }
}

/// Requests whose answers are held against the file, in order. `RUN` and `APPROVAL` are ids that earlier answers gave.
const STORY: &[(&str, &str, &str)] = &[
    ("PUT", "/v1/state/default/a/step:1", r#"{"n": 1}"#),
    ("PUT", "/v1/state/default/a/step:1", "2"),
    ("PUT", "/v1/state/default/a/step:1?expected_version=7", "3"),
    ("GET", "/v1/state/default/a/step:1", ""),
    ("GET", "/v1/state/default/a/none", ""),
    ("GET", "/v1/state/default/a/step:1/history?limit=1", ""),
    ("GET", "/v1/state/keys?agent=a&limit=1", ""),
    ("GET", "/v1/state/scan?agent=a&limit=1", ""),
    ("GET", "/v1/state/namespaces", ""),
    ("GET", "/v1/state/agents", ""),
    ("GET", "/v1/state/resume_point?agent=a", ""),
    (
        "POST",
        "/v1/state/transaction",
        r#"{"id": "t", "changes": [{"agent": "a", "key": "k", "delete": true}]}"#,
    ),
    ("POST", "/v1/state/transaction", r#"{"changes": []}"#),
    ("GET", "/v1/state/transaction?id=t", ""),
    ("GET", "/v1/state/keep", ""),
    ("PUT", "/v1/state/keep", r#"{"keep": 1}"#),
    ("DELETE", "/v1/state/default/a/step:1", ""),
    ("GET", "/v1/state/default/a/step:1", ""),
    (
        "POST",
        "/v1/policies",
        r#"{"name": "p", "budget": {"dollars": 2}, "approvalPolicy": {"requireFor": [{"tool": "deploy"}]}}"#,
    ),
    ("GET", "/v1/policies", ""),
    ("GET", "/v1/policies/p", ""),
    ("GET", "/v1/policies/none", ""),
    (
        "POST",
        "/v1/runs",
        r#"{"name": "k", "budget": {"loops": 2}, "policyRef": "p", "metadata": {"team": "a"}}"#,
    ),
    ("POST", "/v1/runs", r#"{"budget": 1}"#),
    ("POST", "/v1/runs/RUN/steps", ""),
    ("POST", "/v1/runs/RUN/checkpoints", r#"{"name": "c", "payload": {"at": 1}}"#),
    ("GET", "/v1/checkpoints/RUN", ""),
    ("POST", "/v1/runs/RUN/approvals", r#"{"tool": "look"}"#),
    (
        "POST",
        "/v1/runs/RUN/approvals",
        r#"{"tool": "deploy", "sideEffect": "net", "arguments": {"to": "x"}}"#,
    ),
    ("GET", "/v1/runs/RUN", ""),
    ("GET", "/v1/approvals?status=pending", ""),
    ("GET", "/v1/approvals/APPROVAL", ""),
    ("POST", "/v1/approvals/APPROVAL", r#"{"decision": "deny", "reason": "no"}"#),
    ("POST", "/v1/approvals/APPROVAL", r#"{"decision": "perhaps"}"#),
    ("POST", "/v1/runs/RUN/approve", r#"{"decision": "approve"}"#),
    ("GET", "/v1/runs/RUN/tool-calls", ""),
    ("POST", "/v1/runs/RUN/steps", ""),
    ("POST", "/v1/runs/RUN/steps", ""),
    ("GET", "/v1/runs/RUN/summary", ""),
    ("GET", "/v1/runs/RUN/entries", ""),
    ("GET", "/v1/runs/RUN/entries/1", ""),
    ("GET", "/v1/runs/RUN/entries/2", ""),
    ("PUT", "/v1/memory/facts", r#"{"namespace": "n", "key": "k", "value": "v"}"#),
    ("GET", "/v1/memory/facts?namespace=n", ""),
    ("GET", "/v1/memory", ""),
    ("GET", "/v1/memory/entry?name=x", ""),
    ("GET", "/healthz", ""),
    ("GET", "/version", ""),
    ("POST", "/v1/budgets/all/set", r#"{"limits": {"calls": 9}, "per": "day", "tag": null}"#),
    ("POST", "/v1/budgets/all/raise", r#"{"add": {"calls": 1}}"#),
    ("GET", "/v1/budgets", ""),
    ("PUT", "/v1/budgets", ""),
    ("POST", "/v1/budgets/all/remove", ""),
    ("GET", "/v1/plans", ""),
    ("GET", "/v1/spend?by=run,model", ""),
    ("GET", "/v1/spend?by=", ""),
    ("GET", "/v1/runs", ""),
    ("GET", "/v1/jobs", ""),
    ("GET", "/v1/runs/r/summary", ""),
    ("GET", "/v1/runs/none/summary", ""),
    ("GET", "/v1/runs/r/attempts", ""),
    ("GET", "/v1/runs/r/iterations", ""),
    ("GET", "/v1/runs/r/entries", ""),
    ("GET", "/v1/runs/r/entries/1", ""),
    ("GET", "/v1/runs/r/entries/1/files", ""),
    ("GET", "/v1/runs/r/resume_tax", ""),
    ("GET", "/v1/runs/r/items", ""),
    ("GET", "/v1/events", ""),
    ("GET", "/v1/events?run=r", ""),
    ("POST", "/v1/runs/r/budget", r#"{"set": {"calls": 9}}"#),
    ("POST", "/v1/runs/r/fork", r#"{"seq": 1}"#),
    ("POST", "/v1/runs/r/retry", r#"{"failed": true}"#),
    ("POST", "/v1/runs/r/stop", ""),
    ("POST", "/v1/runs/r/wake", ""),
    // Acts are entries, too.
    ("GET", "/v1/runs/r/entries", ""),
    ("POST", "/v1/runs/RUN/complete", ""),
    ("POST", "/v1/runs/RUN/cancel", ""),
];

#[tokio::test(flavor = "multi_thread")]
async fn what_the_routes_answer_is_what_the_openapi_file_describes() {
    let (_, file) = described();
    let rig = Rig::in_memory(mock::Options::default()).await;
    let access = Access { api_token: Some("the-api-token".into()), loopback: true, ..Access::default() };
    let server = rig.serve_with(Config { access, ..rig.config() }).await;
    let token = server.driven("r", Limits::default(), Policy::default()).await;
    Api::Chat.says("hello").token(&token).to(&server).await.ok();
    let mut ids: BTreeMap<&str, String> = BTreeMap::new();
    let mut faults = Vec::new();
    for (method, target, body) in STORY {
        let target = ids.iter().fold((*target).to_owned(), |target, (name, id)| target.replace(name, id));
        let ask = Ask::new(method, &target).header("authorization", "Bearer the-api-token").bytes(*body);
        let answer = ask.to(&server).await;
        let told = answer.json();
        if let Some(id) = told["id"].as_str() {
            ids.entry(if target == "/v1/runs" { "RUN" } else { "APPROVAL" }).or_insert_with(|| id.to_owned());
        }
        let status = answer.status.as_u16().to_string();
        let responses = &operation(&file, method, &target)["responses"];
        let response = responses.get(&status).unwrap_or(&responses["default"]);
        let schema = &response["content"]["application/json"]["schema"];
        assert!(schema.is_object(), "{method} {target} answers {status}: {}", answer.text());
        let mut differences = Vec::new();
        differ(&file, schema, &told, "", &mut differences);
        faults.extend(differences.iter().map(|what| format!("{method} {target} {status}: {what}")));
    }
    assert!(faults.is_empty(), "{}", faults.join("\n"));
}

/// Finds the operation that describes a request: of the paths that fit, the one with the most words.
fn operation<'a>(file: &'a Value, method: &str, target: &str) -> &'a Value {
    let path: Vec<&str> = target.split('?').next().unwrap().split('/').collect();
    let fits = |described: &str| {
        let segments: Vec<&str> = described.split('/').collect();
        let one = |(wanted, had): (&&str, &&str)| wanted.starts_with('{') || wanted == had;
        segments.len() == path.len() && segments.iter().zip(&path).all(one)
    };
    let words = |described: &str| described.split('/').filter(|segment| !segment.starts_with('{')).count();
    let paths = file["paths"].as_object().unwrap().iter().filter(|(described, _)| fits(described));
    let best =
        paths.max_by_key(|(described, item)| (item.get(method.to_lowercase()).is_some(), words(described)));
    let item = best.unwrap_or_else(|| panic!("{method} {target} is not described")).1;
    // What is told where a method is none of the route's is told as by its others.
    item.get(method.to_lowercase()).unwrap_or_else(|| &item["get"])
}

/// Collects where `value` differs from `schema`, and what it has that the schema does not name.
fn differ(file: &Value, schema: &Value, value: &Value, at: &str, out: &mut Vec<String>) {
    let schema = resolved(file, schema);
    for words in ["oneOf", "anyOf"] {
        let Some(ways) = schema[words].as_array() else { continue };
        let fits = |way: &Value| {
            let mut differences = Vec::new();
            differ(file, way, value, at, &mut differences);
            differences.is_empty()
        };
        if !ways.iter().any(fits) {
            out.push(format!("{at} is {value}, and fits {words} of none"));
        }
    }
    let is = |word: &Value| match word.as_str().unwrap() {
        "object" => value.is_object(),
        "array" => value.is_array(),
        "string" => value.is_string(),
        "boolean" => value.is_boolean(),
        "null" => value.is_null(),
        "integer" => value.is_i64() || value.is_u64(),
        "number" => value.is_number(),
        other => panic!("{other}"),
    };
    let types = match &schema["type"] {
        Value::Array(types) => types.clone(),
        Value::Null => Vec::new(),
        one => vec![one.clone()],
    };
    if !types.is_empty() && !types.iter().any(is) {
        out.push(format!("{at} is {value}, and {} is described", schema["type"]));
    }
    if schema["enum"].as_array().is_some_and(|words| !words.contains(value)) {
        out.push(format!("{at} is {value}, and one of {} is described", schema["enum"]));
    }
    if schema.get("const").is_some_and(|word| word != value) {
        out.push(format!("{at} is {value}, and {} is described", schema["const"]));
    }
    for (n, element) in value.as_array().into_iter().flatten().enumerate() {
        differ(file, &schema["items"], element, &format!("{at}[{n}]"), out);
    }
    let (mut members, mut wanted) = (BTreeMap::new(), BTreeSet::new());
    gather(file, schema, &mut members, &mut wanted);
    let Some(had) = value.as_object() else { return };
    let missing = wanted.iter().filter(|name| !had.contains_key(**name));
    out.extend(missing.map(|name| format!("{at} lacks {name}")));
    for (name, value) in had {
        let at = format!("{at}.{name}");
        match (members.get(name.as_str()), &schema["additionalProperties"]) {
            (Some(member), _) => differ(file, member, value, &at, out),
            (None, Value::Object(_)) => differ(file, &schema["additionalProperties"], value, &at, out),
            (None, Value::Bool(true)) => {}
            // What has no members named is any object.
            (None, _) if members.is_empty() => {}
            (None, _) => out.push(format!("{at} is not described")),
        }
    }
}

fn resolved<'a>(file: &'a Value, schema: &'a Value) -> &'a Value {
    match schema["$ref"].as_str() {
        Some(name) => file.pointer(name.strip_prefix('#').unwrap()).unwrap(),
        None => schema,
    }
}

/// Gathers the members of an object, and the names of those that it always has.
fn gather<'a>(
    file: &'a Value,
    schema: &'a Value,
    members: &mut BTreeMap<&'a str, &'a Value>,
    wanted: &mut BTreeSet<&'a str>,
) {
    let schema = resolved(file, schema);
    members
        .extend(schema["properties"].as_object().into_iter().flatten().map(|(name, s)| (name.as_str(), s)));
    wanted.extend(schema["required"].as_array().into_iter().flatten().filter_map(Value::as_str));
    for part in schema["allOf"].as_array().into_iter().flatten() {
        gather(file, part, members, wanted);
    }
}
