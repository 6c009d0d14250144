//! Faithful transport: the provider gets the bytes that the client sent, and the client gets the bytes that the
//! provider answered.

use std::io::Write as _;

use bytes::Bytes;
use outlast_core::{envelope::unit::Unit, journal::State};
use outlast_mock::{self as mock, Encoding};
use serde_json::{Value, json};

use crate::{
    client::{ALL, Api, Ask, capped, every, with},
    rig::{ANTHROPIC_KEY, GEMINI_KEY, HOUSE_KEY, OPENAI_KEY, Rig, limit},
    scripted::{self, Scripted, Then},
    stream::towards,
};

/// The key of ours that came with a request.
fn key_in(request: &str) -> &'static str {
    [OPENAI_KEY, ANTHROPIC_KEY, GEMINI_KEY, HOUSE_KEY].into_iter().find(|key| request.contains(key)).unwrap()
}

/// Bodies with all that a proxy could be tempted to touch.
fn rich(api: Api) -> Vec<String> {
    let png = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk";
    match api {
        Api::Chat | Api::Named => vec![
            format!(
                r#"{{ "model":"gpt-4o-mini" , "max_tokens":50,"n":1,
                "messages":[{{"role":"system","content":"be\u0020brief \ud83d\ude00"}},
                  {{"role":"user","content":[{{"type":"text","text":"what\tis this?"}},
                    {{"type":"image_url","image_url":{{"url":"data:image/png;base64,{png}","detail":"low"}}}}]}}],
                "tools":[{{"type":"function","function":{{"name":"look","description":"é","parameters":{{"type":"object","properties":{{"b":{{}},"a":{{}}}}}}}}}}],
                "tool_choice":"none","response_format":{{"type":"json_schema","json_schema":{{"name":"x","strict":true,"schema":{{}}}}}},
                "seed":1.0e2,"temperature":0.70,"unheard_of":{{"deep":[1,null,{{"er":-0}}]}},"metadata":{{"k":"v"}} }}
"#
            ),
            r#"{"stream":true,"stream_options":{"include_usage":true},"model":"gpt-4o-mini","messages":[{"role":"user","content":"x"}],"parallel_tool_calls":false}"#.into(),
        ],
        Api::Responses => vec![
            format!(
                r#"{{ "model":"gpt-4o-mini" , "max_output_tokens":50, "instructions":"be\u0020brief","store":false,
                "input":[{{"role":"user","content":[{{"type":"input_text","text":"what\tis this?"}},
                    {{"type":"input_image","image_url":"data:image/png;base64,{png}","detail":"low"}}]}}],
                "tools":[{{"type":"function","name":"look","description":"é","parameters":{{"type":"object","properties":{{"b":{{}},"a":{{}}}}}},"strict":true}},
                  {{"type":"custom","name":"patch","format":{{"type":"grammar","syntax":"lark","definition":"start: \"a\""}}}}],
                "tool_choice":"none","text":{{"format":{{"type":"text"}},"verbosity":"low"}},"include":["reasoning.encrypted_content"],
                "temperature":0.70,"unheard_of":{{"deep":[1,null,{{"er":-0}}]}},"metadata":{{"k":"v"}},"prompt_cache_key":"k" }}
