use std::borrow::Cow;

use bytes::Bytes;
use outlast_core::words::{ServiceTier, Usage};
use proptest::prelude::*;

use super::*;
use crate::dialect::{FrameKind, Request, bound, sse::tests::chunks};

fn parse(body: &str) -> Request {
    (DIALECT.parse)("/v1/chat/completions", body.as_bytes()).unwrap_or_else(|e| panic!("{body}: {e}"))
}

/// A request with `members` besides the two that must be there.
fn with(members: &str) -> Request {
    parse(&format!(r#"{{"model":"gpt-4.1","messages":[]{members}}}"#))
}

#[test]
fn a_request_tells_what_it_may_cost() {
    let request = parse(
        r#"{"model":"openai/o3","messages":[{"role":"user","content":"hi"},{"role":"user","content":"ho"}],
            "stream":true,"stream_options":{"include_usage":true},"n":3,"max_completion_tokens":500,
            "service_tier":"flex","temperature":0.5}"#,
    );
    assert_eq!(request.model, "openai/o3");
    assert!(request.stream && request.client_asked_usage && request.reasons && request.wants_cache_5m);
    assert_eq!((request.choices, request.cap, request.message_count), (3, Some(500), 2));
    assert_eq!(request.tier, Some(ServiceTier::Flex));
    assert_eq!((request.unpriced, request.references, request.turns), (None, false, 1));
}

#[test]
fn the_cap_is_found_in_either_field() {
    for (members, cap, field) in [
        ("", None, MAX_COMPLETION_TOKENS),
        (r#","max_tokens":7"#, Some(7), MAX_TOKENS),
        (r#","max_completion_tokens":7"#, Some(7), MAX_COMPLETION_TOKENS),
        (r#","max_tokens":null"#, None, MAX_COMPLETION_TOKENS),
        (r#","max_tokens":9,"max_completion_tokens":7"#, Some(9), MAX_COMPLETION_TOKENS),
        (r#","max_tokens":9,"max_completion_tokens":null"#, Some(9), MAX_TOKENS),
    ] {
        let request = with(members);
        assert_eq!((request.cap, request.cap_field), (cap, field), "{members}");
    }
}

#[test]
fn tiers_select_a_column_or_are_named_as_unpriced() {
    for (tier, wanted, unpriced) in [
        (r#""auto""#, None, None),
        ("null", None, None),
        (r#""default""#, Some(ServiceTier::Standard), None),
        (r#""priority""#, Some(ServiceTier::Priority), None),
        (r#""fast""#, Some(ServiceTier::Priority), None),
        (r#""warp""#, None, Some("service_tier warp")),
    ] {
        let request = with(&format!(r#","service_tier":{tier}"#));
        assert_eq!((request.tier, request.unpriced.as_deref()), (wanted, unpriced), "{tier}");
    }
}

#[test]
fn what_token_prices_do_not_cover_is_named() {
    for (members, unpriced, references) in [
        (r#","web_search_options":null"#, None, false),
        (r#","web_search_options":{"search_context_size":"high"}"#, None, false),
        (r#","web_search_options":{"search_type":"pro"}"#, Some("web_search_options.search_type"), false),
        (r#","modalities":["text","audio"]"#, Some("modalities other than text"), false),
        (r#","modalities":["text"]"#, None, false),
        (r#","tools":[{"type":"function","function":{"name":"f"}},{"type":"custom"}]"#, None, false),
        (r#","tools":[{"type":"browser_search"}]"#, Some("tools[0] browser_search"), true),
        (r#","models":["a","b"]"#, Some("models"), false),
    ] {
        let request = with(members);
        assert_eq!((request.unpriced.as_deref(), request.references), (unpriced, references), "{members}");
    }
    assert!(with(r#","prediction":{"type":"content","content":"0123456789"}"#).extra_output >= 10);
}

fn content(parts: &str) -> Request {
    parse(&format!(r#"{{"model":"gpt-5.4","messages":[{{"role":"user","content":{parts}}}]}}"#))
}

#[test]
fn text_is_bound_by_its_decoded_bytes() {
    let empty = content(r#""""#).input_bound;
    for (text, bytes) in [
        (r#""hello""#, 5),
        (r#""a\nb""#, 3),
        (r#""\u4e2d\u6587""#, 6),
        (r#""中文""#, 6),
        (r#""\ud83d\ude00""#, 4),
    ] {
        assert_eq!(content(text).input_bound - empty, bytes, "{text}");
    }
    let schema = |escaped: &str| with(&format!(r#","response_format":{{"x":"{escaped}"}}"#)).input_bound;
    assert_eq!(schema(r"\u4e2d") - schema(""), 6, "JSON that the model reads as JSON counts as escaped");
    let tools = |spaces: &str| with(&format!(r#","tools":[{{"function":{spaces}{{"a":1}}}}]"#)).input_bound;
    assert_eq!(tools(""), tools("     "), "whitespace between JSON tokens does not reach the model");
}

#[test]
fn images_count_by_their_detail_and_not_by_their_bytes() {
    let data = "A".repeat(100_000);
    let image = |detail: &str| {
        content(&format!(
            r#"[{{"image_url":{{"url":"data:image/png;base64,{data}"{detail}}},"type":"image_url"}}]"#
        ))
        .input_bound
    };
    let frame = content("[{}]").input_bound;
    for (detail, bound) in [
        ("", bound::OPENAI_IMAGE),
        (r#","detail":"high""#, bound::OPENAI_IMAGE),
        (r#","detail":"low""#, bound::OPENAI_IMAGE_LOW),
    ] {
        let had = image(detail);
        assert!((bound..bound + 100).contains(&(had - frame)), "{detail}: {had}");
    }
    let disguised = content(&format!(r#"[{{"type":"text","text":"","image_url":{{"url":"{data}"}}}}]"#));
    assert!(disguised.input_bound > 100_000, "only an image's data is left out");
}

#[test]
fn what_the_body_only_points_at_is_said() {
    for (parts, references, unpriced) in [
        (r#"[{"type":"text","text":"a"},"b"]"#, false, None),
        (r#"[{"type":"image_url","image_url":{"url":"https://x/y.png"}}]"#, false, None),
        (r#"[{"type":"file","file":{"file_id":"file-1"}}]"#, true, None),
        (r#"[{"type":"video_url","video_url":{"url":"https://x"}}]"#, true, None),
        (
            r#"[{"type":"input_audio","input_audio":{"data":"AAAA","format":"wav"}}]"#,
            false,
            Some("input_audio"),
        ),
    ] {
        let request = content(parts);
        assert_eq!((request.references, request.unpriced.as_deref()), (references, unpriced), "{parts}");
    }
}

#[test]
fn a_bad_request_names_its_field() {
    for (body, message) in [
        ("[]", "the body is an array, wanted a JSON object"),
        ("", "the body is not JSON: wanted a value at byte 0, had the end of the body"),
        (r#"{"messages":[]}"#, "`model` is missing"),
        (r#"{"model":"m"}"#, "`messages` is missing"),
        (r#"{"model":7,"messages":[]}"#, "`model` is a number, wanted a string"),
        (r#"{"model":"m","messages":{}}"#, "`messages` is an object, wanted an array"),
        (r#"{"model":"m","messages":["x"]}"#, "`messages[0]` is a string, wanted an object"),
        (
            r#"{"model":"m","messages":[{"content":[1]}]}"#,
            "`messages[0].content[0]` is a number, wanted an object",
        ),
        (r#"{"model":"m","messages":[],"n":-1}"#, "`n` is -1, wanted a whole number from 0"),
        (
            r#"{"model":"m","messages":[],"max_tokens":1e3}"#,
            "`max_tokens` is 1e3, wanted a whole number from 0",
        ),
        (r#"{"model":"m","messages":[],"stream":"yes"}"#, "`stream` is a string, wanted a boolean"),
        (
            r#"{"model":"m","messages":[],"stream_options":[]}"#,
            "`stream_options` is an array, wanted an object",
        ),
        (r#"{"model":"m","messages":[],"tools":[1]}"#, "`tools[0]` is a number, wanted an object"),
        (r#"{"model":"m","messages":[],"model":"n"}"#, "the key \"model\" is there twice in one object"),
        (r#"{"model":"m","messages":[{"a":{"b":1,"b":2}}]}"#, "the key \"b\" is there twice in one object"),
        (
            r#"{"model":"m","messages":[]} x"#,
            "the body is not JSON: wanted the end of the body at byte 28, had 'x'",
        ),
    ] {
        let had = (DIALECT.parse)("/v1/chat/completions", body.as_bytes()).map_err(|e| e.to_string());
        assert_eq!(had.err().as_deref(), Some(message), "{body}");
    }
}

fn check_edit(body: &str, cap: Option<u64>, wanted: &str) {
    let request = parse(body);
    let edited = request.edit(body.as_bytes(), cap, true);
    assert_eq!(std::str::from_utf8(&edited), Ok(wanted), "{body}");
    if body == wanted {
        assert!(matches!(edited, Cow::Borrowed(_)), "{body}");
    } else if request.stream {
        assert!(parse(wanted).client_asked_usage, "{wanted}");
    }
}

#[test]
fn the_cap_is_lowered_in_place_and_never_raised() {
    for (body, cap, wanted) in [
        (r#"{ "model":"m","messages":[] }"#, None, r#"{ "model":"m","messages":[] }"#),
        (
            r#"{ "model":"m","messages":[] }"#,
            Some(50),
            r#"{"max_completion_tokens":50, "model":"m","messages":[] }"#,
        ),
        (
            r#"{"model":"m", "max_tokens" : 9000 ,"messages":[]}"#,
            Some(50),
            r#"{"model":"m", "max_tokens" : 50 ,"messages":[]}"#,
        ),
        (
            r#"{"model":"m","max_tokens":40,"messages":[]}"#,
            Some(50),
            r#"{"model":"m","max_tokens":40,"messages":[]}"#,
        ),
        (
            r#"{"model":"m","max_tokens":90,"max_completion_tokens":70,"messages":[]}"#,
            Some(80),
            r#"{"model":"m","max_tokens":80,"max_completion_tokens":70,"messages":[]}"#,
        ),
        (
            r#"{"model":"m","max_completion_tokens":null,"messages":[]}"#,
            Some(80),
            r#"{"model":"m","max_completion_tokens":80,"messages":[]}"#,
        ),
        (
            r#"{"model":"m","max_tokens":null,"messages":[]}"#,
            Some(80),
            r#"{"max_completion_tokens":80,"model":"m","max_tokens":null,"messages":[]}"#,
        ),
    ] {
        check_edit(body, cap, wanted);
    }
}

#[test]
fn a_stream_is_asked_for_its_usage() {
    for (options, wanted) in [
        (r#""stream_options":{"include_usage":true}"#, r#""stream_options":{"include_usage":true}"#),
        (r#""stream_options":{ "include_usage" : false }"#, r#""stream_options":{ "include_usage" : true }"#),
        (r#""stream_options":{"include_usage":null}"#, r#""stream_options":{"include_usage":true}"#),
        (r#""stream_options": null"#, r#""stream_options": {"include_usage":true}"#),
        (r#""stream_options":{ }"#, r#""stream_options":{"include_usage":true }"#),
        (
            r#""stream_options":{"include_obfuscation":false}"#,
            r#""stream_options":{"include_usage":true,"include_obfuscation":false}"#,
        ),
    ] {
        let body = |options: &str| format!(r#"{{"model":"m","stream":true,{options},"messages":[]}}"#);
        check_edit(&body(options), None, &body(wanted));
    }
    check_edit(
        r#"{"model":"m","stream":true,"messages":[]}"#,
        Some(5),
        r#"{"max_completion_tokens":5,"stream_options":{"include_usage":true},"model":"m","stream":true,"messages":[]}"#,
    );
    check_edit(
        r#"{"model":"m","stream":false,"stream_options":null,"messages":[]}"#,
        None,
        r#"{"model":"m","stream":false,"stream_options":null,"messages":[]}"#,
    );
}

const HEAD: &str = r#""id":"chatcmpl-B9","object":"chat.completion.chunk","created":1763596800,"model":"gpt-4.1-2025-04-14","service_tier":"default","system_fingerprint":"fp_1""#;
const USAGE: &str = r#""usage":{"prompt_tokens":1200,"completion_tokens":300,"total_tokens":1500,"prompt_tokens_details":{"cached_tokens":1024,"cache_write_tokens":100,"audio_tokens":0},"completion_tokens_details":{"reasoning_tokens":256}}"#;
const COUNTED: Usage = Usage {
    input: 76,
    cache_read: 1024,
    cache_write_5m: 100,
    cache_write_1h: 0,
    output: 300,
    reasoning: 256,
    web_searches: 0,
};

/// A stream as OpenAI sends it, with or without `include_usage`.
fn stream(include_usage: bool) -> String {
    let null = if include_usage { r#","usage":null"# } else { "" };
    let chunk =
        |choice: &str| format!("data: {{{HEAD},\"choices\":[{choice}]{null},\"obfuscation\":\"x\"}}\n\n");
    let mut stream = chunk(r#"{"index":0,"delta":{"role":"assistant","content":""},"finish_reason":null}"#)
        + &chunk(r#"{"index":0,"delta":{"content":"Hel\u0022lo"},"finish_reason":null}"#)
        + &chunk(r#"{"index":0,"delta":{},"finish_reason":"stop"}"#);
    if include_usage {
        stream += &format!("data: {{{HEAD},\"choices\":[],{USAGE},\"obfuscation\":\"\"}}\n\n");
    }
    stream + "data: [DONE]\n\n"
}

fn read(asked: bool, stream: impl AsRef<[u8]>, cuts: &[usize]) -> (String, Vec<FrameKind>, AnswerStream) {
    let options = if asked { r#","stream_options":{"include_usage":true}"# } else { "" };
    let mut answer = (DIALECT.read_stream)(&with(&format!(r#","stream":true{options}"#)));
    let mut frames = Vec::new();
    for chunk in chunks(stream.as_ref(), cuts) {
        frames.extend(answer.push(chunk));
    }
    frames.extend(answer.finish());
    let sent = frames.iter().filter(|f| f.kind != Some(FrameKind::Swallowed)).map(|f| &f.bytes[..]);
    let sent = String::from_utf8(sent.collect::<Vec<_>>().concat()).unwrap();
    (sent, frames.iter().filter_map(|f| f.kind).collect(), answer)
}

#[test]
fn a_client_that_did_not_ask_gets_the_stream_it_would_have_got() {
    use FrameKind::*;
    let (sent, kinds, answer) = read(false, stream(true), &[]);
    assert_eq!(sent, stream(false));
    // The first chunk says who speaks, and nothing else.
    assert_eq!(kinds, [Ping, Data, Stop, Swallowed, Terminal]);
    assert!(answer.is_complete());
    let outcome = answer.outcome();
    assert_eq!(outcome.usage, Some(COUNTED));
    assert_eq!(outcome.id.as_deref(), Some("chatcmpl-B9"));
    assert_eq!(outcome.model.as_deref(), Some("gpt-4.1-2025-04-14"));
    assert_eq!((outcome.finish.as_deref(), outcome.tier), (Some("stop"), Some(ServiceTier::Standard)));
}

#[test]
fn a_client_that_asked_gets_every_byte() {
    use FrameKind::*;
    let (sent, kinds, answer) = read(true, stream(true), &[]);
    assert_eq!(sent, stream(true));
    assert_eq!(kinds, [Ping, Data, Stop, Data, Terminal]);
    assert_eq!(answer.usage(), Some(COUNTED));
}

#[test]
fn a_null_usage_goes_with_its_comma_wherever_it_stands() {
    for (chunk, wanted) in [
        (r#"{"choices":[1],"usage":null}"#, r#"{"choices":[1]}"#),
        (r#"{"choices": [1], "usage": null, "x": 2}"#, r#"{"choices": [1], "x": 2}"#),
        (r#"{"usage": null, "choices": [1]}"#, r#"{"choices": [1]}"#),
        (r#"{"usage":null}"#, "{}"),
        (r#"{"choices":[{"usage":null}]}"#, r#"{"choices":[{"usage":null}]}"#),
        (r#"{"choices":[],"moderation":{"a":1},"usage":{"x":1}}"#, r#"{"choices":[],"moderation":{"a":1}}"#),
        (r#"{"choices":[],"prompt_filter_results":[]}"#, r#"{"choices":[],"prompt_filter_results":[]}"#),
        ("not json", "not json"),
    ] {
        let (sent, ..) = read(false, format!("event: x\r\ndata:{chunk}\r\n\r\n"), &[]);
        assert_eq!(sent, format!("event: x\r\ndata:{wanted}\r\n\r\n"), "{chunk}");
    }
}

#[test]
fn usage_on_the_last_chunk_with_text_is_read_and_kept() {
    let last =
        format!(r#"{{{HEAD},"choices":[{{"index":0,"delta":{{}},"finish_reason":"length"}}],{USAGE}}}"#);
    let stream = format!("data: {last}\n\ndata: [DONE]\n\n");
    let (sent, kinds, answer) = read(false, &stream, &[]);
    assert_eq!(sent, stream);
    assert_eq!(kinds, [FrameKind::Stop, FrameKind::Terminal]);
    assert_eq!(answer.usage(), Some(COUNTED));
}

#[test]
fn usage_counts_only_when_nothing_can_follow() {
    let chunk = |finish: &str, tokens: u64| {
        format!(
            "data: {{\"choices\":[{{\"index\":0,\"finish_reason\":{finish}}}],\"usage\":{{\"prompt_tokens\":5,\"completion_tokens\":{tokens}}}}}\n\n"
        )
    };
    let counting_along = chunk("null", 1) + &chunk("null", 2);
    let (.., broken) = read(true, &counting_along, &[]);
    assert_eq!(broken.usage(), None);
    assert_eq!(broken.outcome().usage_so_far.map(|u| u.output), Some(2));
    let (.., whole) = read(true, counting_along.clone() + &chunk("\"stop\"", 3), &[]);
    assert_eq!(whole.usage().map(|u| u.output), Some(3));
    let (.., done) = read(true, counting_along.clone() + "data: [DONE]\n\n", &[]);
    assert_eq!(done.usage().map(|u| u.output), Some(2));
    // The usage that counts may have been in the event that was cut.
    let stop = "data: {\"choices\":[{\"index\":0,\"finish_reason\":\"stop\"}]}\n\n";
    let (.., cut) = read(true, counting_along + stop + "data: {\"choices\":[],\"usa", &[]);
    assert_eq!((cut.usage(), cut.is_complete()), (None, true));
    // A usage that came first is not the last.
    let first = "data: {\"choices\":[],\"usage\":{\"prompt_tokens\":5,\"completion_tokens\":1}}\n\n";
    let (.., broken) = read(true, first.to_owned() + &chunk("null", 2), &[]);
    assert_eq!((broken.usage(), broken.is_complete()), (None, false));
}

#[test]
fn only_a_terminal_event_without_an_error_completes_a_stream() {
    use FrameKind::*;
    let whole = stream(true);
    let without_done = whole.strip_suffix("data: [DONE]\n\n").unwrap();
    let begun: String = whole.split_inclusive("\n\n").take(2).collect();
    let error = "data: {\"error\":{\"message\":\"boom\",\"type\":\"server_error\",\"code\":500}}\n\n";
    for (stream, last, complete) in [
        (whole.clone(), Terminal, true),
        // The finish reason and the usage say that nothing follows.
        (without_done.to_owned(), Terminal, true),
        (format!("{without_done}data: [DONE]"), Terminal, true),
        (format!("{without_done}data: {{\"choi"), Terminal, true),
        (format!("{begun}data: {{\"choi"), Data, false),
        (begun, Data, false),
        (format!("{whole}\n"), Data, true),
        (format!("{error}data: [DONE]\n\n"), Terminal, false),
        (format!("{}: OPENROUTER PROCESSING\n\n", ""), Ping, false),
    ] {
        let (_, kinds, answer) = read(true, &stream, &[]);
        assert_eq!((kinds.last(), answer.is_complete()), (Some(&last), complete), "{stream}");
    }
    let (_, kinds, answer) = read(true, error, &[]);
    assert_eq!(kinds, [Error]);
    let error = answer.outcome().error.clone().unwrap();
    assert_eq!((error.kind.as_deref(), error.code.as_deref()), (Some("server_error"), Some("500")));
    assert_eq!(error.message, "boom");
}

#[test]
fn a_json_answer_is_read_whole() {
    let body = format!(
        r#"{{"id":"chatcmpl-1","object":"chat.completion","model":"gpt-4.1","service_tier":"priority","choices":[{{"index":0,"message":{{"role":"assistant","content":"hi"}},"finish_reason":"tool_calls"}}],{USAGE}}}"#
    );
    let outcome = DIALECT.read_json(body.as_bytes());
    assert_eq!((outcome.usage, outcome.tier), (Some(COUNTED), Some(ServiceTier::Priority)));
    assert_eq!((outcome.id.as_deref(), outcome.finish.as_deref()), (Some("chatcmpl-1"), Some("tool_calls")));
    let refused = DIALECT.read_json(
        br#"{"error":{"message":"no","type":"insufficient_quota","param":null,"code":"insufficient_quota"}}"#,
    );
    assert_eq!(
        (refused.usage, refused.error.and_then(|e| e.code).as_deref()),
        (None, Some("insufficient_quota"))
    );
    for body in ["", "<html>", "[]", "null", "3", r#"{"usage":{"prompt_tokens":3}}"#] {
        assert_eq!(DIALECT.read_json(body.as_bytes()), Outcome::default(), "{body}");
    }
}

#[test]
fn odd_usage_never_counts_too_little() {
    for (usage, input, output) in [
        (r#"{"prompt_tokens":10,"completion_tokens":5}"#, 10, 5),
        (r#"{"prompt_tokens":10,"completion_tokens":5,"total_tokens":40}"#, 10, 30),
        (r#"{"prompt_tokens":10,"completion_tokens":5,"total_tokens":0}"#, 10, 5),
        (r#"{"prompt_tokens":10,"completion_tokens":5,"prompt_tokens_details":null}"#, 10, 5),
    ] {
        let had = DIALECT.read_json(format!(r#"{{"usage":{usage}}}"#).as_bytes()).usage.unwrap();
        assert_eq!((had.input_total(), had.output), (input, output), "{usage}");
    }
}

proptest! {
    #[test]
    fn chunking_changes_nothing(cuts in prop::collection::vec(any::<usize>(), 0..12), end in 0usize..3, asked in any::<bool>()) {
        let stream = stream(true).replace('\n', ["\n", "\r\n", "\r"][end]);
        let (sent, _, answer) = read(asked, &stream, &cuts);
        let wanted = if asked { stream } else { self::stream(false).replace('\n', ["\n", "\r\n", "\r"][end]) };
        prop_assert_eq!(sent, wanted);
        prop_assert!(answer.is_complete());
        prop_assert_eq!(answer.usage(), Some(COUNTED));
    }

    #[test]
    fn any_bytes_pass_through_a_client_that_asked(stream in prop::collection::vec(any::<u8>(), 0..200), cuts in prop::collection::vec(any::<usize>(), 0..5)) {
        let mut answer = (DIALECT.read_stream)(&with(r#","stream":true,"stream_options":{"include_usage":true}"#));
        let mut frames: Vec<Bytes> = Vec::new();
        for chunk in chunks(&stream, &cuts) {
            frames.extend(answer.push(chunk).into_iter().map(|f| f.bytes));
        }
        frames.extend(answer.finish().map(|f| f.bytes));
        prop_assert_eq!(frames.concat(), stream);
    }
}
