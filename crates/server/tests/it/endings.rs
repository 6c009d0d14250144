//! Ends of streams: which answers are whole and replayed, and which broke off and are asked for again.

use outlast_core::{journal::State, words::usage::Usage};
use outlast_mock as mock;
use serde_json::json;

use crate::{
    client::{Answer, Api, Ask, with},
    rig::Rig,
    scripted::{Scripted, Then},
    stream::towards,
};

/// End of the stream's transport.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Transport {
    /// The last chunk came.
    Ends,
    /// The connection was closed in the middle.
    Breaks,
}
use Transport::*;

/// Outcome of a stream.
#[derive(Clone, Copy, Debug)]
enum Wanted {
    /// Done, and replayed byte by byte: settled by its usage of input and output tokens, or at its reservation.
    Whole(Option<(u64, u64)>),
    /// Failed, and asked for again. An error frame of Outlast's follows what came.
    Broken,
    /// Failed by the provider's own error, which the client gets and nothing more.
    Refused,
}
use Wanted::*;

fn ask(api: Api) -> Ask {
    match api {
        Api::Chat => {
            let more = json!({"stream": true, "stream_options": {"include_usage": true}});
            Api::Chat.sends(&with(Api::Chat.body("x"), more))
        }
        api => api.streams("x"),
    }
}

async fn check(name: &str, api: Api, body: &[u8], transport: Transport, wanted: Wanted) {
    let head = "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n";
    let size = format!("{:x}\r\n", body.len());
    let end = if transport == Ends { &b"\r\n0\r\n\r\n"[..] } else { b"\r\n" };
    let all = [head.as_bytes(), size.as_bytes(), body, end].concat();
    let upstream = Scripted::start_bytes(move |_| (all.clone(), Then::Close)).await;
    let rig = Rig::in_memory(mock::Options::default()).await;
    let server = rig.serve_with(towards(&rig, &upstream)).await;
    let first = ask(api).label("a").to(&server).await;
    let entry = server.closed("r", 1).await;
    let second: Answer = ask(api).label("b").to(&server).await;
    let asked = upstream.requests().len();
    let text = String::from_utf8_lossy(&first.body).into_owned();
    let used = entry.call.as_ref().and_then(|call| call.usage);
    match wanted {
        Whole(tokens) => {
            assert_eq!(entry.state, State::Done, "{name}: {text}");
            assert_eq!(first.body, body, "{name}: {text}");
            assert!(!first.broken && second.is_replayed() && asked == 1, "{name}: asked {asked} times");
            assert_eq!(second.body, first.body, "{name}");
            let had = used.map(|usage: Usage| (usage.input_total(), usage.output));
            assert_eq!(had, tokens, "{name}");
            assert!(entry.spent.cost() > 0, "{name}");
        }
        Broken => {
            assert_eq!(entry.state, State::Failed, "{name}: {text}");
            // Where nothing was shown yet, the error is an answer of its own.
            assert!(text.contains("upstream_broke_off"), "{name}: {text}");
            assert!(!second.is_replayed() && asked == 2, "{name}: asked {asked} times");
        }
        Refused => {
            assert_eq!(entry.state, State::Failed, "{name}: {text}");
            assert_eq!(first.body, body, "{name}: {text}");
            assert!(!second.is_replayed() && asked == 2, "{name}: asked {asked} times");
        }
    }
}