"#
            ),
            r#"{"stream":true,"stream_options":{"include_obfuscation":false},"model":"gpt-4o-mini","input":"x","parallel_tool_calls":false}"#.into(),
        ],
        Api::Embeddings => vec![
            r#"{ "model":"text-embedding-3-small" , "input":["be\u0020brief","é"],"dimensions":8,"user":"u","unheard_of":1.50}"#
                .into(),
            r#"{"model":"text-embedding-3-small","input":[1,22,333],"encoding_format":"base64"}"#.into(),
        ],
        Api::Gemini => vec![
            format!(
                r#"{{ "contents":[{{"role":"user","parts":[{{"text":"what\tis \u0074his?"}},{{"inline_data":{{"mime_type":"image/png","data":"{png}"}}}}]}}],
                "systemInstruction":{{"parts":[{{"text":"be brief"}}]}},"generationConfig":{{"temperature":0.70,"max_output_tokens":50,"thinkingConfig":{{"thinkingBudget":0}}}},
                "tools":[{{"functionDeclarations":[{{"name":"look","parameters":{{"type":"OBJECT"}}}}]}}],
                "toolConfig":{{"functionCallingConfig":{{"mode":"NONE"}}}},"safetySettings":[],"unheard_of":[1.50,null] }}"#
            ),
            r#"{"contents":[{"parts":[{"text":"x"}]}],"generationConfig":{"maxOutputTokens":9}}"#.into(),
        ],
        Api::Messages => vec![
            format!(
                r#"{{"model":"claude-haiku-4-5","max_tokens":3000,"system":[{{"type":"text","text":"s","cache_control":{{"type":"ephemeral","ttl":"1h"}}}}],
                "thinking":{{"type":"enabled","budget_tokens":1024}},
                "messages":[{{"role":"user","content":[{{"type":"image","source":{{"type":"base64","media_type":"image/png","data":"{png}"}}}},{{"type":"text","text":"é"}}]}}],
                "tools":[{{"name":"look","input_schema":{{"type":"object"}}}}],"tool_choice":{{"type":"none"}},
                "metadata":{{"user_id":"u"}},"new_field":[ 1 , 2.50 ]}}"#
            ),
            r#"{"stream":true,"max_tokens":9,"model":"claude-haiku-4-5","messages":[{"role":"user","content":"x"}]}"#.into(),
        ],
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_request_arrives_at_the_provider_byte_for_byte_with_its_headers() {
    for api in every() {
        let rig = Rig::in_memory(mock::Options::default()).await;
        let server = rig.serve_limited(limit(Unit::CostNanoUsd, 50_000_000_000)).await;
        for body in rich(api) {
            let ask = api
                .says("")
                .bytes(body.clone())
                .target(&format!("{}?beta=true&x=%2F", api.path()))
                .label("one")
                .header("content-type", "application/json")
                .header("user-agent", "TheirSDK/2.54 (python)")
                .header("anthropic-beta", "fine-grained-2025-05-14,computer-use")
                .header("openai-organization", "org-1")
                .header("x-stainless-retry-count", "0")
                .header("x-unknown", "kept")
                .header("accept", "application/json")
                .header("accept-encoding", "gzip, br")
                .header("x-outlast-note", "ours")
                .header("x-riskkernel-run-id", "r")
                .header("cookie", "session=1")
                .header("forwarded", "for=1.2.3.4")
                .header("x-forwarded-for", "1.2.3.4")
                .header("connection", "x-hop")
                .header("x-hop", "1");
            ask.to(&server).await.ok();
            let sent = rig.mock.requests().pop().unwrap();
            assert_eq!(sent.body, body, "{api:?}");
            assert_eq!(sent.target, api.upstream_target(&ask.target));
            let mut names: Vec<&str> = sent.headers.keys().map(|n| n.as_str()).collect();
            names.sort_unstable();
            let mut wanted = vec![
                "accept",
                "accept-encoding",
                "anthropic-beta",
                "content-length",
                "content-type",
                "host",
                "openai-organization",
                "user-agent",
                "x-stainless-retry-count",
                "x-unknown",
            ];
            wanted.push(api.credential().0);
            wanted.extend((api == Api::Messages).then_some("anthropic-version"));
            wanted.sort_unstable();
            assert_eq!(names, wanted, "{api:?}");
            assert_eq!(sent.headers["accept-encoding"], "identity");
            assert_eq!(sent.headers["host"], rig.mock.addr().to_string());
            let (name, key) = api.credential();
            assert_eq!(sent.headers[name], key);
            for (name, value) in &ask.headers {
                if names.contains(&name.as_str()) && name != "accept-encoding" && name != "host" {
                    assert_eq!(sent.headers[name.as_str()], *value, "{name}");
                }
            }
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn only_the_usage_option_is_put_into_a_stream_that_did_not_ask() {
    let rig = Rig::in_memory(mock::Options::default()).await;
    let server = rig.serve().await;
    for (options, wanted) in [
        ("", r#""stream_options":{"include_usage":true},"#),
        (r#""stream_options":null,"#, r#""stream_options":{"include_usage":true},"#),
        (r#""stream_options":{"x":1},"#, r#""stream_options":{"include_usage":true,"x":1},"#),
        (r#""stream_options":{"include_usage":false},"#, r#""stream_options":{"include_usage":true},"#),
    ] {
        let body = |options: &str| {
            format!(
                r#"{{{options} "model":"gpt-4o-mini","stream":true,"messages":[{{"role":"user","content":"x"}}]}}"#
            )
        };
        Api::Chat.says("").bytes(body(options)).label(&format!("l{}", options.len())).to(&server).await.ok();
        assert_eq!(rig.mock.requests().pop().unwrap().body, body(wanted), "{options}");
    }
}

fn gzip(bytes: &[u8]) -> Bytes {
    let mut e = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::default());
    e.write_all(bytes).unwrap();
    e.finish().unwrap().into()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_compressed_request_passes_as_it_is_and_is_the_same_as_the_plain_one() {
    for api in capped() {
        let rig = Rig::in_memory(mock::Options::default()).await;
        let server = rig.serve().await;
        let body = api.body("compressed").to_string();
        let zstd = Bytes::from(zstd::encode_all(body.as_bytes(), 3).unwrap());
        let plain = api.says("compressed").label("plain").to(&server).await.ok();
        for (encoding, bytes) in [("gzip", gzip(body.as_bytes())), ("zstd", zstd)] {
            let ask = api.says("").bytes(bytes.clone()).header("content-encoding", encoding);
            let replayed = ask.clone().label(encoding).to(&server).await;
            assert!(replayed.is_replayed());
            assert_eq!(replayed.ok(), plain, "{api:?} {encoding}");
            ask.run(encoding).to(&server).await.ok();
            let sent = rig.mock.requests().pop().unwrap();
            assert_eq!(
                (&sent.body, &sent.headers["content-encoding"]),
                (&bytes, &http::HeaderValue::from_static(encoding))
            );
        }
        // One that has to be changed goes out plain.
        let stream = with(api.body("x"), json!({"stream": true, api.cap(): 7000})).to_string();
        let limited = rig.serve_limited(limit(Unit::Tokens, 2000)).await;
        let ask = api.says("").bytes(gzip(stream.as_bytes())).header("content-encoding", "gzip");
        let clamped = ask.run("small").to(&limited).await;
        let cap: u64 = clamped.header("x-outlast-clamped").unwrap().parse().unwrap();
        clamped.ok();
        let sent = rig.mock.requests().pop().unwrap();
        assert!(!sent.headers.contains_key("content-encoding"));
        let sent: Value = serde_json::from_slice(&sent.body).unwrap();
        assert_eq!(sent[api.cap()], json!(cap));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn compressed_answers_are_read_and_given_plain() {
    // An upstream that compresses although it was asked not to.
    let (json_body, key) = (
        r#"{"id":"x","choices":[{"index":0,"message":{"content":"hi"},"finish_reason":"stop"}],"usage":{"prompt_tokens":5,"completion_tokens":1,"total_tokens":6}}"#,
        "content-encoding",
    );
    for encoding in ["gzip", "zstd"] {
        let packed = match encoding {
            "gzip" => gzip(json_body.as_bytes()),
            _ => zstd::encode_all(json_body.as_bytes(), 3).unwrap().into(),
        };
        let upstream = Scripted::start_bytes(move |_| {
            let head = format!(
                "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\n{key}: {encoding}\r\ncontent-length: {}\r\n\r\n",
                packed.len()
            );
            ([head.as_bytes(), &packed].concat(), Then::Close)
        })
        .await;
        let rig = Rig::in_memory(mock::Options::default()).await;
        let server = rig.serve_with(towards(&rig, &upstream)).await;
        let answer = Api::Chat.says("x").to(&server).await;
        assert_eq!(answer.header(key), None);
        assert_eq!(answer.ok(), json_body, "{encoding}");
        let entry = server.closed("r", 1).await;
        assert_eq!(entry.call.unwrap().usage.map(|u| (u.input, u.output)), Some((5, 1)));
        let again = Api::Chat.says("x").label("b").to(&server).await;
        assert_eq!(again.ok(), json_body);
    }
    // One that compresses when it may never gets the chance.
    for api in ALL {
        let rig =
            Rig::in_memory(mock::Options { encoding: Some(Encoding::Gzip), ..mock::Options::default() })
                .await;
        let server = rig.serve().await;
        for ask in [api.says("x"), api.streams("x")] {
            let answer = ask.header("accept-encoding", "gzip").to(&server).await;
            assert_eq!(answer.header("content-encoding"), None);
            assert!(answer.text().contains("#1"), "{}", answer.text());
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_answer_comes_back_with_its_headers_and_without_those_that_are_not_the_providers() {
    let body = r#"{"id":"x","choices":[]}"#;
    let text = format!(
        "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: {}\r\nx-request-id: req_7\r\n\
         x-ratelimit-remaining: 5\r\nopenai-processing-ms: 12\r\nset-cookie: a=1\r\nx-outlast-replayed: true\r\n\
         x-outlast-run: forged\r\nconnection: x-hop\r\nx-hop: 1\r\n\r\n{body}",
        body.len()
    );
    let upstream = Scripted::start(move |_| (text.clone(), Then::Close)).await;
    let rig = Rig::in_memory(mock::Options::default()).await;
    let server = rig.serve_with(towards(&rig, &upstream)).await;
    let answer = Api::Chat.says("x").to(&server).await;
    for (name, value) in
        [("x-request-id", "req_7"), ("x-ratelimit-remaining", "5"), ("openai-processing-ms", "12")]
    {
        assert_eq!(answer.header(name), Some(value), "{name}");
    }
    for name in ["set-cookie", "x-outlast-replayed", "x-hop"] {
        assert_eq!(answer.header(name), None, "{name}");
    }
    assert_eq!(answer.header("x-outlast-run"), Some("r"));
    assert_eq!(answer.ok(), body);
    let entry = server.closed("r", 1).await;
    assert_eq!(entry.call.unwrap().upstream_request_id.as_deref(), Some("req_7"));
}

#[tokio::test(flavor = "multi_thread")]
async fn counting_tokens_and_listing_models_is_free_and_unrecorded() {
    let rig = Rig::in_memory(mock::Options::default()).await;
    let server = rig.serve_limited(limit(Unit::Calls, 0)).await;
    let count =
        Api::Messages.sends(&Api::Messages.body("how many?")).target("/v1/messages/count_tokens?beta=true");
    let counted = count.to(&server).await;
    assert!(counted.json()["input_tokens"].as_u64().unwrap() > 0);
    let models = Ask::new("GET", "/v1/models").run("r").to(&server).await;
    assert_eq!(models.json()["object"], "list");
    let claude = Ask::new("GET", "/v1/models").run("r").header("anthropic-version", "2023-06-01");
    assert_eq!(claude.to(&server).await.json()["has_more"], false);
    let keys: Vec<bool> = rig
        .mock
        .requests()
        .iter()
        .map(|r| {
            let has = |name: &str, key: &str| {
                r.headers.get(name).is_some_and(|v| v.to_str().unwrap().ends_with(key))
            };
            has("authorization", OPENAI_KEY) ^ has("x-api-key", ANTHROPIC_KEY)
        })
        .collect();
    assert_eq!(keys, [true, true, true]);
    assert_eq!(rig.mock.paid(), 0);
    assert_eq!(server.store.run_no(&outlast_core::words::id::RunId::new("r").unwrap()).unwrap(), None);
}

// Bug: an upstream's error that repeats the key it was sent was masked for the client alone.
// Consequence: the house's key stood in the journal, and in the answers of the free paths.
// Cause: the error's text was read before the mask, and the free paths had none.
#[tokio::test(flavor = "multi_thread")]
async fn the_houses_key_is_never_in_an_answer_nor_in_the_journal() {
    let echo = |request: &str| {
        let key = [OPENAI_KEY, ANTHROPIC_KEY].into_iter().find(|k| request.contains(k)).unwrap_or("none");
        format!(r#"{{"type":"error","error":{{"type":"authentication_error","message":"bad key: {key}"}}}}"#)
    };
    let upstream = Scripted::start(move |r| (scripted::json(401, &echo(r)), Then::Close)).await;
    let rig = Rig::in_memory(mock::Options::default()).await;
    let server = rig.serve_with(towards(&rig, &upstream)).await;
    for ask in [
        Api::Chat.says("x"),
        Api::Messages.says("x"),
        Api::Messages.says("x").target("/v1/messages/count_tokens"),
        Ask::new("GET", "/v1/models"),
    ] {
        let answer = ask.to(&server).await;
        assert_eq!(answer.status, 401);
        assert!(answer.text().contains("bad key: ***"), "{}", answer.text());
        let sent = upstream.requests().pop().unwrap();
        assert!(sent.contains("-the-key-of-the-house"), "{sent}");
    }
    for entry in server.entries("r") {
        assert_eq!(entry.call.unwrap().error.as_deref(), Some("bad key: ***"));
    }
    // The caller's own key is the caller's to see, and nobody's to keep.
    let own = Scripted::start(|_| {
        (scripted::json(401, r#"{"error":{"message":"bad key: sk-of-the-caller"}}"#), Then::Close)
    })
    .await;
    let passing = rig.serve_with(towards(&rig, &own)).await;
    let answer = Api::Chat.says("x").run("own").header("authorization", "Bearer sk-of-the-caller");
    assert!(answer.to(&passing).await.text().contains("bad key: sk-of-the-caller"));
    assert_eq!(passing.entries("own")[0].call.as_ref().unwrap().error.as_deref(), Some("bad key: ***"));
    // In a stream as well.
    let frame = |request: &str| {
        let key = key_in(request);
        scripted::stream(&format!(
            "event: error\ndata: {{\"type\":\"error\",\"error\":{{\"message\":\"bad key: {key}\"}}}}\n\n"
        ))
    };
    let upstream = Scripted::start(move |r| (format!("{}0\r\n\r\n", frame(r)), Then::Close)).await;
    let server = rig.serve_with(towards(&rig, &upstream)).await;
    for api in ALL {
        let answer = api.streams("x").run("s").label(api.model()).to(&server).await;
        assert!(answer.text().contains("bad key: ***"), "{api:?}: {}", answer.text());
    }
    for entry in server.entries("s") {
        assert_eq!(entry.state, State::Failed);
        assert_eq!(entry.call.unwrap().error.as_deref(), Some("bad key: ***"));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn ones_own_provider_key_is_passed_through_and_its_answers_stay_its_own() {
    for api in ALL {
        let rig = Rig::in_memory(mock::Options::default()).await;
        let server = rig.serve().await;
        for (key, header, value) in [
            ("sk-mine", "authorization", "Bearer sk-mine"),
            ("sk-theirs", "x-api-key", "sk-theirs"),
            ("sk-ant-oat", "authorization", "Bearer sk-ant-oat"),
        ] {
            let ask = api.says("same words").header(header, value);
            let answer = ask.clone().label("a").to(&server).await;
            assert!(!answer.is_replayed(), "{key}");
            let sent = rig.mock.requests().pop().unwrap();
            assert_eq!(sent.headers[header], value);
            assert!(!sent.headers.values().any(|v| v.to_str().unwrap().contains("of-the-house")));
        }
        assert_eq!(rig.mock.paid(), 3);
    }
}
