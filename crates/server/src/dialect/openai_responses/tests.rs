use outlast_core::words::{ServiceTier, Usage};
use proptest::prelude::*;

use super::*;
use crate::dialect::{FrameKind, Request, bound, sse::tests::chunks};

fn parse(body: &str) -> Request {
    (DIALECT.parse)("/v1/responses", body.as_bytes()).unwrap_or_else(|e| panic!("{e}: {body}"))
}

/// A request with `members` more.
fn with(members: &str) -> Request {
    parse(&format!(r#"{{"model":"gpt-4.1","input":"hi"{members}}}"#))
}

#[test]
fn the_facts_of_a_request_are_read() {
    let request = parse(
        r#"{"model":"gpt-5","input":[{"role":"user","content":"hi"},{"type":"function_call_output","call_id":"c","output":"fine"}],
           "instructions":"be brief","stream":true,"max_output_tokens":900,"service_tier":"flex","store":false}"#,
    );
    assert_eq!((request.model.as_str(), request.stream, request.cap), ("gpt-5", true, Some(900)));
    assert_eq!((request.message_count, request.tier), (2, Some(ServiceTier::Flex)));
    assert!(request.reasons && request.client_asked_usage && request.wants_cache_5m);
    assert_eq!((request.turns, request.references, request.unpriced.as_deref()), (1, false, None));
    assert!((80..260).contains(&request.input_bound), "{}", request.input_bound);
    let plain = with("");
    assert_eq!((plain.cap, plain.reasons, plain.stream), (None, false, false));
    assert!(with(r#","reasoning":{"effort":"low"}"#).reasons);
    assert!(!with(r#","reasoning":{"effort":"none"}"#).reasons && !with(r#","reasoning":null"#).reasons);
}

#[test]
fn what_the_provider_keeps_is_named_and_taken_at_the_models_maximum() {
    let check = |body: &str, names: &[&str], references: bool| {
        let request = parse(body);
        assert_eq!(
            (request.names.as_slice(), request.references),
            (&*names.iter().map(|n| n.to_string()).collect::<Vec<_>>(), references),
            "{body}"
        );
    };
    check(r#"{"model":"m","input":"x","previous_response_id":null}"#, &[], false);
    check(r#"{"model":"m","previous_response_id":"resp_1"}"#, &["resp_1"], true);
    check(
        r#"{"model":"m","input":[{"type":"item_reference","id":"msg_1"},{"id":"rs_2","type":"item_reference"}]}"#,
        &["msg_1", "rs_2"],
        true,
    );
    // An item that is there whole names only itself.
    check(
        r#"{"model":"m","input":[{"type":"function_call","id":"fc_1","name":"f","arguments":"{}"}]}"#,
        &[],
        false,
    );
    check(
        r#"{"model":"m","input":[{"role":"user","content":[{"type":"input_file","file_id":"file_1"}]}]}"#,
        &[],
        true,
    );
    check(
        r#"{"model":"m","input":[{"role":"user","content":[{"type":"input_file","file_data":"JVBE"}]}]}"#,
        &[],
        true,
    );
}

#[test]
fn tools_of_the_provider_are_bounded_by_max_tool_calls_or_named() {
    let search = bound::WEB_SEARCH_RESULT;
    for (members, uses, result, searches, unpriced) in [
        (r#""tools":[{"type":"function","name":"f","parameters":{}}]"#, 0, 0, 0, None),
        (r#""tools":[{"type":"custom","name":"f"}],"max_tool_calls":7"#, 0, 0, 0, None),
        (
            r#""tools":[{"type":"namespace","name":"n","tools":[{"type":"function","name":"f"}]}]"#,
            0,
            0,
            0,
            None,
        ),
        (r#""tools":[{"type":"local_shell"},{"type":"apply_patch"}]"#, 0, 0, 0, None),
        (r#""tools":[{"type":"shell","environment":{"type":"local"}}]"#, 0, 0, 0, None),
        (
            r#""tools":[{"type":"shell","environment":{"type":"container_auto"}}]"#,
            10,
            0,
            0,
            Some("tools[0] shell"),
        ),
        (r#""tools":[{"type":"web_search"}],"max_tool_calls":4"#, 4, search, 4, None),
        (r#""max_tool_calls":4,"tools":[{"type":"web_search_preview"}]"#, 4, search, 4, None),
        (
            r#""tools":[{"type":"web_search"}]"#,
            10,
            search,
            10,
            Some("tools[0] web_search without max_tool_calls"),
        ),
        (
            r#""tools":[{"type":"function"},{"type":"file_search"}],"max_tool_calls":2"#,
            2,
            0,
            0,
            Some("tools[1] file_search"),
        ),
        (
            r#""tools":[{"type":"namespace","tools":[{"type":"mcp"}]}],"max_tool_calls":2"#,
            2,
            0,
            0,
            Some("tools[0].tools[0] mcp"),
        ),
        (r#""tools":[{"type":"code_interpreter"}]"#, 10, 0, 0, Some("tools[0] code_interpreter")),
        (r#""tools":[{"type":"image_generation"}]"#, 10, 0, 0, Some("tools[0] image_generation")),
        (r#""prompt":{"id":"pmpt_1"}"#, 0, 0, 0, Some("prompt")),
        (r#""service_tier":"gold""#, 0, 0, 0, Some("service_tier gold")),
        (r#""context_management":[{"type":"compaction","compact_threshold":1000}]"#, 1, 0, 0, None),
    ] {
        let request = with(&format!(",{members}"));
        assert_eq!(request.turns, uses + 1, "{members}");
        assert_eq!((request.web_searches, request.unpriced.as_deref()), (searches, unpriced), "{members}");
        assert!(request.input_bound >= bound::over_turns(with("").input_bound, uses, result), "{members}");
        assert_eq!(request.extra_output > 0, members.contains("compaction"), "{members}");
    }
}

#[test]
fn items_count_by_what_reaches_the_model() {
    let data = "A".repeat(50_000);
    let base = parse(r#"{"model":"gpt-4.1","input":[{}]}"#).input_bound;
    for (item, bound, references) in [
        (r#"{"role":"user","content":"\u4e2d"}"#.to_owned(), 3, false),
        (
            format!(r#"{{"content":[{{"type":"input_image","image_url":"data:;base64,{data}"}}]}}"#),
            25_000,
            false,
        ),
        (r#"{"content":[{"detail":"low","file_id":"f","type":"input_image"}]}"#.into(), 4_000, false),
        (
            format!(
                r#"{{"type":"computer_call_output","output":{{"type":"computer_screenshot","image_url":"{data}"}}}}"#
            ),
            25_000,
            false,
        ),
        (
            format!(
                r#"{{"type":"function_call_output","output":[{{"type":"input_text","text":"{data}"}}]}}"#
            ),
            50_000,
            false,
        ),
        (format!(r#"{{"type":"function_call","arguments":"{data}"}}"#), 50_000, false),
        (format!(r#"{{"type":"reasoning","summary":[],"encrypted_content":"{data}"}}"#), 50_000, false),
        (format!(r#"{{"content":[{{"type":"input_file","file_data":"{data}"}}]}}"#), 50_000, true),
        (format!(r#"{{"image_url":"{data}"}}"#), 50_000, false),
    ] {
        let request = parse(&format!(r#"{{"model":"gpt-4.1","input":[{item}]}}"#));
        let had = request.input_bound - base;
        assert!((bound..bound + 160).contains(&had), "{had}: {}", &item[..item.len().min(90)]);
        assert_eq!(request.references, references, "{}", &item[..item.len().min(90)]);
    }
}

#[test]
fn a_bad_request_names_its_field() {
    for (body, message) in [
        (r#"{"input":"x"}"#, "`model` is missing"),
        (r#"{"model":"m"}"#, "`input` is missing"),
        (r#"{"model":"m","input":3}"#, "`input` is a number, wanted a string or an array"),
        (r#"{"model":"m","input":["x"]}"#, "`input[0]` is a string, wanted an object"),
        (
            r#"{"model":"m","input":"x","max_output_tokens":"9"}"#,
            "`max_output_tokens` is a string, wanted a whole number from 0",
        ),
        (r#"{"model":"m","input":"x","reasoning":"high"}"#, "`reasoning` is a string, wanted an object"),
        (r#"{"model":"m","input":"x","tools":["f"]}"#, "`tools[0]` is a string, wanted an object"),
        (
            r#"{"model":"m","input":"x","background":true}"#,
            "`background` is not metered yet; nothing was sent",
        ),
        (
            r#"{"model":"m","input":"x","conversation":"conv_1"}"#,
            "`conversation` is not metered yet; nothing was sent",
        ),
    ] {
        let had = (DIALECT.parse)("/v1/responses", body.as_bytes()).map_err(|e| e.to_string());
        assert_eq!(had.err().as_deref(), Some(message), "{body}");
    }
    with(r#","background":false,"conversation":null"#);
}

#[test]
fn only_the_cap_is_ever_edited() {
    let capped = r#"{"model":"m","stream":true,"max_output_tokens": 64000 ,"input":[ ],"x":1.0e0}"#;
    let open = r#"{"model":"m","input":"x"}"#;
    for (body, cap, wanted) in [
        (capped, None, capped.to_owned()),
        (capped, Some(70_000), capped.to_owned()),
        (capped, Some(300), capped.replace("64000", "300")),
        (open, Some(300), r#"{"max_output_tokens":300,"model":"m","input":"x"}"#.to_owned()),
    ] {
        let edited = parse(body).edit(body.as_bytes(), cap, true);
        assert_eq!(std::str::from_utf8(&edited), Ok(wanted.as_str()));
    }
}

const STREAM: &str = r#"event: response.created
data: {"type":"response.created","sequence_number":0,"response":{"id":"resp_1","object":"response","status":"in_progress","model":"gpt-5","output":[],"error":null,"usage":null}}

event: response.output_item.done
data: {"type":"response.output_item.done","output_index":0,"item":{"id":"ws_1","type":"web_search_call","status":"completed","action":{"type":"search","query":"x"}}}

event: response.output_item.done
data: {"type":"response.output_item.done","output_index":1,"item":{"id":"ws_2","type":"web_search_call","status":"completed","action":{"type":"open_page","url":"x"}}}

event: response.output_text.delta
data: {"type":"response.output_text.delta","item_id":"msg_1","output_index":2,"content_index":0,"delta":"response.completed"}

event: response.completed
data: {"type":"response.completed","response":{"id":"resp_1","status":"completed","model":"gpt-5-2025-08-07","service_tier":"flex","error":null,"incomplete_details":null,"output":[{"id":"ws_1","type":"web_search_call","action":{"type":"search"}},{"id":"msg_1","type":"message"}],"usage":{"input_tokens":1200,"input_tokens_details":{"cached_tokens":1024},"output_tokens":90,"output_tokens_details":{"reasoning_tokens":64},"total_tokens":1290}}}

"#;

const COUNTED: Usage = Usage {
    input: 176,
    cache_read: 1024,
    cache_write_5m: 0,
    cache_write_1h: 0,
    output: 90,
    reasoning: 64,
    web_searches: 1,
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
    assert_eq!(kinds, [Data, Data, Data, Data, Terminal]);
    assert!(answer.is_complete());
    let outcome = answer.outcome();
    assert_eq!(outcome.usage, Some(COUNTED));
    assert_eq!((outcome.id.as_deref(), outcome.model.as_deref()), (Some("resp_1"), Some("gpt-5-2025-08-07")));
    assert_eq!((outcome.finish.as_deref(), outcome.tier), (Some("completed"), Some(ServiceTier::Flex)));
    assert_eq!(outcome.kept, ["resp_1", "ws_1", "ws_2", "msg_1"]);
}

#[test]
fn each_end_of_a_stream_has_its_kind() {
    let (begun, _) = STREAM.split_at(STREAM.find("event: response.completed").unwrap());
    let usage = r#""usage":{"input_tokens":9,"output_tokens":4}"#;
    for (end, kind, complete, counted, finish, error) in [
        (
            format!(
                r#"{{"type":"response.incomplete","response":{{"status":"incomplete","incomplete_details":{{"reason":"max_output_tokens"}},{usage}}}}}"#
            ),
            FrameKind::Terminal,
            true,
            true,
            Some("max_output_tokens"),
            None,
        ),
        (
            format!(
                r#"{{"type":"response.failed","response":{{"status":"failed","error":{{"code":"server_error","message":"oh no"}},{usage}}}}}"#
            ),
            FrameKind::Error,
            false,
            true,
            Some("failed"),
            Some("oh no"),
        ),
        (
            r#"{"type":"response.failed","response":{"status":"failed","error":null,"usage":null}}"#.into(),
            FrameKind::Error,
            false,
            false,
            Some("failed"),
            Some(""),
        ),
        (
            r#"{"type":"error","code":"rate_limit_exceeded","message":"slow down","param":null}"#.into(),
            FrameKind::Error,
            false,
            false,
            None,
            Some("slow down"),
        ),
        (
            r#"{"type":"error","error":{"type":"server_error","message":"nested"}}"#.into(),
            FrameKind::Error,
            false,
            false,
            None,
            Some("nested"),
        ),
    ] {
        let (_, kinds, answer) = read(&format!("{begun}data: {end}\n\n"), &[]);
        let outcome = answer.outcome();
        assert_eq!(kinds.last(), Some(&kind), "{end}");
        assert_eq!((answer.is_complete(), outcome.usage.is_some()), (complete, counted), "{end}");
        assert_eq!(outcome.finish.as_deref(), finish, "{end}");
        assert_eq!(outcome.error.as_ref().map(|e| e.message.as_str()), error, "{end}");
    }
    let (_, _, broken) = read(begun, &[]);
    assert_eq!((broken.usage(), broken.is_complete()), (None, false));
    let cut = format!("{begun}event: response.completed\ndata: {{\"type\":\"response.compl");
    let (_, kinds, broken) = read(&cut, &[]);
    assert!(!broken.is_complete() && !kinds.contains(&FrameKind::Terminal), "its end was cut");
    let (_, kinds, _) = read("event: response.completed\ndata: {\"response\":{}}\n\n", &[]);
    assert_eq!(kinds, [FrameKind::Terminal], "data without a type goes by the event's name");
}

#[test]
fn whole_answers_are_read_in_every_shape() {
    let read = |body: &str| DIALECT.read_json(body.as_bytes());
    let whole = STREAM.rsplit("\"response\":").next().unwrap().trim_end().strip_suffix('}').unwrap();
    let outcome = read(whole);
    assert_eq!((outcome.usage, outcome.error), (Some(COUNTED), None));
    assert_eq!(outcome.kept, ["resp_1", "ws_1", "msg_1"]);
    for (usage, wanted) in [
        ("null", None),
        (r#"{"input_tokens":5}"#, None),
        (r#"{"input_tokens":5,"output_tokens":2}"#, Some((5, 0, 2, 0))),
        (r#"{"input_tokens":5,"output_tokens":2,"total_tokens":11}"#, Some((5, 0, 6, 0))),
        (
            r#"{"input_tokens":5,"input_tokens_details":{"cached_tokens":9},"output_tokens":2,"output_tokens_details":{"reasoning_tokens":9}}"#,
            // A detail that is larger than its whole is no part of it.
            Some((5, 9, 11, 9)),
        ),
    ] {
        let had = read(&format!(r#"{{"id":"resp_1","usage":{usage}}}"#)).usage;
        assert_eq!(had.map(|u| (u.input, u.cache_read, u.output, u.reasoning)), wanted, "{usage}");
    }
    assert!(read(r#"{"id":"resp_1","status":"failed","error":null}"#).error.is_some());
    let error = read(r#"{"error":{"message":"slow down","type":"requests","code":"rate_limit_exceeded"}}"#)
        .error
        .unwrap();
    assert_eq!((error.code.as_deref(), error.message.as_str()), (Some("rate_limit_exceeded"), "slow down"));
    assert_eq!(read("<html>"), Outcome::default());
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
