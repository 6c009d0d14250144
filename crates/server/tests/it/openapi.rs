//! docs/reference/openapi.json held to the routes.

use std::collections::BTreeSet;

use outlast_mock as mock;
use outlast_server::{api::routes::FACES, mcp::front};
use serde_json::Value;

use crate::{client::Ask, rig::Rig};

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