/// Bug: a stream without `[DONE]`, or with a last event that is no valid Unicode, was whole and "broke off". Consequence:
/// an error was appended to it, and it was bought again with every life. Cause: one dialect's mark was taken for the only
/// end, and what could not be parsed was taken for what had not come.
#[tokio::test(flavor = "multi_thread")]
async fn an_answer_is_whole_where_its_facts_say_so() {
    let text = r#"data: {"choices":[{"index":0,"delta":{"content":"hi"},"finish_reason":null}]}"#;
    let stop = r#"data: {"choices":[{"index":0,"delta":{},"finish_reason":"stop"}]}"#;
    let usage =
        r#"data: {"choices":[],"usage":{"prompt_tokens":10,"completion_tokens":2,"total_tokens":12}}"#;
    let both = r#"data: {"choices":[{"index":0,"delta":{},"finish_reason":"stop"}],"usage":{"prompt_tokens":10,"completion_tokens":2}}"#;
    let zero = r#"data: {"choices":[],"usage":{"prompt_tokens":0,"completion_tokens":0}}"#;
    let done = "data: [DONE]";
    let events =
        |events: &[&str]| events.iter().map(|event| format!("{event}\n\n")).collect::<String>().into_bytes();
    let counted = Whole(Some((10, 2)));
    for (name, body, transport, wanted) in [
        ("with all marks", events(&[text, stop, usage, done]), Ends, counted),
        ("without [DONE]", events(&[text, stop, usage]), Ends, counted),
        ("without a finish reason", events(&[text, usage]), Ends, counted),
        ("with a stop alone", events(&[text, stop]), Ends, Whole(None)),
        ("with the usage on the stop", events(&[text, both]), Ends, counted),
        ("with zeros behind its usage", events(&[text, both, zero]), Ends, counted),
        (
            "without the last blank line",
            [events(&[text]), stop.as_bytes().to_vec()].concat(),
            Ends,
            Whole(None),
        ),
        ("whole before its connection broke", events(&[text, stop, usage, done]), Breaks, counted),
        ("without an end", events(&[text]), Ends, Broken),
        ("broken after the stop", events(&[text, stop]), Breaks, Broken),
        ("broken at once", Vec::new(), Ends, Broken),
        (
            "with an error chunk and [DONE]",
            events(&[text, r#"data: {"choices":[],"error":{"code":502,"message":"gone"}}"#]),
            Ends,
            Refused,
        ),
    ] {
        check(name, Api::Chat, &body, transport, wanted).await;
    }

    let start = r#"data: {"type":"message_start","message":{"id":"m","usage":{"input_tokens":10,"output_tokens":1}}}"#;
    let delta =
        r#"data: {"type":"message_delta","delta":{"stop_reason":"end_turn"},"usage":{"output_tokens":2}}"#;
    for (name, body, transport, wanted) in [
        (
            "a message",
            events(&[start, delta, "event: message_stop\ndata: {\"type\":\"message_stop\"}"]),
            Ends,
            counted,
        ),
        ("a message without message_stop", events(&[start, delta]), Ends, counted),
        (
            "a message whose end cannot be read",
            events(&[start, delta, "event: message_stop\ndata: {\"type"]),
            Ends,
            counted,
        ),
        ("a message without a stop", events(&[start]), Ends, Broken),
        (
            "an overloaded message",
            events(&[
                start,
                "event: error\ndata: {\"type\":\"error\",\"error\":{\"type\":\"overloaded_error\",\"message\":\"x\"}}",
            ]),
            Ends,
            Refused,
        ),
    ] {
        check(name, Api::Messages, &body, transport, wanted).await;
    }

    let created = r#"data: {"type":"response.created","response":{"id":"r","status":"in_progress"}}"#;
    let completed = |text: &[u8]| {
        let (head, tail) = (
            br#"data: {"type":"response.completed","response":{"id":"r","status":"completed","output":[{"id":"o","text":""#,
            br#""}],"usage":{"input_tokens":10,"output_tokens":2}}}"#,
        );
        [&events(&[created])[..], head, text, tail, b"\n\n"].concat()
    };
    for (name, body, transport, wanted) in [
        ("a response", completed(b"hi"), Ends, counted),
        ("a response with half a character", completed(br"\ud83d"), Ends, counted),
        ("a response cut inside UTF-8", completed(b"\xf0\x9f"), Ends, counted),
        (
            "a response whose end cannot be read",
            events(&[created, "event: response.completed\ndata: {]"]),
            Ends,
            Whole(None),
        ),
        ("a response without its end", events(&[created]), Ends, Broken),
        (
            "a failed response",
            events(&[
                created,
                r#"data: {"type":"response.failed","response":{"status":"failed","error":{"code":"server_error","message":"x"}}}"#,
            ]),
            Ends,
            Refused,
        ),
    ] {
        check(name, Api::Responses, &body, transport, wanted).await;
    }
}
