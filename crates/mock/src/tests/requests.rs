//! Tests of refusals, and of the encodings of requests and answers.

use super::*;

#[tokio::test]
async fn refusals_have_their_dialects_shape_and_are_not_paid() {
    let provided = provide(Options::default()).await;
    let check = async |path, status: u16, kind: &str| {
        let refused = provided.ask(path, &says(&format!("mock: status {status}"))).await;
        assert_eq!(refused.status, status);
        assert_eq!(refused.headers.contains_key("retry-after"), status == 429);
        let error = refused.json();
        assert_eq!(error["error"]["type"], kind);
        assert_eq!(error.get("type").is_some(), path == MESSAGES);
    };
    check(CHAT, 400, "invalid_request_error").await;
    check(CHAT, 429, "requests").await;
    check(CHAT, 500, "server_error").await;
    check(MESSAGES, 429, "rate_limit_error").await;
    check(MESSAGES, 500, "api_error").await;
    check(MESSAGES, 529, "overloaded_error").await;

    let twice = says("mock: status 503 2");
    for status in [503, 503, 200, 200] {
        assert_eq!(provided.ask(CHAT, &twice).await.status, status);
    }
    assert_eq!(provided.handle.paid(), 2);
    let paid = provided.handle.requests().iter().map(|request| request.paid).collect::<Vec<_>>();
    assert_eq!(paid[6..], [None, None, Some(1), Some(2)]);

    let failing = provide(Options { fail: vec!["429:1".parse().unwrap()], ..Options::default() }).await;
    assert_eq!(failing.ask(CHAT, &says("hello")).await.status, 429);
    assert_eq!(failing.handle.paid(), 0);
}

