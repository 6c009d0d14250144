use bytes::Bytes;
use proptest::prelude::*;

use super::*;
use crate::dialect::{FrameKind, bound, sse::tests::chunks};

const WHOLE: &str = "/v1beta/models/gemini-2.5-pro:generateContent";
const ARRAY: &str = "/v1beta/models/gemini-2.5-pro:streamGenerateContent";
const EVENTS: &str = "/v1beta/models/gemini-2.5-pro:streamGenerateContent?alt=sse";

fn parse(body: &str) -> Request {
    (DIALECT.parse)(WHOLE, body.as_bytes()).unwrap_or_else(|e| panic!("{body}: {e}"))
}

/// A request with `members` besides its contents.
fn with(members: &str) -> Request {
    parse(&format!(r#"{{"contents":[]{members}}}"#))
}

#[test]
fn the_path_tells_the_model_and_how_it_is_answered() {
    for (target, model, stream, array) in [
        (WHOLE, "gemini-2.5-pro", false, false),
        (EVENTS, "gemini-2.5-pro", true, false),
        (ARRAY, "gemini-2.5-pro", true, true),
        ("/v1/models/g:streamGenerateContent?x=1&alt=sse", "g", true, false),
        ("/v1/models/g:streamGenerateContent?alt=json", "g", true, true),
    ] {
        let request = (DIALECT.parse)(target, br#"{"contents":[]}"#).unwrap();
        assert_eq!(
            (&*request.model, request.stream, request.array_stream),
            (model, stream, array),
            "{target}"
        );
    }
}

#[test]
fn a_request_tells_what_it_may_cost_in_either_spelling() {
    for body in [
        r#"{"contents":[{"parts":[{"text":"hi"}]}],"generationConfig":{"maxOutputTokens":50,"candidateCount":2,"thinkingConfig":{"thinkingBudget":20}}}"#,
        r#"{"contents":[{"parts":[{"text":"hi"}]}],"generation_config":{"max_output_tokens":50,"candidate_count":2,"thinking_config":{"thinking_budget":20}}}"#,
    ] {
        let request = parse(body);
        assert_eq!(
            (request.cap, request.choices, request.thinking_budget),
            (Some(50), 2, Some(20)),
            "{body}"
        );
        assert_eq!((request.unpriced, request.references, request.message_count), (None, false, 1));
    }
    let empty = parse(r#"{"contents":[{"parts":[{"text":""}]}]}"#).input_bound;
    for (text, bytes) in [("hello", 5), (r"\u4e2d", 3), ("中", 3), (r"a\nb", 3)] {
        let body = format!(r#"{{"contents":[{{"parts":[{{"text":"{text}"}}]}}]}}"#);
        assert_eq!(parse(&body).input_bound - empty, bytes, "{text}");
    }
}

#[test]
fn what_token_prices_do_not_cover_is_named() {
    for (members, unpriced, references) in [
        (r#","tools":[{"functionDeclarations":[{"name":"f"}]}]"#, None, false),
        (r#","tools":[{"googleSearch":{}}]"#, Some("tools[0] googleSearch"), true),
        (r#","tools":[{"google_search":{}}]"#, Some("tools[0] googleSearch"), true),
        (r#","tools":[{"googleSearch":null}]"#, None, false),
        (r#","tools":[{"codeExecution":{}}]"#, Some("tools[0] codeExecution"), true),
        (r#","generationConfig":{"responseModalities":["TEXT"]}"#, None, false),
        (
            r#","generationConfig":{"responseModalities":["TEXT","IMAGE"]}"#,
            Some("responseModalities other than TEXT"),
            false,
        ),
        (r#","serviceTier":"warp""#, Some("serviceTier warp"), false),
        (r#","cachedContent":"""#, None, false),
    ] {
        let request = with(members);
        assert_eq!((request.unpriced.as_deref(), request.references), (unpriced, references), "{members}");
    }
    let refused = (DIALECT.parse)(WHOLE, br#"{"contents":[],"cachedContent":"cachedContents/x"}"#);
    assert_eq!(refused, Err(BadRequest::NotMetered { what: "`cachedContent`" }));
}

#[test]
fn data_counts_by_its_kind_and_not_by_its_bytes() {
    let data = "A".repeat(100_000);
    for (part, image, references, unpriced) in [
        (r#"{"inlineData":{"mimeType":"image/png","data":"DATA"}}"#, true, false, None),
        (r#"{"inline_data":{"data":"DATA","mime_type":"IMAGE/PNG"}}"#, true, false, None),
        (r#"{"inlineData":{"mimeType":"application/pdf","data":"DATA"}}"#, false, true, None),
        (r#"{"inlineData":{"mimeType":"audio/wav","data":"DATA"}}"#, false, true, Some("audio input")),
        (r#"{"fileData":{"mimeType":"video/mp4","fileUri":"u"}}"#, false, true, Some("video input")),
        (r#"{"fileData":{"fileUri":"u"}}"#, false, true, None),
    ] {
        let part = part.replace("DATA", &data);
        let request = parse(&format!(r#"{{"contents":[{{"parts":[{part}]}}]}}"#));
        assert_eq!(request.beyond_bytes, if image { bound::GEMINI_IMAGE } else { 0 });
        assert_eq!((request.references, request.unpriced.as_deref()), (references, unpriced));
        assert!(request.input_bound < 10_000);
    }
}

#[test]
fn a_bad_request_names_its_field() {
    for (body, message) in [
        ("{}", "`contents` is missing"),
        (r#"{"contents":[7]}"#, "`contents[0]` is a number, wanted an object"),
        (r#"{"contents":[],"generationConfig":[]}"#, "`generationConfig` is an array, wanted an object"),
        (
            r#"{"contents":[],"generationConfig":{"maxOutputTokens":-1}}"#,
            "`generationConfig.maxOutputTokens` is -1, wanted a whole number from 0",
        ),
        (r#"{"contents":[],"contents":[]}"#, "the key \"contents\" is there twice in one object"),
    ] {
        let had = (DIALECT.parse)(WHOLE, body.as_bytes()).map_err(|e| e.to_string());
        assert_eq!(had.err().as_deref(), Some(message), "{body}");
    }
}

#[test]
fn a_cap_is_put_where_it_belongs_and_never_raised() {
    for (body, wanted) in [
        (r#"{"contents":[]}"#, r#"{"generationConfig":{"maxOutputTokens":50},"contents":[]}"#),
        (
            r#"{"contents":[],"generationConfig":{}}"#,
            r#"{"contents":[],"generationConfig":{"maxOutputTokens":50}}"#,
        ),
        (
            r#"{"contents":[],"generation_config":{ "topK":1}}"#,
            r#"{"contents":[],"generation_config":{"maxOutputTokens":50, "topK":1}}"#,
        ),
        (
            r#"{"contents":[],"generationConfig":null}"#,
            r#"{"contents":[],"generationConfig":{"maxOutputTokens":50}}"#,
        ),
        (
            r#"{"contents":[],"generationConfig":{"max_output_tokens":900}}"#,
            r#"{"contents":[],"generationConfig":{"max_output_tokens":50}}"#,
        ),
        (
            r#"{"contents":[],"generationConfig":{"maxOutputTokens":9}}"#,
            r#"{"contents":[],"generationConfig":{"maxOutputTokens":9}}"#,
        ),
    ] {
        let request = parse(body);
        let edited = request.edit(body.as_bytes(), Some(50), true);
        assert_eq!(std::str::from_utf8(&edited), Ok(wanted), "{body}");
        assert!(parse(wanted).cap.is_some_and(|cap| cap <= 50), "{wanted}");
    }
}

const USAGE: &str = r#""usageMetadata":{"promptTokenCount":100,"cachedContentTokenCount":40,"candidatesTokenCount":20,"thoughtsTokenCount":7,"toolUsePromptTokenCount":5,"totalTokenCount":132}"#;

#[test]
fn counts_are_read_in_our_columns() {
    let answer = format!(
        r#"{{"candidates":[{{"finishReason":"STOP"}}],"modelVersion":"m","responseId":"i",{USAGE}}}"#
    );
    for answer in [answer.clone(), format!("[{{}},{answer}]")] {
        let outcome = DIALECT.read_json(answer.as_bytes());
        let usage = outcome.usage.unwrap();
        assert_eq!((usage.input, usage.cache_read, usage.output, usage.reasoning), (65, 40, 27, 7));
        assert_eq!((outcome.id.as_deref(), outcome.finish.as_deref()), (Some("i"), Some("STOP")));
    }
    let blocked = r#"{"promptFeedback":{"blockReason":"SAFETY"},"usageMetadata":{"promptTokenCount":3,"totalTokenCount":3}}"#;
    let outcome = DIALECT.read_json(blocked.as_bytes());
    assert_eq!(outcome.usage.map(|u| (u.input, u.output)), Some((3, 0)));
    let refused =
        DIALECT.read_json(br#"{"error":{"code":429,"message":"slow","status":"RESOURCE_EXHAUSTED"}}"#);
    assert_eq!(refused.error.map(|e| e.message).as_deref(), Some("slow"));
    assert_eq!(refused.usage, None);
}

/// A stream of three chunks, as events or as an array.
fn stream(array: bool) -> String {
    let chunks = [
        r#"{"candidates":[{"content":{"parts":[{"text":"a ]}"}]},"index":0}],"usageMetadata":{"promptTokenCount":100,"totalTokenCount":100}}"#.to_owned(),
        format!(r#"{{"candidates":[{{"finishReason":"STOP","index":0}}],{USAGE}}}"#),
    ];
    match array {
        true => format!("[{}\n]\n", chunks.join(",\r\n")),
        false => chunks.map(|chunk| format!("data: {chunk}\r\n\r\n")).concat(),
    }
}

fn read(target: &str, parts: Vec<Bytes>) -> (Vec<FrameKind>, AnswerStream, Vec<u8>) {
    let request = (DIALECT.parse)(target, br#"{"contents":[]}"#).unwrap();
    let mut answer = (DIALECT.read_stream)(&request);
    let mut frames: Vec<_> = parts.into_iter().flat_map(|part| answer.push(part)).collect();
    frames.extend(answer.finish());
    let bytes = frames.iter().flat_map(|frame| frame.bytes.to_vec()).collect();
    (frames.iter().filter_map(|frame| frame.kind).collect(), answer, bytes)
}

#[test]
fn a_stream_is_complete_when_its_body_ends_behind_a_stop_reason() {
    for (target, array) in [(EVENTS, false), (ARRAY, true)] {
        let text = stream(array);
        let (kinds, answer, bytes) = read(target, vec![Bytes::from(text.clone())]);
        assert_eq!(kinds, [FrameKind::Data, FrameKind::Stop, FrameKind::Terminal], "{target}");
        assert!(answer.is_complete());
        assert_eq!(answer.usage().map(|u| (u.input_total(), u.output)), Some((105, 27)));
        assert_eq!(bytes, text.as_bytes());
    }
}

#[test]
fn a_stream_that_is_cut_or_fails_is_not_complete() {
    for (target, array) in [(EVENTS, false), (ARRAY, true)] {
        let text = stream(array);
        let stop = text.find("finishReason").unwrap();
        for end in [stop, stop - 30, 20, 0] {
            let (_, answer, _) = read(target, vec![Bytes::copy_from_slice(&text.as_bytes()[..end])]);
            assert!(!answer.is_complete() && answer.usage().is_none(), "{target} {end}");
        }
        let error = r#"{"error":{"code":503,"message":"busy","status":"UNAVAILABLE"}}"#;
        let text = if array { format!("[{error}]") } else { format!("data: {error}\r\n\r\n") };
        let (kinds, answer, _) = read(target, vec![Bytes::from(text)]);
        assert_eq!(kinds[0], FrameKind::Error, "{target}");
        assert!(!answer.is_complete());
    }
    // An array that was not closed may be half of one.
    let text = stream(true);
    let open = text.trim_end().trim_end_matches(']');
    assert!(!read(ARRAY, vec![Bytes::copy_from_slice(open.as_bytes())]).1.is_complete());
}

proptest! {
    #[test]
    fn chunking_does_not_matter(cuts in prop::collection::vec(any::<usize>(), 0..8), array in any::<bool>()) {
        let (text, target) = (stream(array), if array { ARRAY } else { EVENTS });
        let (_, answer, bytes) = read(target, chunks(text.as_bytes(), &cuts));
        prop_assert!(answer.is_complete());
        prop_assert_eq!(answer.usage().map(|u| u.output), Some(27));
        prop_assert_eq!(bytes, text.as_bytes());
    }
}
