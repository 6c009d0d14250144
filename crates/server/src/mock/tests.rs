use std::{io::Write, time::Instant};

use bytes::Bytes;
use http::{HeaderMap, Request, Response, StatusCode};
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper_util::{
    client::legacy::{Client, connect::HttpConnector},
    rt::TokioExecutor,
};
use serde_json::{Value, json};

use super::*;

const CHAT: &str = "/v1/chat/completions";
const RESPONSES: &str = "/v1/responses";
const MESSAGES: &str = "/v1/messages";

struct Provided {
    handle: Handle,
    client: Client<HttpConnector, Full<Bytes>>,
}

struct Answered {
    status: StatusCode,
    headers: HeaderMap,
    body: Bytes,
}

async fn provide(options: Options) -> Provided {
    let client = Client::builder(TokioExecutor::new()).build_http();
    Provided { handle: start(options).await.unwrap(), client }
}

impl Provided {
    async fn send(
        &self,
        method: &str,
        path: &str,
        headers: &[(&str, &str)],
        body: Vec<u8>,
    ) -> Response<Incoming> {
        let mut request = Request::builder().method(method).uri(self.handle.base_url() + path);
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        self.client.request(request.body(Full::from(body)).unwrap()).await.unwrap()
    }

    /// Sends a body as its dialect's client does.
    async fn post(&self, path: &str, body: &Value) -> Response<Incoming> {
        let key =
            if path == CHAT { ("authorization", "Bearer sk-secret") } else { ("x-api-key", "sk-secret") };
        self.send("POST", path, &[key, ("anthropic-version", "2023-06-01")], body.to_string().into()).await
    }

    async fn ask(&self, path: &str, body: &Value) -> Answered {
        Answered::read(self.post(path, body).await).await
    }
}

impl Answered {
    async fn read(response: Response<Incoming>) -> Self {
        let (head, body) = response.into_parts();
        Self { status: head.status, headers: head.headers, body: body.collect().await.unwrap().to_bytes() }
    }

    fn text(&self) -> &str {
        std::str::from_utf8(&self.body).unwrap()
    }

    fn json(&self) -> Value {
        serde_json::from_slice(&self.body).unwrap()
    }

    /// The `data` of a stream's frames, `[DONE]` left out.
    fn events(&self) -> Vec<Value> {
        let data = self.text().lines().filter_map(|line| line.strip_prefix("data: "));
        data.filter(|data| *data != "[DONE]").map(|data| serde_json::from_str(data).unwrap()).collect()
    }
}

fn says(text: &str) -> Value {
    json!({"model": "m", "max_tokens": 5000, "messages": [{"role": "user", "content": text}]})
}

fn with(mut body: Value, more: Value) -> Value {
    body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    body
}

/// The text of a whole answer.
fn said(path: &str, answer: &Value) -> String {
    let text = match path {
        CHAT => &answer["choices"][0]["message"]["content"],
        _ => &answer["content"][0]["text"],
    };
    text.as_str().unwrap().into()
}

#[tokio::test]
async fn the_same_request_gets_the_same_answers_in_the_same_order() {
    for path in [CHAT, MESSAGES] {
        for stream in [false, true] {
            let request = with(says("hello"), json!({"stream": stream}));
            let (one, other) = (provide(Options::default()).await, provide(Options::default()).await);
            let first = one.ask(path, &request).await;
            let second = one.ask(path, &request).await;
            assert!(first.text().contains("#1") && second.text().contains("#2"), "{}", second.text());
            assert_ne!(first.body, second.body);
            assert_eq!(first.body, other.ask(path, &request).await.body);
            assert_eq!(second.body, other.ask(path, &request).await.body);
            assert!(other.ask(path, &says("another")).await.text().contains("#1"));
            assert_eq!((one.handle.paid(), other.handle.paid()), (2, 3));
        }
    }
}

