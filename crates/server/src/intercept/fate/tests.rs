use std::sync::Arc;

use proptest::{prelude::*, sample::Index};

use super::*;
use crate::proxy::{
    named::{Named, Providers, split},
    upstream::Provider,
};

fn opened() -> Opened {
    let provider = |base: &str| Provider::new(base, None).unwrap();
    let groq = Named::new("groq".into(), Named::provider("https://api.groq.test/openai/v1", None).unwrap());
    let at = |upstream: Upstream| Ok::<_, ()>(provider(&upstream.row().base()));
    Opened::of(&Providers::new(at, vec![Arc::new(groq)]).unwrap())
}

fn ask(opened: &Opened, method: &str, host: &str, target: &str, headers: &[(&str, &str)]) -> Option<Fate> {
    let mut request = Request::builder().method(method).uri(target).header("host", host);
    for (name, value) in headers {
        request = request.header(*name, *value);
    }
    // What is no target at all does not get as far as here.
    request.body(()).ok().map(|request| fate(opened, host, 443, &request))
}

fn says(method: &str, host: &str, target: &str, headers: &[(&str, &str)]) -> String {
    match ask(&opened(), method, host, target, headers).unwrap() {
        Fate::Passes => "passes".into(),
        Fate::Known(place) => format!("{} {}", place.to.name(), place.target),
        Fate::Refused(refusal) => refusal.code().into(),
    }
}

#[test]
fn what_passes_unread_is_listed() {
    for (host, method, path) in PASSING {
        let path = if path.ends_with('/') { format!("{path}x") } else { path.to_owned() };
        assert_eq!(says(method, host, &path, &[]), "passes", "{method} {host}{path}");
        assert_eq!(says("PUT", host, &path, &[]), "unknown_path", "PUT {host}{path}");
        assert_eq!(says(method, "api.groq.test", &path, &[]), "unknown_path", "elsewhere: {path}");
        let token = [("cookie", "a=b"), ("x-api-key", "ol_x")];
        assert_eq!(says(method, host, &path, &token), "unknown_path", "with a token: {path}");
    }
    for (method, host, target, wanted) in [
        ("GET", "api.anthropic.com", "/api/oauth/profile", "passes"),
        ("HEAD", "api.anthropic.com", "/api/hello", "passes"),
        ("OPTIONS", "api.openai.com", "/v1/responses", "passes"),
        ("GET", "chatgpt.com", "/backend-api/wham/usage", "passes"),
        ("GET", "api.openai.com", "/v1/organization/costs?a=%2Fb;c", "passes"),
        ("POST", "api.anthropic.com", "/api/oauth/organizations/o/contracts/prepaid/credits", "unknown_path"),
        ("POST", "api.anthropic.com", "/api/organizations/o/dust/generate_title_and_branch", "unknown_path"),
        ("POST", "api.anthropic.com", "/v1/messages/cache_touch", "unknown_path"),
        ("POST", "api.groq.test", "/openai/v2/chat/completions", "unknown_path"),
        ("DELETE", "api.openai.com", "/v1/models/m", "unknown_path"),
        ("GET", "eu.api.openai.com", "/v1/chat/completions", "unknown_path"),
        ("POST", "eu.api.openai.com", "/v1/responses", "openai /v1/responses"),
        ("POST", "gov.chatgpt.com", "/backend-api/codex/responses", "chatgpt /v1/responses"),
    ] {
        assert_eq!(says(method, host, target, &[]), wanted, "{method} {host}{target}");
    }
    let overrides = [("x-http-method-override", "POST")];
    assert_eq!(says("GET", "api.anthropic.com", "/api/hello", &overrides), "unknown_path");
}