#[tokio::test]
async fn what_the_real_apis_refuse_is_refused() {
    let provided = provide(Options::default()).await;
    let check = async |path, more: Value, expected: &str| {
        let refused = provided.ask(path, &with(says("hello"), more)).await;
        assert_eq!(refused.status, StatusCode::BAD_REQUEST, "{expected}");
        assert!(refused.text().contains(expected), "{} for {expected}", refused.text());
    };
    check(CHAT, json!({"model": 1}), "invalid type").await;
    check(CHAT, json!({"messages": []}), "wanted at least one").await;
    check(CHAT, json!({"messages": [{"role": "robot"}]}), "robot").await;
    check(CHAT, json!({"stream_options": {"include_usage": true}}), "stream_options").await;
    check(CHAT, json!({"max_completion_tokens": 5}), "had both").await;
    check(CHAT, json!({"n": 0}), "wanted 1 to 128, had 0").await;
    check(RESPONSES, json!({}), "messages: unknown parameter").await;
    check(MESSAGES, json!({"max_tokens": null}), "field required").await;
    check(MESSAGES, json!({"max_tokens": 0}), "had 0").await;
    check(MESSAGES, json!({"stream": true, "stream_options": {}}), "not permitted").await;
    let thinking = json!({"thinking": {"type": "enabled", "budget_tokens": 5000}});
    check(MESSAGES, thinking, "less than max_tokens").await;
    check(CHAT, json!({"messages": [{"role": "user", "content": "mock: hnag"}]}), "hnag").await;

    let key = ("x-api-key", "k");
    let check = async |method, path, headers: &[(&str, &str)], body: &str, status: u16| {
        let answered = Answered::read(provided.send(method, path, headers, body.into()).await).await;
        assert_eq!(answered.status, status, "{}", answered.text());
        assert!(answered.json()["error"]["message"].is_string());
    };
    check("POST", CHAT, &[], "{}", 401).await;
    check("POST", MESSAGES, &[("authorization", "Bearer ")], "{}", 401).await;
    check("POST", MESSAGES, &[key], &says("no version").to_string(), 400).await;
    check("POST", CHAT, &[key], "not json", 400).await;
    check("POST", CHAT, &[key], r#"{"model": "m", "model": "m", "messages": []}"#, 400).await;
    check("GET", CHAT, &[key], "", 405).await;
    check("POST", "/v1/responses", &[key], "{}", 400).await;
    check("GET", "/v1/responses", &[key], "", 405).await;
    check("GET", "/v1/responses/resp_1", &[key], "", 404).await;
    check("POST", "/v1/images/generations", &[key], "{}", 404).await;
    assert_eq!(provided.handle.paid(), 0);
}

#[tokio::test]
async fn models_are_listed_in_both_styles() {
    let provided = provide(Options::default()).await;
    let version = ("anthropic-version", "2023-06-01");
    let openai = provided.send("GET", "/v1/models", &[("authorization", "Bearer k")], Vec::new()).await;
    let anthropic = provided.send("GET", "/v1/models", &[("x-api-key", "k"), version], Vec::new()).await;
    let (openai, anthropic) = (Answered::read(openai).await.json(), Answered::read(anthropic).await.json());
    assert_eq!((&openai["object"], &openai["data"][0]["object"]), (&json!("list"), &json!("model")));
    assert_eq!((&anthropic["has_more"], &anthropic["data"][0]["type"]), (&json!(false), &json!("model")));
}

#[tokio::test]
async fn a_request_body_is_the_same_request_in_every_encoding() {
    let provided = provide(Options::default()).await;
    let plain = says("hello").to_string().into_bytes();
    let mut gzip = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    gzip.write_all(&plain).unwrap();
    let gzip = gzip.finish().unwrap();
    let zstd = zstd::encode_all(&*plain, 0).unwrap();
    let send = async |encoding: &str, body: &[u8]| {
        let headers = [("authorization", "Bearer k"), ("content-encoding", encoding)];
        Answered::read(provided.send("POST", CHAT, &headers, body.into()).await).await
    };
    let mut digests = Vec::new();
    for (encoding, body) in [("identity", &plain), ("gzip", &gzip), ("zstd", &zstd)] {
        let answer = said(CHAT, &send(encoding, body).await.json());
        digests.push(answer.split(' ').nth(1).unwrap().to_owned());
    }
    digests.dedup();
    assert_eq!(digests.len(), 1);
    assert_eq!(send("gzip", &plain).await.status, StatusCode::BAD_REQUEST);
    assert_eq!(send("zstd", &plain).await.status, StatusCode::BAD_REQUEST);
    assert_eq!(send("br", &plain).await.status, StatusCode::UNSUPPORTED_MEDIA_TYPE);

    let received = &provided.handle.requests()[1];
    assert_eq!((&*received.body, &received.headers["content-encoding"]), (&*gzip, &"gzip".parse().unwrap()));
    assert_eq!((&*received.target, received.paid), (CHAT, Some(2)));
}

#[tokio::test]
async fn answers_are_compressed_for_those_who_accept_it() {
    let provided = provide(Options { encoding: Some(Encoding::Gzip), ..Options::default() }).await;
    let check = async |accepted: &str, stream: bool, compressed: bool| {
        let body = with(says("mock: reply yes"), json!({"stream": stream})).to_string();
        let headers = [("authorization", "Bearer k"), ("accept-encoding", accepted)];
        let answer = Answered::read(provided.send("POST", CHAT, &headers, body.into()).await).await;
        assert_eq!(answer.headers.contains_key("content-encoding"), compressed, "{accepted}");
        let mut text = String::new();
        if compressed {
            std::io::Read::read_to_string(&mut flate2::read::GzDecoder::new(&*answer.body), &mut text)
                .unwrap();
        } else {
            text.push_str(answer.text());
        }
        assert!(text.contains("yes"), "{text}");
        assert_eq!(text.ends_with("[DONE]\n\n"), stream);
    };
    for stream in [false, true] {
        check("gzip, deflate, br, zstd", stream, true).await;
        check("br, GZIP;q=0.5", stream, true).await;
        check("identity", stream, false).await;
        check("gzip;q=0", stream, false).await;
    }
}