#[tokio::test]
async fn usage_follows_from_the_bytes_of_request_and_answer() {
    let provided = provide(Options::default()).await;
    let request = says("mock: reply one two three four");
    let input = (request.to_string().len() as u64).div_ceil(4);
    let usage = &provided.ask(CHAT, &request).await.json()["usage"];
    assert_eq!(usage["prompt_tokens"], input);
    assert_eq!(usage["completion_tokens"], 4);
    assert_eq!(usage["total_tokens"], input + 4);
    let usage = &provided.ask(MESSAGES, &request).await.json()["usage"];
    assert_eq!((&usage["input_tokens"], &usage["output_tokens"]), (&json!(input), &json!(4)));
    let counted = provided.ask("/v1/messages/count_tokens", &request).await;
    assert_eq!(counted.json(), json!({"input_tokens": input}));
    assert_eq!(provided.handle.paid(), 2);
}

#[tokio::test]
async fn a_cap_bounds_what_is_billed_unless_the_request_asks_for_an_overrun() {
    let options = Options { usage: Some("1000,500".parse().unwrap()), ..Options::default() };
    let (free, fixed) = (provide(Options::default()).await, provide(options).await);
    let check = async |provided: &Provided, text: &str, more: Value, input, output, stop: &str| {
        let answer = provided.ask(CHAT, &with(says(text), more)).await.json();
        let usage = &answer["usage"];
        if let Some(input) = input {
            assert_eq!(usage["prompt_tokens"], json!(input), "{text}");
        }
        assert_eq!(usage["completion_tokens"], json!(output), "{text}");
        assert_eq!(answer["choices"][0]["finish_reason"], stop, "{text}");
    };
    let none = None::<u64>;
    check(&free, "mock: tokens 40", json!({}), none, 40, "stop").await;
    check(&free, "mock: tokens 40", json!({"max_tokens": 10}), none, 10, "length").await;
    check(&free, "mock: tokens 40", json!({"max_tokens": 10, "n": 3}), none, 30, "length").await;
    check(&free, "mock: tokens 40", json!({"reasoning_effort": "low"}), none, 47, "stop").await;
    check(&fixed, "hello", json!({}), Some(1000), 500, "stop").await;
    check(&fixed, "hello", json!({"max_tokens": 100}), Some(1000), 100, "stop").await;
    check(&fixed, "mock: usage 7,900", json!({"max_tokens": 100}), Some(7), 900, "stop").await;
}

#[tokio::test]
async fn an_openai_stream_tells_its_usage_only_when_asked() {
    let provided = provide(Options::default()).await;
    let request = with(says("mock: tokens 5"), json!({"stream": true}));
    let silent = provided.ask(CHAT, &request).await;
    assert!(silent.text().ends_with("data: [DONE]\n\n"));
    assert!(!silent.text().contains("usage"));
    assert_eq!(silent.events().len(), 5 + 2);

    let telling = with(request, json!({"stream_options": {"include_usage": true}}));
    let telling = provided.ask(CHAT, &telling).await.events();
    let (last, others) = telling.split_last().unwrap();
    assert!(others.iter().all(|chunk| chunk["usage"].is_null() && chunk.get("usage").is_some()));
    assert_eq!((&last["choices"], &last["usage"]["completion_tokens"]), (&json!([]), &json!(5)));
}

#[tokio::test]
async fn a_stream_says_what_a_whole_answer_says() {
    let provided = provide(Options::default()).await;
    let request = says("mock: reply a streamed answer, said in many pieces");
    let streamed = with(request.clone(), json!({"stream": true}));
    for path in [CHAT, MESSAGES] {
        let whole = said(path, &provided.ask(path, &request).await.json());
        let events = provided.ask(path, &streamed).await.events();
        let pieces = events.iter().filter_map(|event| match path {
            CHAT => event["choices"][0]["delta"]["content"].as_str(),
            _ => event["delta"]["text"].as_str(),
        });
        assert_eq!(pieces.collect::<String>(), whole);
    }
}

