//! Every dialect's requests and answers, read as a conversation.

use super::*;

/// Every kind of turn of every dialect: the dialect, whether a request or an answer has it, a body with it, and its turns.
const KINDS: &str = include_str!("kinds.json");

/// Turns as text, a line for each part.
fn told(turns: &[Turn]) -> Vec<String> {
    let part = |part: &Part| match part {
        Part::Text(text) => text.clone(),
        Part::Thinking(text) => format!("thinks {text}"),
        Part::Call(call) => format!("calls {} {} {}", call.name, call.input, call.shown_id()),
        Part::Served(call) => format!("served {} {} {}", call.name, call.input, call.shown_id()),
        Part::Result(result) => format!("result of {}: {}", result.shown_id(), result.text),
        Part::Other { what, bytes } => format!("[{what} {bytes}]"),
    };
    turns
        .iter()
        .flat_map(|turn| turn.parts.iter().map(move |p| format!("{}: {}", turn.role, part(p))))
        .collect()
}

#[test]
fn every_kind_of_turn_of_every_dialect_is_read_and_shown_on_the_page() {
    let kinds: Vec<(String, String, Value, Vec<String>)> = serde_json::from_str(KINDS).unwrap();
    for dialect in crate::dialect::tests::DIALECTS {
        assert!(kinds.iter().any(|(name, ..)| name == dialect.name), "{}", dialect.name);
    }
    for (dialect, side, body, wanted) in kinds {
        let text = body.to_string();
        let turns = if side == "request" { request(&body) } else { answer(text.as_bytes()) };
        let bare = |line: String| match line.find(MADE_UP) {
            Some(at) => line.replace(&line[at..at + 9], "~ID"),
            None => line,
        };
        let lines: Vec<String> = told(&turns).into_iter().map(bare).collect();
        assert_eq!(lines, wanted, "{dialect}: {body}");
        // What the client has to carry out, and what it has sent back, is known by an id.
        if side == "request" {
            let results: Vec<&ToolResult> = turns.iter().flat_map(Turn::results).collect();
            assert_eq!(results.len(), super::results(text.as_bytes()).len());
        } else {
            let calls = turns.iter().flat_map(Turn::calls).filter(|call| !call.id.is_empty());
            assert!(calls.eq(&called(text.as_bytes())), "{dialect}: {body}");
        }
        let page: Vec<Value> = turns.iter().map(crate::api::read::exchange::turn).collect();
        let shown = page.iter().flat_map(|turn| items(&turn["parts"]));
        assert_eq!(shown.filter(|part| part["type"].is_string()).count(), wanted.len());
    }
    assert_eq!(request(&serde_json::json!("no object")), []);
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

fn answered(body: &[u8]) -> Vec<String> {
    results(body).into_iter().flat_map(|result| result.ids).collect()
}

fn check_calls(body: &str, wanted: &[(&str, &str, &str)]) {
    let had = called(body.as_bytes());
    let had: Vec<_> = had.iter().map(|c| (c.id.as_str(), c.name.as_str(), c.input.as_str())).collect();
    assert_eq!(had, wanted, "{body}");
}

#[test]
fn whole_answers_tell_their_tool_calls() {
    check_calls(
        r#"{"content":[{"type":"text","text":"x"},{"type":"tool_use","id":"t1","name":"Bash","input":{"command":"ls"}}]}"#,
        &[("t1", "Bash", r#"{"command":"ls"}"#)],
    );
    check_calls(
        r#"{"choices":[{"message":{"tool_calls":[{"id":"c1","function":{"name":"sh","arguments":"{}"}}]}}]}"#,
        &[("c1", "sh", "{}")],
    );
    check_calls(
        r#"{"output":[{"type":"reasoning"},{"type":"function_call","id":"fc","call_id":"c1","name":"sh","arguments":"{}"},
            {"type":"local_shell_call","call_id":"c2","action":{"command":["ls"]}},
            {"type":"custom_tool_call","call_id":"c3","name":"patch","input":"+a"}]}"#,
        &[("c1", "sh", "{}"), ("c2", "shell", r#"{"command":["ls"]}"#), ("c3", "patch", "+a")],
    );
    check_calls(r#"{"content":"plain"}"#, &[]);
    check_calls("{cut off", &[]);
    check_calls("<html>", &[]);
}

#[test]
fn streams_tell_their_tool_calls() {
    check_calls(
        "event: content_block_start\ndata: {\"type\":\"content_block_start\",\"index\":1,\"content_block\":{\"type\":\"tool_use\",\"id\":\"t1\",\"name\":\"Bash\",\"input\":{}}}\n\n\
         data: {\"type\":\"content_block_delta\",\"index\":1,\"delta\":{\"type\":\"input_json_delta\",\"partial_json\":\"{\\\"a\\\":\"}}\n\n\
         data: {\"type\":\"content_block_delta\",\"index\":1,\"delta\":{\"type\":\"input_json_delta\",\"partial_json\":\"1}\"}}\n\n",
        &[("t1", "Bash", r#"{"a":1}"#)],
    );
    check_calls(
        "data: {\"choices\":[{\"index\":0,\"delta\":{\"tool_calls\":[{\"index\":0,\"id\":\"c1\",\"function\":{\"name\":\"sh\",\"arguments\":\"{\"}}]}}]}\n\n\
         data: {\"choices\":[{\"index\":0,\"delta\":{\"tool_calls\":[{\"index\":0,\"function\":{\"arguments\":\"}\"}}]}}]}\n\ndata: [DONE]\n\n",
        &[("c1", "sh", "{}")],
    );
    let item = r#"{"type":"function_call","call_id":"c1","name":"sh","arguments":"{}"}"#;
    check_calls(
        &format!(
            "data: {{\"type\":\"response.output_item.done\",\"item\":{item}}}\n\n\
             data: {{\"type\":\"response.completed\",\"response\":{{\"output\":[{item}]}}}}\n\n"
        ),
        &[("c1", "sh", "{}")],
    );
}

#[test]
fn gemini_models_calls_are_known_with_an_id_and_without() {
    let call = r#"{"functionCall":{"name":"sh","args":{"a":1}ID}}"#;
    let chunk =
        |call: &str| format!(r#"{{"candidates":[{{"content":{{"role":"model","parts":[{call}]}}}}]}}"#);
    let named = chunk(&call.replace("ID", r#","id":"g1""#));
    let bare = chunk(&call.replace("ID", ""));
    for body in [named.clone(), format!("data: {named}\r\n\r\n"), format!("[{named}\n,\r\n{named}]")] {
        assert_eq!(called(body.as_bytes())[0].id, "g1", "{body}");
        assert_eq!(called(body.as_bytes())[0].input, r#"{"a":1}"#, "{body}");
    }
    assert_eq!(called_so_far(format!("data: {bare}\r\n\r\n").as_bytes()).len(), 1);
    let id = called(bare.as_bytes()).remove(0).id;
    assert!(id.starts_with(MADE_UP), "{id}");
    let request = |asked: &str, responses: &str| {
        format!(
            r#"{{"contents":[{{"role":"user","parts":[{{"text":"x"}}]}},{{"role":"model","parts":[{{"text":"y"}},{asked}]}},
                {{"role":"user","parts":[{responses}]}}]}}"#
        )
    };
    let response = r#"{"functionResponse":{"name":"sh","response":{}}}"#;
    let with_id = response.replace("\"name\"", "\"id\":\"sh-1\",\"name\"");
    let client = call.replace("ID", r#","id":"sh-1""#);
    for (asked, responses, wanted) in [
        (call.replace("ID", ""), response, true),
        (call.replace("ID", ""), &with_id, true),
        (client, &with_id, true),
        (call.replace("ID", ""), r#"{"text":"no"}"#, false),
    ] {
        let answered = answered(request(&asked, responses).as_bytes());
        assert_eq!(answered.contains(&id), wanted, "{asked}, {responses}: {answered:?}");
    }
}

#[test]
fn part_of_a_stream_tells_the_calls_that_are_complete() {
    let block =
        |kind: &str, rest: &str| format!("data: {{\"type\":\"content_block_{kind}\",\"index\":1{rest}}}\n\n");
    let start = block("start", r#","content_block":{"type":"tool_use","id":"t1","name":"Bash","input":{}}"#);
    let delta = block("delta", r#","delta":{"type":"input_json_delta","partial_json":"{\"a\":1}"}"#);
    let chat = r#"data: {"choices":[{"index":0,"delta":{"tool_calls":[{"id":"c1","function":{"name":"sh","arguments":"{}"}}]},"finish_reason":FINISH}]}"#;
    let item = r#"data: {"type":"response.output_item.done","item":{"type":"function_call","call_id":"c1","name":"sh","arguments":"{}"}}"#;
    for (body, wanted) in [
        (format!("{start}{delta}"), vec![]),
        (format!("{start}{delta}{}", block("stop", "")), vec!["t1"]),
        (chat.replace("FINISH", "null") + "\n\n", vec![]),
        (chat.replace("FINISH", "\"tool_calls\"") + "\n\n", vec!["c1"]),
        (format!("{item}\n\n"), vec!["c1"]),
    ] {
        let had: Vec<String> = called_so_far(body.as_bytes()).into_iter().map(|call| call.id).collect();
        assert_eq!(had, wanted, "{body}");
    }
}

#[test]
fn requests_tell_which_calls_have_their_results() {
    for (body, wanted) in [
        (
            r#"{"messages":[{"role":"user","content":"x"},{"role":"user","content":[{"type":"tool_result","tool_use_id":"t1"}]}]}"#,
            "t1",
        ),
        (r#"{"messages":[{"role":"tool","tool_call_id":"c1","content":"x"}]}"#, "c1"),
        (
            r#"{"input":[{"type":"function_call","call_id":"no"},{"type":"function_call_output","call_id":"c2"}]}"#,
            "c2",
        ),
    ] {
        assert_eq!(answered(body.as_bytes()), [wanted]);
    }
    assert_eq!(answered(b"not json"), Vec::<String>::new());
}

#[test]
fn commands_are_found_in_every_agents_input() {
    assert_eq!(command(r#"{"command":"ls -l"}"#).as_deref(), Some("ls -l"));
    assert_eq!(command(r#"{"cmd":"ls"}"#).as_deref(), Some("ls"));
    assert_eq!(command(r#"{"command":["bash","-lc","ls"]}"#).as_deref(), Some("bash -lc ls"));
    assert_eq!(command(r#"{"file_path":"x"}"#), None);
    assert_eq!(command("+ a patch"), None);
}

#[test]
fn what_a_tool_call_is_about_is_told_even_of_an_input_that_was_cut() {
    for (input, wanted) in [
        (r#"{"command":"make"}"#, "make"),
        (r#"{"old_string":"a","file_path":"/w/a.py"}"#, "/w/a.py"),
        (r#"{"file_path":"/w/a.py","old_string":"a…"#, "/w/a.py"),
        ("*** Begin Patch\n*** Update File: a.rs\n+x\n*** Add File: b.rs", "a.rs b.rs"),
        (r#"{"n":1}"#, r#"{"n":1}"#),
        ("{}", ""),
        ("plain text", "plain text"),
    ] {
        assert_eq!(subject(input), wanted, "{input}");
    }
}
