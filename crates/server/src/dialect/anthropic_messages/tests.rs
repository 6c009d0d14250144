use outlast_core::words::{ServiceTier, Usage};
use proptest::prelude::*;

use super::*;
use crate::dialect::{FrameKind, Request, bound, sse::tests::chunks};

fn parse(body: &str) -> Request {
    (DIALECT.parse)("/v1/messages", body.as_bytes()).unwrap_or_else(|e| panic!("{body}: {e}"))
}

/// A request with `members` besides the three that must be there.
fn with(members: &str) -> Request {
    parse(&format!(r#"{{"model":"claude-opus-4-8","max_tokens":64,"messages":[]{members}}}"#))
}

#[test]
fn a_request_as_claude_code_sends_it_is_read() {
    let request = parse(
        r#"{"model":"claude-opus-4-8","max_tokens":64000,"stream":true,
            "thinking":{"type":"enabled","budget_tokens":31999},
            "metadata":{"user_id":"user_1_session_2"},
            "system":[{"type":"text","text":"You are Claude Code.","cache_control":{"type":"ephemeral"}}],
            "messages":[{"role":"user","content":[{"type":"text","text":"hello","cache_control":{"type":"ephemeral","ttl":"1h"}}]}],
            "context_management":{"edits":[{"type":"clear_thinking_20251015","keep":"all"}]},
            "tools":[{"name":"Bash","description":"Runs","input_schema":{"type":"object"}}]}"#,
    );
    assert_eq!((request.model.as_str(), request.cap), ("claude-opus-4-8", Some(64000)));
    assert_eq!((request.thinking_budget, request.reasons, request.stream), (Some(31999), true, true));
    assert_eq!((request.wants_cache_5m, request.wants_cache_1h), (true, true));
    assert_eq!((request.turns, request.unpriced, request.references), (1, None, false));
    assert_eq!((request.extra_output, request.message_count, request.tier), (0, 1, None));
    let bound = request.input_bound - bound::ANTHROPIC_TOOL_PREAMBLE;
    assert!((250..600).contains(&bound), "{bound}");
}

#[test]
fn cache_marks_are_found_where_the_api_takes_them() {
    let hour = r#""cache_control":{"type":"ephemeral","ttl":"1h"}"#;
    for (members, marks) in [
        (String::new(), (false, false)),
        (r#","cache_control":null"#.into(), (false, false)),
        (r#","cache_control":{"type":"ephemeral"}"#.into(), (true, false)),
        (format!(",{hour}"), (false, true)),
        (format!(r#","tools":[{{"name":"t",{hour}}}]"#), (false, true)),
        (format!(r#","system":[{{"type":"text","text":"a",{hour}}}]"#), (false, true)),
    ] {
        let request = with(&members);
        assert_eq!((request.wants_cache_5m, request.wants_cache_1h), marks, "{members}");
    }
    let nested = content(&format!(
        r#"[{{"type":"tool_result","tool_use_id":"t","content":[{{"type":"text","text":"a",{hour}}}]}}]"#
    ));
    assert!(nested.wants_cache_1h);
}

#[test]
fn server_tools_are_bounded_by_their_uses_or_named() {
    let search = bound::WEB_SEARCH_RESULT;
    for (tool, uses, result, searches, unpriced) in [
        (r#"{"name":"f","input_schema":{}}"#, 0, 0, 0, None),
        (r#"{"type":"custom","name":"f","input_schema":{}}"#, 0, 0, 0, None),
        (r#"{"type":"bash_20250124","name":"bash"}"#, 0, 0, 0, None),
        (r#"{"type":"web_search_20250305","name":"web_search","max_uses":8}"#, 8, search, 8, None),
        (
            r#"{"type":"web_search_20250305","name":"web_search"}"#,
            10,
            search,
            10,
            Some("tools[0] web_search_20250305 without max_uses"),
        ),
        (r#"{"type":"web_fetch_20250910","max_uses":2,"max_content_tokens":9000}"#, 2, 9000, 0, None),
        (r#"{"type":"tool_search_tool_bm25_20251119"}"#, 10, 0, 0, None),
        (r#"{"type":"code_execution_20250825"}"#, 10, 0, 0, Some("tools[0] code_execution_20250825")),
        (
            r#"{"type":"web_search_20250305","max_uses":18446744073709551615}"#,
            u64::MAX,
            search,
            u64::MAX,
            None,
        ),
    ] {
        let request = with(&format!(r#","tools":[{tool}]"#));
        assert_eq!(request.turns, uses.saturating_add(1), "{tool}");
        assert_eq!((request.web_searches, request.unpriced.as_deref()), (searches, unpriced), "{tool}");
        let once = with("").input_bound;
        assert!(request.input_bound >= bound::over_turns(once, uses, result), "{tool}");
    }
}

#[test]
fn what_token_prices_do_not_cover_is_named() {
    for (members, unpriced) in [
        (r#","speed":"fast""#, Some("speed fast")),
        (r#","speed":"standard""#, None),
        (r#","inference_geo":"us""#, Some("inference_geo us")),
        (r#","inference_geo":null"#, None),
        (r#","fallbacks":[{"model":"x"}]"#, Some("fallbacks")),
        (r#","mcp_servers":[{"type":"url","url":"https://x"}]"#, Some("mcp_servers")),
        (r#","mcp_servers":[]"#, None),
        (r#","service_tier":"auto""#, None),
        (r#","service_tier":"gold""#, Some("service_tier gold")),
    ] {
        assert_eq!(with(members).unpriced.as_deref(), unpriced, "{members}");
    }
    assert_eq!(with(r#","service_tier":"standard_only""#).tier, Some(ServiceTier::Standard));
    let compacting = with(r#","context_management":{"edits":[{"type":"compact_20260112"}]}"#);
    assert_eq!((compacting.turns, compacting.extra_output), (2, bound::COMPACTION_OUTPUT));
}

fn content(blocks: &str) -> Request {
    parse(&format!(
        r#"{{"model":"claude-opus-4-8","max_tokens":64,"messages":[{{"role":"user","content":{blocks}}}]}}"#
    ))
}

#[test]
fn blocks_count_by_what_reaches_the_model() {
    let data = "A".repeat(50_000);
    let base = content("[{}]").input_bound;
    for (block, bound, references) in [
        (r#"{"type":"text","text":"\u4e2d"}"#.to_owned(), 3, false),
        (format!(r#"{{"source":{{"data":"{data}","type":"base64"}},"type":"image"}}"#), 8192, false),
        (r#"{"type":"image","source":{"type":"file","file_id":"file_1"}}"#.into(), 8192, false),
        (format!(r#"{{"type":"document","source":{{"type":"base64","data":"{data}"}}}}"#), 50_000, true),
        (r#"{"type":"document","source":{"type":"url","url":"https://x/y.pdf"}}"#.into(), 0, true),
        (format!(r#"{{"type":"document","source":{{"type":"text","data":"{data}"}}}}"#), 50_000, false),
        (
            format!(
                r#"{{"type":"document","source":{{"type":"content","content":[{{"type":"text","text":"{data}"}}]}}}}"#
            ),
            50_000,
            false,
        ),
        (format!(r#"{{"type":"tool_result","content":[{{"type":"text","text":"{data}"}}]}}"#), 50_000, false),
        (
            r#"{"type":"tool_result","content":[{"type":"image","source":{"type":"url","url":"u"}}]}"#.into(),
            8192,
            false,
        ),
        (format!(r#"{{"type":"tool_use","id":"t","name":"n","input":{{"a":"{data}"}}}}"#), 50_000, false),
        (format!(r#"{{"type":"text","text":"","source":{{"type":"x","data":"{data}"}}}}"#), 50_000, false),
        (r#"{"type":"container_upload","file_id":"f"}"#.into(), 0, true),
        (r#"{"type":"search_result","source":"https://x","title":"t","content":[]}"#.into(), 0, false),
    ] {
        let request = content(&format!("[{block}]"));
        let had = request.input_bound - base;
        assert!((bound..bound + 120).contains(&had), "{had}: {}", &block[..block.len().min(90)]);
        assert_eq!(request.references, references, "{}", &block[..block.len().min(90)]);
    }
}

#[test]
fn a_bad_request_names_its_field() {
    for (body, message) in [
        (r#"{"max_tokens":1,"messages":[]}"#, "`model` is missing"),
        (r#"{"model":"m","max_tokens":1}"#, "`messages` is missing"),
        (r#"{"model":"m","messages":[]}"#, "`max_tokens` is missing"),
        (r#"{"model":"m","max_tokens":null,"messages":[]}"#, "`max_tokens` is null, wanted a number"),
        (
            r#"{"model":"m","max_tokens":1.5,"messages":[]}"#,
            "`max_tokens` is 1.5, wanted a whole number from 0",
        ),
        (
            r#"{"model":"m","max_tokens":1,"messages":[],"system":3}"#,
            "`system` is a number, wanted a string or an array",
        ),
        (
            r#"{"model":"m","max_tokens":1,"messages":[{"content":["x"]}]}"#,
            "`content[0]` is a string, wanted an object",
        ),
        (
            r#"{"model":"m","max_tokens":1,"messages":[],"thinking":"on"}"#,
            "`thinking` is a string, wanted an object",
        ),
        (
            r#"{"model":"m","max_tokens":1,"messages":[],"tools":[{"max_uses":"8"}]}"#,
            "`tools[0].max_uses` is a string, wanted a whole number from 0",
        ),
        (
            r#"{"model":"m","max_tokens":1,"max_tokens":9,"messages":[]}"#,
            "the key \"max_tokens\" is there twice in one object",
        ),
    ] {
        let had = (DIALECT.parse)("/v1/messages", body.as_bytes()).map_err(|e| e.to_string());
        assert_eq!(had.err().as_deref(), Some(message), "{body}");
    }
}

#[test]
fn only_the_cap_is_ever_edited() {
    let body = r#"{"model":"m","stream":true,"max_tokens": 64000 ,"messages":[ ],"x":1.0e0}"#;
    for (cap, wanted) in [
        (None, body.to_owned()),
        (Some(64000), body.to_owned()),
        (Some(70000), body.to_owned()),
        (Some(300), body.replace("64000", "300")),
    ] {
        let edited = parse(body).edit(body.as_bytes(), cap, true);
        assert_eq!(std::str::from_utf8(&edited), Ok(wanted.as_str()));
    }
}

const STREAM: &str = r#"event: message_start
data: {"type":"message_start","message":{"id":"msg_01","type":"message","role":"assistant","model":"claude-opus-4-8","content":[],"stop_reason":null,"stop_sequence":null,"usage":{"input_tokens":12,"cache_creation_input_tokens":900,"cache_read_input_tokens":4000,"cache_creation":{"ephemeral_5m_input_tokens":600,"ephemeral_1h_input_tokens":300},"output_tokens":2,"service_tier":"standard"}}}

event: content_block_start
data: {"type":"content_block_start","index":0,"content_block":{"type":"text","text":""}}

event: ping
data: {"type": "ping"}

event: content_block_delta
data: {"type":"content_block_delta","index":0,"delta":{"type":"text_delta","text":"Hello"}}

event: content_block_stop
data: {"type":"content_block_stop","index":0}

event: message_delta
data: {"type":"message_delta","delta":{"stop_reason":"end_turn","stop_sequence":null},"usage":{"input_tokens":15,"cache_creation_input_tokens":900,"cache_read_input_tokens":4000,"output_tokens":142,"output_tokens_details":{"thinking_tokens":40},"server_tool_use":{"web_search_requests":2}}}

event: message_stop
data: {"type":"message_stop"}

"#;

const COUNTED: Usage = Usage {
    input: 15,
    cache_read: 4000,
    cache_write_5m: 600,
    cache_write_1h: 300,
    output: 142,
    reasoning: 40,
    web_searches: 2,
};

fn read(stream: &str, cuts: &[usize]) -> (String, Vec<FrameKind>, AnswerStream) {
    let mut answer = (DIALECT.read_stream)(&with(r#","stream":true"#));
    let mut frames = Vec::new();
    for chunk in chunks(stream.as_bytes(), cuts) {
        frames.extend(answer.push(chunk));
    }
    frames.extend(answer.finish());
    let sent: Vec<&[u8]> = frames.iter().map(|f| &f.bytes[..]).collect();
    (String::from_utf8(sent.concat()).unwrap(), frames.iter().filter_map(|f| f.kind).collect(), answer)
}

#[test]
fn a_stream_is_read_and_passes_unchanged() {
    use FrameKind::*;
    let (sent, kinds, answer) = read(STREAM, &[]);
    assert_eq!(sent, STREAM);
    assert_eq!(kinds, [Data, Data, Ping, Data, Data, Stop, Terminal]);
    assert!(answer.is_complete());
    let outcome = answer.outcome();
    assert_eq!(outcome.usage, Some(COUNTED));
    assert_eq!((outcome.id.as_deref(), outcome.model.as_deref()), (Some("msg_01"), Some("claude-opus-4-8")));
    assert_eq!((outcome.finish.as_deref(), outcome.tier), (Some("end_turn"), Some(ServiceTier::Standard)));
}

#[test]
fn a_stream_that_breaks_before_its_output_is_counted_has_no_usage() {
    let (before_delta, _) = STREAM.split_at(STREAM.find("event: message_delta").unwrap());
    let (_, _, broken) = read(before_delta, &[]);
    assert_eq!((broken.usage(), broken.is_complete()), (None, false));
    assert_eq!(broken.outcome().usage_so_far.map(|u| (u.input_total(), u.output)), Some((4912, 2)));
    let (before_stop, stop) = STREAM.split_at(STREAM.find("event: message_stop").unwrap());
    let (_, _, counted) = read(before_stop, &[]);
    assert_eq!((counted.usage(), counted.is_complete()), (Some(COUNTED), true), "its stop reason came");
    let (_, _, uncounted) = read(&format!("{before_delta}{stop}"), &[]);
    assert_eq!((uncounted.usage(), uncounted.is_complete()), (None, true));
}

#[test]
fn later_counts_replace_earlier_ones() {
    let delta = |stop: &str, output: u64| {
        format!(
            "event: message_delta\ndata: {{\"type\":\"message_delta\",\"delta\":{{\"stop_reason\":{stop}}},\"usage\":{{\"output_tokens\":{output}}}}}\n\n"
        )
    };
    let (start, _) = STREAM.split_at(STREAM.find("event: content_block_start").unwrap());
    let (_, kinds, answer) = read(&format!("{start}{}{}", delta("null", 50), delta("\"tool_use\"", 80)), &[]);
    assert_eq!(kinds, [FrameKind::Data, FrameKind::Data, FrameKind::Stop, FrameKind::Terminal]);
    assert_eq!(answer.usage().map(|u| (u.input, u.output)), Some((12, 80)));
    let (_, _, broken) = read(&format!("{start}{}", delta("null", 50)), &[]);
    assert_eq!((broken.usage(), broken.is_complete()), (None, false), "its count may still grow");
}

#[test]
fn an_error_in_the_middle_is_seen() {
    let error = "event: error\ndata: {\"type\":\"error\",\"error\":{\"type\":\"overloaded_error\",\"message\":\"Overloaded\"}}\n\n";
    let (_, kinds, answer) = read(error, &[]);
    assert_eq!(kinds, [FrameKind::Error]);
    let told = answer.outcome().error.clone().unwrap();
    assert_eq!((told.kind.as_deref(), told.message.as_str()), (Some("overloaded_error"), "Overloaded"));
    let (_, kinds, answer) = read(&format!("event: error\ndata: oh no\n\n{STREAM}"), &[]);
    assert_eq!(kinds[0], FrameKind::Error);
    assert!(answer.terminal_seen() && !answer.is_complete());
    let (_, kinds, _) = read("data: {\"type\":\"ping\"}\n\ndata: {\"type\":\"message_stop\"}\n\n", &[]);
    assert_eq!(kinds, [FrameKind::Ping, FrameKind::Terminal], "events without a name go by their data");
}

fn check_usage(usage: &str, wanted: Option<Usage>) {
    let outcome = DIALECT.read_json(format!(r#"{{"usage":{usage}}}"#).as_bytes());
    assert_eq!(outcome.usage, wanted, "{usage}");
}

#[test]
fn counts_of_json_answers_are_read_in_every_shape() {
    let plain = Usage { input: 10, output: 5, ..Usage::default() };
    check_usage(r#"{"input_tokens":10,"output_tokens":5}"#, Some(plain));
    check_usage(
        r#"{"input_tokens":10,"output_tokens":5,"cache_creation_input_tokens":null,"cache_read_input_tokens":null,"cache_creation":null,"server_tool_use":null}"#,
        Some(plain),
    );
    check_usage(r#"{"input_tokens":10}"#, None);
    check_usage("{}", None);
    check_usage(
        r#"{"input_tokens":10,"output_tokens":5,"cache_creation_input_tokens":70}"#,
        Some(Usage { cache_write_5m: 70, ..plain }),
    );
    check_usage(
        r#"{"input_tokens":10,"output_tokens":5,"cache_creation_input_tokens":70,"cache_creation":{"ephemeral_5m_input_tokens":0,"ephemeral_1h_input_tokens":60}}"#,
        Some(Usage { cache_write_1h: 70, ..plain }),
    );
    check_usage(
        r#"{"input_tokens":10,"output_tokens":5,"cache_creation":{"ephemeral_5m_input_tokens":30,"ephemeral_1h_input_tokens":40}}"#,
        Some(Usage { cache_write_5m: 30, cache_write_1h: 40, ..plain }),
    );
    // The counts of a compaction are not part of the top level; those of messages are.
    check_usage(
        r#"{"input_tokens":10,"output_tokens":5,"iterations":[{"type":"compaction","input_tokens":900,"output_tokens":80,"cache_read_input_tokens":7,"cache_creation_input_tokens":0},{"type":"message","input_tokens":10,"output_tokens":5}]}"#,
        Some(Usage { input: 910, output: 85, cache_read: 7, ..plain }),
    );
}

#[test]
fn an_error_body_is_read() {
    let outcome = DIALECT.read_json(
        br#"{"type":"error","error":{"type":"rate_limit_error","message":"slow down"},"request_id":"req_1"}"#,
    );
    let error = outcome.error.unwrap();
    assert_eq!((error.kind.as_deref(), error.message.as_str()), (Some("rate_limit_error"), "slow down"));
    assert_eq!((outcome.usage, outcome.id), (None, None));
    assert_eq!(DIALECT.read_json(b"<html>"), Outcome::default());
}

proptest! {
    #[test]
    fn chunking_changes_nothing(cuts in prop::collection::vec(any::<usize>(), 0..12), end in 0usize..3) {
        let stream = STREAM.replace('\n', ["\n", "\r\n", "\r"][end]);
        let (sent, _, answer) = read(&stream, &cuts);
        prop_assert_eq!(sent, stream);
        prop_assert!(answer.is_complete());
        prop_assert_eq!(answer.usage(), Some(COUNTED));
    }
}