#[tokio::test]
async fn an_anthropic_stream_thinks_speaks_and_sums_up() {
    let provided = provide(Options::default()).await;
    let thinking = json!({"stream": true, "thinking": {"type": "enabled", "budget_tokens": 1024}});
    let answer = provided.ask(MESSAGES, &with(says("mock: reply yes"), thinking)).await;
    let events = answer.events();
    let named = answer.text().lines().filter_map(|line| line.strip_prefix("event: ")).collect::<Vec<_>>();
    assert!(named.iter().zip(&events).all(|(name, event)| *name == event["type"]));
    let kinds = events.iter().map(|event| match event["type"].as_str().unwrap() {
        "content_block_delta" => event["delta"]["type"].as_str().unwrap(),
        "content_block_start" => event["content_block"]["type"].as_str().unwrap(),
        kind => kind,
    });
    let mut kinds = kinds.collect::<Vec<_>>();
    kinds.dedup();
    let expected = "message_start thinking thinking_delta signature_delta content_block_stop \
                    text ping text_delta content_block_stop message_delta message_stop";
    assert_eq!(kinds.join(" "), expected);
    assert_eq!(events[0]["message"]["usage"]["output_tokens"], 1);
    let usage = &events[events.len() - 2]["usage"];
    assert_eq!(
        (&usage["output_tokens"], &usage["output_tokens_details"]["thinking_tokens"]),
        (&json!(8), &json!(7))
    );
    assert_eq!(usage["input_tokens"], events[0]["message"]["usage"]["input_tokens"]);
}

#[tokio::test]
async fn a_marked_prefix_is_billed_as_written_and_then_as_read() {
    let provided = provide(Options::default()).await;
    let mark = |ttl| json!({"type": "ephemeral", "ttl": ttl});
    let block =
        |text: &str, ttl| json!({"type": "text", "text": text.repeat(100), "cache_control": mark(ttl)});
    let request = with(says("hello"), json!({"system": [block("a", "1h"), block("b", "5m")]}));
    let columns = async || {
        let usage = &provided.ask(MESSAGES, &request).await.json()["usage"];
        let column = |name: &str| usage.pointer(name).unwrap().as_u64().unwrap();
        let written =
            ["/cache_creation/ephemeral_1h_input_tokens", "/cache_creation/ephemeral_5m_input_tokens"];
        assert_eq!(column("/cache_creation_input_tokens"), column(written[0]) + column(written[1]));
        (column("/input_tokens"), column("/cache_read_input_tokens"), column(written[0]), column(written[1]))
    };
    let (input, read, hour, minutes) = columns().await;
    assert!(read == 0 && hour > 25 && minutes == hour, "{read} {hour} {minutes}");
    let (input_again, read, hour_again, minutes_again) = columns().await;
    assert_eq!((hour_again, minutes_again), (0, 0));
    assert_eq!(input_again + read, input + hour + minutes);
    assert!(read >= hour + minutes);
}

#[tokio::test]
async fn a_script_calls_its_tools_turn_by_turn() {
    let script = "go\nmock: tool ls {\"dir\": \"/\"}\nmock: tool ls {\"dir\": \"/tmp\"}\nmock: reply done";
    let provided = provide(Options::default()).await;
    let tools = json!({"tools": [{"type": "function", "function": {"name": "ls"}}]});
    let mut request = with(says(script), tools);
    for dir in ["/", "/tmp"] {
        let choice = provided.ask(CHAT, &request).await.json()["choices"][0].clone();
        assert_eq!(choice["finish_reason"], "tool_calls");
        let call = &choice["message"]["tool_calls"][0];
        let args = serde_json::from_str::<Value>(call["function"]["arguments"].as_str().unwrap()).unwrap();
        assert_eq!((&call["function"]["name"], args), (&json!("ls"), json!({"dir": dir})));
        let messages = request["messages"].as_array_mut().unwrap();
        messages.push(choice["message"].clone());
        messages.push(json!({"role": "tool", "tool_call_id": call["id"], "content": "mock: hang"}));
    }
    assert_eq!(said(CHAT, &provided.ask(CHAT, &request).await.json()), "done");

    // The system text's script counts over the whole conversation.
    let mut request = with(says("go"), json!({"tools": [{"name": "ls"}], "system": script}));
    for dir in ["/", "/tmp"] {
        let answer = provided.ask(MESSAGES, &request).await.json();
        assert_eq!(answer["stop_reason"], "tool_use");
        assert_eq!(answer["content"][0]["input"], json!({"dir": dir}));
        let result =
            json!({"type": "tool_result", "tool_use_id": answer["content"][0]["id"], "content": "x"});
        let reminder = json!({"type": "text", "text": "a reminder"});
        let messages = request["messages"].as_array_mut().unwrap();
        messages.push(json!({"role": "assistant", "content": answer["content"]}));
        messages.push(json!({"role": "user", "content": [result, reminder]}));
    }
    assert_eq!(said(MESSAGES, &provided.ask(MESSAGES, &request).await.json()), "done");
}

