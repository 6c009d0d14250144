//! Every dialect's requests and answers, read as a conversation.

use serde_json::json;

use super::*;

/// Turns as text, a line for each part.
fn told(turns: &[Turn]) -> Vec<String> {
    let part = |part: &Part| match part {
        Part::Text(text) => text.clone(),
        Part::Thinking(text) => format!("thinks {text}"),
        Part::Call { id, name, input } => format!("calls {name} {input} {id}"),
        Part::Result { id, text } => format!("result of {id}: {text}"),
        Part::Other { what, bytes } => format!("[{what} {bytes}]"),
    };
    turns
        .iter()
        .flat_map(|turn| turn.parts.iter().map(move |p| format!("{}: {}", turn.role, part(p))))
        .collect()
}

#[test]
fn requests_of_every_dialect_are_read() {
    let check = |body: Value, wanted: &[&str]| assert_eq!(told(&request(&body)), wanted, "{body}");
    check(
        json!({"messages": [
            {"role": "system", "content": "be brief"},
            {"role": "user", "content": [
                {"type": "text", "text": "what is this?"},
                {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAAAAAA"}},
            ]},
            {"role": "assistant", "content": null,
             "tool_calls": [{"id": "c1", "function": {"name": "look", "arguments": "{\"at\":1}"}}]},
            {"role": "tool", "tool_call_id": "c1", "content": "a cat"},
        ]}),
        &[
            "system: be brief",
            "user: what is this?",
            "user: [image_url image/png 6]",
            "assistant: calls look {\"at\":1} c1",
            "tool: result of c1: a cat",
        ],
    );
    check(
        json!({"system": [{"type": "text", "text": "be brief"}], "messages": [
            {"role": "user", "content": "hello"},
            {"role": "assistant", "content": [
                {"type": "thinking", "thinking": "hm"},
                {"type": "tool_use", "id": "t1", "name": "Read", "input": {"path": "x"}},
            ]},
            {"role": "user", "content": [
                {"type": "tool_result", "tool_use_id": "t1", "content": [{"type": "text", "text": "y"}]},
                {"type": "image", "source": {"type": "base64", "media_type": "image/jpeg", "data": "AAAA"}},
            ]},
        ]}),
        &[
            "system: be brief",
            "user: hello",
            "assistant: thinks hm",
            "assistant: calls Read {\"path\":\"x\"} t1",
            "user: result of t1: y",
            "user: [image image/jpeg 3]",
        ],
    );
    check(
        json!({"instructions": "be brief", "input": [
            {"role": "user", "content": [{"type": "input_text", "text": "hello"}]},
            {"type": "reasoning", "summary": [{"type": "summary_text", "text": "hm"}]},
            {"type": "function_call", "call_id": "f1", "name": "ls", "arguments": "{}"},
            {"type": "function_call_output", "call_id": "f1", "output": "a b"},
        ]}),
        &[
            "system: be brief",
            "user: hello",
            "assistant: thinks hm",
            "assistant: calls ls {} f1",
            "tool: result of f1: a b",
        ],
    );
    check(json!({"input": "hello"}), &["user: hello"]);
    check(
        json!({"systemInstruction": {"parts": [{"text": "be brief"}]}, "contents": [
            {"role": "user", "parts": [{"text": "hello"}, {"inlineData": {"mimeType": "image/png", "data": "AAAA"}}]},
            {"role": "model", "parts": [{"functionCall": {"name": "ls", "args": {"d": 1}}}]},
        ]}),
        &["system: be brief", "user: hello", "user: [data image/png 3]", "model: calls ls {\"d\":1} "],
    );
    check(json!({"messages": [{"role": "user", "content": [{"type": "new", "x": 1}]}]}), &["user: [new 20]"]);
    check(json!("no object"), &[]);
}

#[test]
fn answers_of_every_dialect_are_read_streamed_or_whole() {
    let check = |body: &str, wanted: &[&str]| assert_eq!(told(&answer(body.as_bytes())), wanted, "{body}");
    check(r#"{"choices": [{"message": {"role": "assistant", "content": "hi"}}]}"#, &["assistant: hi"]);
    check(
        "data: {\"choices\":[{\"index\":0,\"delta\":{\"role\":\"assistant\",\"content\":\"h\"}}]}\n\n\
         data: {\"choices\":[{\"index\":0,\"delta\":{\"content\":\"i\"}}]}\n\n\
         data: {\"choices\":[{\"index\":0,\"delta\":{\"tool_calls\":[{\"index\":0,\"id\":\"c1\",\"function\":{\"name\":\"ls\",\"arguments\":\"{\"}}]}}]}\n\n\
         data: {\"choices\":[{\"index\":0,\"delta\":{\"tool_calls\":[{\"index\":0,\"function\":{\"arguments\":\"}\"}}]}}]}\n\n\
         data: [DONE]\n\n",
        &["assistant: hi", "assistant: calls ls {} c1"],
    );
    check(
        r#"{"type": "message", "role": "assistant", "content": [{"type": "text", "text": "hi"}]}"#,
        &["assistant: hi"],
    );
    check(
        "event: content_block_start\ndata: {\"type\":\"content_block_start\",\"index\":0,\"content_block\":{\"type\":\"text\",\"text\":\"\"}}\n\n\
         event: content_block_delta\ndata: {\"type\":\"content_block_delta\",\"index\":0,\"delta\":{\"type\":\"text_delta\",\"text\":\"hi\"}}\n\n\
         event: content_block_start\ndata: {\"type\":\"content_block_start\",\"index\":1,\"content_block\":{\"type\":\"tool_use\",\"id\":\"t1\",\"name\":\"ls\",\"input\":{}}}\n\n\
         event: content_block_delta\ndata: {\"type\":\"content_block_delta\",\"index\":1,\"delta\":{\"type\":\"input_json_delta\",\"partial_json\":\"{\\\"d\\\":1}\"}}\n\n",
        &["assistant: hi", "assistant: calls ls {\"d\":1} t1"],
    );
    check(
        "event: response.completed\ndata: {\"type\":\"response.completed\",\"response\":{\"output\":[{\"type\":\"message\",\"role\":\"assistant\",\"content\":[{\"type\":\"output_text\",\"text\":\"hi\"}]}]}}\n\n",
        &["assistant: hi"],
    );
    check(
        "data: {\"candidates\":[{\"content\":{\"role\":\"model\",\"parts\":[{\"text\":\"h\"}]}}]}\n\n\
         data: {\"candidates\":[{\"content\":{\"role\":\"model\",\"parts\":[{\"text\":\"i\"}]}}]}\n\n",
        &["model: hi"],
    );
    check(r#"{"error": {"type": "x", "message": "too many"}}"#, &["error: too many"]);
    check("not an answer", &[]);
}