/// Respells a path `changes` times, each time in a way that some server reads as if it had not been.
fn respelled(path: &str, changes: &[(u8, Index)]) -> String {
    let mut path = path.to_owned();
    for (kind, index) in changes {
        let at = index.index(path.len());
        let slashes: Vec<usize> = path.match_indices('/').map(|(at, _)| at).collect();
        let slash = slashes.get(index.index(slashes.len().max(1))).copied().unwrap_or(0);
        let byte = path.as_bytes()[at];
        match kind {
            0 => path.replace_range(at..=at, &format!("%{byte:02x}")),
            1 => path.replace_range(at..=at, &format!("%{byte:02X}")),
            2 if byte.is_ascii_alphabetic() => {
                path.replace_range(at..=at, &char::from(byte ^ 0x20).to_string());
            }
            3 => path.insert(slash, '/'),
            4 => path.insert_str(slash, "/."),
            5 => path.insert_str(slash, "/x/.."),
            6 => path.insert_str(slash, "/%2e%2E/x/.."),
            7 => path.insert_str(slash, ";a=b"),
            8 => path.insert(slash, '\\'),
            9 => path.push('/'),
            10 => path.push_str("%20"),
            _ => path.push_str("?a=/b"),
        }
    }
    path
}

/// Addresses of metered calls: the host, and the path.
const METERED: [(&str, &str); 12] = [
    ("api.openai.com", "/v1/chat/completions"),
    ("api.openai.com", "/v1/responses"),
    ("api.openai.com", "/v1/embeddings"),
    ("eu.api.openai.com", "/v1/responses"),
    ("api.anthropic.com", "/v1/messages"),
    ("generativelanguage.googleapis.com", "/v1beta/models/gemini-3:generateContent"),
    ("generativelanguage.googleapis.com", "/v1alpha/models/gemini-3:streamGenerateContent"),
    ("generativelanguage.googleapis.com", "/v1/models/gemini-3:generateContent"),
    ("chatgpt.com", "/backend-api/codex/responses"),
    ("gov.chatgpt.com", "/backend-api/codex/responses"),
    ("api.groq.test", "/openai/v1/chat/completions"),
    ("api.groq.test", "/openai/v1/responses"),
];

fn changes() -> impl Strategy<Value = Vec<(u8, Index)>> {
    proptest::collection::vec((0_u8..12, any::<Index>()), 0..4)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 10_000, failure_persistence: None, ..ProptestConfig::default() })]

    /// Servers that decode, fold or clean up a path took these for calls, and nobody had metered them.
    #[test]
    fn no_respelling_of_a_metered_path_passes_a_tunnel_unmetered(
        (host, path) in proptest::sample::select(METERED.as_slice()),
        method in proptest::sample::select(["POST", "POST", "post", "PUT", "PATCH", "GET", "HEAD"].as_slice()),
        changes in changes(),
    ) {
        thread_local!(static OPENED: Opened = opened());
        let target = respelled(path, &changes);
        match OPENED.with(|opened| ask(opened, method, host, &target, &[("x-api-key", "own")])) {
            None | Some(Fate::Refused(_)) => prop_assert!(method != "POST" || !changes.is_empty()),
            Some(Fate::Passes) => prop_assert!(false, "{method} {target} passes"),
            Some(Fate::Known(place)) => {
                let routed = route(method, &place.target, facts(&place.to));
                let is_read = method == "GET" && matches!(routed, Route::Kept { .. });
                let goes_on = matches!(routed, Route::Metered(_) | Route::Refused { .. });
                prop_assert!(is_read || goes_on, "{method} {target}: {routed:?}");
                prop_assert!(method != "POST" || !changes.is_empty() || matches!(routed, Route::Metered(_)));
            }
        }
    }

    #[test]
    fn no_respelling_of_a_metered_path_passes_the_listener_unmetered(
        path in proptest::sample::select([
            "/v1/chat/completions",
            "/v1/responses",
            "/v1/embeddings",
            "/v1/messages",
            "/v1beta/models/gemini-3:generateContent",
            "/v1alpha/models/gemini-3:generateContent",
            "/u/groq/v1/chat/completions",
            "/u/groq/embeddings",
        ].as_slice()),
        is_anthropics in any::<bool>(),
        changes in changes(),
    ) {
        let target = respelled(path, &changes);
        let (_, target) = split(&target).unwrap_or(("", target.clone()));
        let facts = HeaderFacts { anthropic_version: is_anthropics, x_api_key: false };
        let routed = route("POST", &target, facts);
        prop_assert!(!matches!(routed, Route::Free { .. } | Route::Kept { .. }), "{target}: {routed:?}");
        prop_assert!(matches!(routed, Route::Metered(_)) || !changes.is_empty());
    }
}