#[tokio::test]
async fn a_script_calls_no_tool_that_is_not_offered() {
    let provided = provide(Options::default()).await;
    let request = says("mock: tool ls\nmock: reply done");
    assert_eq!(said(MESSAGES, &provided.ask(MESSAGES, &request).await.json()), "done");
    let barred = json!({"tools": [{"name": "ls"}], "tool_choice": {"type": "none"}});
    let barred = with(request.clone(), barred);
    assert_eq!(said(MESSAGES, &provided.ask(MESSAGES, &barred).await.json()), "done");
    let refused = provided.ask(MESSAGES, &with(request, json!({"tools": [{"name": "cat"}]}))).await;
    assert_eq!(refused.status, StatusCode::BAD_REQUEST);
    assert!(refused.text().contains("offers [\\\"cat\\\"]"), "{}", refused.text());
}

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

#[tokio::test]
async fn a_truncated_answer_is_paid_begins_well_and_breaks_off() {
    let provided = provide(Options::default()).await;
    for path in [CHAT, MESSAGES] {
        for stream in [false, true] {
            let request = with(says("mock: truncate"), json!({"stream": stream}));
            let mut response = provided.post(path, &request).await;
            assert_eq!(response.status(), StatusCode::OK);
            let first = response.body_mut().frame().await.unwrap().unwrap().into_data().unwrap();
            assert!(first.starts_with(if stream { b"" } else { b"{" }) && !first.is_empty());
            let rest = response.into_body().collect().await;
            assert!(rest.is_err(), "{path} ended cleanly");
        }
    }
    assert_eq!(provided.handle.paid(), 4);
}

#[tokio::test]
async fn garbage_is_a_paid_200_that_is_not_json() {
    let provided = provide(Options::default()).await;
    let answer = provided.ask(MESSAGES, &says("mock: garbage")).await;
    assert_eq!(answer.status, StatusCode::OK);
    assert!(serde_json::from_slice::<Value>(&answer.body).is_err());
    assert_eq!(provided.handle.paid(), 1);
}

#[tokio::test]
async fn a_hanging_answer_begins_and_a_silent_one_does_not() {
    let provided = provide(Options::default()).await;
    let mut response = provided.post(CHAT, &with(says("mock: hang"), json!({"stream": true}))).await;
    let mut seen = Vec::new();
    // The frames before the hang are half of the stream's six.
    while seen.windows(2).filter(|pair| pair == b"\n\n").count() < 3 {
        seen.extend(response.body_mut().frame().await.unwrap().unwrap().into_data().unwrap());
    }
    let briefly = Duration::from_millis(20);
    assert!(tokio::time::timeout(briefly, response.body_mut().frame()).await.is_err());
    assert_eq!(provided.handle.paid(), 1);

    let silent = says("mock: silent");
    assert!(tokio::time::timeout(briefly, provided.post(CHAT, &silent)).await.is_err());
    assert_eq!(provided.handle.paid(), 1);
}

#[tokio::test]
async fn a_paid_request_is_on_the_log_before_its_first_byte() {
    let dir = tempfile::tempdir().unwrap();
    let log = dir.path().join("paid.jsonl");
    let hour = Duration::from_secs(3600);
    let provided = provide(Options { latency: hour, log: Some(log.clone()), ..Options::default() }).await;
    let request = with(says("hello"), json!({"stream": true}));
    let line = {
        let answer = std::pin::pin!(provided.post(MESSAGES, &request));
        let logged = std::pin::pin!(async {
            loop {
                let text = std::fs::read_to_string(&log).unwrap();
                if !text.is_empty() {
                    return text;
                }
                tokio::task::yield_now().await;
            }
        });
        tokio::select! {
            _ = answer => panic!("answered at once"),
            line = logged => line,
        }
    };
    let line: Value = serde_json::from_str(line.strip_suffix('\n').unwrap()).unwrap();
    let known = ["n", "dialect", "model", "stream", "occurrence", "credential", "bytes", "output_tokens"];
    let known = known.map(|name| line[name].clone());
    let bytes = request.to_string().len();
    assert_eq!(json!(known), json!([1, "anthropic", "m", true, 1, "sk-sec", bytes, 3]));
    assert_eq!(line["input_tokens"], bytes.div_ceil(4));
    assert_eq!(line["digest"].as_str().unwrap().len(), 64);
    assert!(line["at_ms"].as_u64().unwrap() > 1_700_000_000_000);

    // A later provider goes on in the same file.
    let provided = provide(Options { log: Some(log.clone()), ..Options::default() }).await;
    assert_eq!(provided.ask(CHAT, &says("hello")).await.status, StatusCode::OK);
    assert_eq!(provided.ask(CHAT, &says("mock: status 500")).await.status, 500);
    assert_eq!(std::fs::read_to_string(&log).unwrap().lines().count(), 2);
}

#[tokio::test]
async fn latency_is_the_time_to_the_first_byte() {
    let provided = provide(Options { latency: Duration::from_secs(3600), ..Options::default() }).await;
    let begun = Instant::now();
    assert_eq!(provided.ask(CHAT, &says("mock: latency 30ms")).await.status, StatusCode::OK);
    assert!(begun.elapsed() >= Duration::from_millis(30));
}

#[tokio::test]
async fn it_ends_at_its_shutdown_though_clients_still_wait() {
    let listener = TcpListener::bind(("127.0.0.1", 0)).await.unwrap();
    let addr = listener.local_addr().unwrap();
    let (stop, stopped) = tokio::sync::oneshot::channel::<()>();
    let server = tokio::spawn(serve(listener, Options::default(), stopped));
    let client: Client<HttpConnector, Full<Bytes>> = Client::builder(TokioExecutor::new()).build_http();
    let body = with(says("mock: hang"), json!({"stream": true})).to_string();
    let request = Request::post(format!("http://{addr}{CHAT}")).header("authorization", "Bearer k");
    let response = client.request(request.body(Full::from(body)).unwrap()).await.unwrap();
    stop.send(()).unwrap();
    assert!(server.await.unwrap().is_ok());
    assert!(response.into_body().collect().await.is_err());
}

#[tokio::test]
async fn a_log_that_cannot_be_opened_is_an_error_that_names_it() {
    let dir = tempfile::tempdir().unwrap();
    let log = dir.path().join("missing").join("paid.jsonl");
    let error = start(Options { log: Some(log.clone()), ..Options::default() }).await.unwrap_err();
    assert!(error.to_string().contains(log.to_str().unwrap()), "{error}");
}

#[tokio::test]
async fn a_response_is_kept_and_gone_on_from() {
    let provided = provide(Options::default()).await;
    let ask = async |body: Value| {
        let answered = provided.ask(RESPONSES, &with(json!({"model": "m"}), body)).await;
        assert_eq!(answered.status, StatusCode::OK, "{}", answered.text());
        answered
    };
    let tools = json!([{"type": "function", "name": "look"}, {"type": "custom", "name": "patch"}]);
    let script = "mock: tool look {\"at\": 1}\nmock: tool patch {}\nmock: reply all is well";
    let first = ask(json!({"input": script, "tools": tools, "reasoning": {"effort": "low"}})).await.json();
    assert_eq!((&first["status"], &first["output"][0]["type"]), (&json!("completed"), &json!("reasoning")));
    let call = &first["output"][1];
    assert_eq!((&call["type"], &call["arguments"]), (&json!("function_call"), &json!("{\"at\": 1}")));
    assert!(first["usage"]["output_tokens_details"]["reasoning_tokens"].as_u64() > Some(0));
    let result =
        |kind: &str, call: &Value| json!([{"type": kind, "call_id": call["call_id"], "output": "fine"}]);
    let second = ask(json!({
        "previous_response_id": first["id"], "tools": tools, "stream": true,
        "input": result("function_call_output", call),
    }))
    .await;
    let events = second.events();
    let kinds: Vec<&str> = events.iter().map(|e| e["type"].as_str().unwrap()).collect();
    assert_eq!((kinds[0], *kinds.last().unwrap()), ("response.created", "response.completed"));
    assert!(events.iter().enumerate().all(|(n, e)| e["sequence_number"] == n), "{kinds:?}");
    let ended = &events.last().unwrap()["response"];
    let patch = &ended["output"][0];
    assert_eq!((&patch["type"], &patch["input"]), (&json!("custom_tool_call"), &json!("{}")));
    let third = ask(json!({
        "previous_response_id": ended["id"], "tools": tools,
        "input": result("custom_tool_call_output", patch),
    }))
    .await
    .json();
    assert_eq!(third["output"][0]["content"][0]["text"], "all is well");
    assert!(third["usage"]["input_tokens"].as_u64() > first["usage"]["input_tokens"].as_u64());
    for (more, expected) in [
        (json!({"max_tokens": 20}), "unknown parameters"),
        (json!({"max_output_tokens": 15}), "wanted at least 16, had 15"),
        (json!({"input": [{"role": "tool", "content": "x"}]}), "wanted a role of"),
    ] {
        let refused = provided.ask(RESPONSES, &with(json!({"model": "m", "input": "x"}), more)).await;
        assert_eq!(refused.status, StatusCode::BAD_REQUEST);
        assert!(refused.text().contains(expected), "{}", refused.text());
    }
    let cut = ask(json!({"input": "mock: tokens 40", "max_output_tokens": 20, "store": false})).await.json();
    assert_eq!(cut["incomplete_details"]["reason"], "max_output_tokens");

    let about = async |method, id: &Value, more: &str| {
        let path = format!("{RESPONSES}/{}{more}", id.as_str().unwrap());
        Answered::read(provided.send(method, &path, &[("x-api-key", "k")], Vec::new()).await).await
    };
    assert_eq!(about("GET", &first["id"], "").await.json(), first);
    assert_eq!(about("GET", &first["id"], "/input_items").await.json()["data"][0]["content"], script);
    assert_eq!(about("GET", &cut["id"], "").await.status, StatusCode::NOT_FOUND);
    assert_eq!(about("DELETE", &first["id"], "").await.json()["deleted"], true);
    assert_eq!(about("GET", &first["id"], "").await.status, StatusCode::NOT_FOUND);
    assert_eq!(provided.handle.paid(), 4);
}

#[tokio::test]
async fn embeddings_are_vectors_that_differ_each_time_they_are_paid_for() {
    const EMBEDDINGS: &str = "/v1/embeddings";
    let provided = provide(Options::default()).await;
    let body = |more: Value| {
        let mut body = json!({"model": "text-embedding-3-small", "input": ["one", "two"]});
        body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        body
    };
    let first = provided.ask(EMBEDDINGS, &body(json!({"dimensions": 40}))).await.json();
    let again = provided.ask(EMBEDDINGS, &body(json!({"dimensions": 40}))).await.json();
    assert_eq!(first["data"].as_array().map(Vec::len), Some(2));
    assert_eq!(first["data"][1]["embedding"].as_array().map(Vec::len), Some(40));
    assert_ne!(first["data"][0]["embedding"], first["data"][1]["embedding"]);
    assert_ne!(first["data"], again["data"]);
    assert_eq!(first["usage"]["prompt_tokens"], first["usage"]["total_tokens"]);
    let packed = provided.ask(EMBEDDINGS, &body(json!({"encoding_format": "base64"}))).await.json();
    assert_eq!(packed["data"][0]["embedding"].as_str().map(str::len), Some(88));
    for bad in
        [json!({"stream": true}), json!({"input": []}), json!({"max_tokens": 5}), json!({"dimensions": 0})]
    {
        assert_eq!(provided.ask(EMBEDDINGS, &body(bad.clone())).await.status, 400, "{bad}");
    }
    assert_eq!(provided.handle.paid(), 3);
}
