//! The official SDKs, with no line of ours in the agent: killed in mid-stream, and then with everything.

use crate::bed::{Bed, text};

/// Whole, streamed, with a tool's result, and whole again; the second life ends with its supervisor before the last.
const OPENAI: &str = r#"
import json, os, signal
from openai import OpenAI

client = OpenAI()
tools = [{"type": "function", "function": {"name": "look", "parameters": {
    "type": "object", "properties": {"at": {"type": "string"}}}}}]
messages = [{"role": "user", "content": "work\nmock: tool look {\"at\": \"a.txt\"}\nmock: reply all is well"}]

def say(text):
    with open("../told", "a") as told:
        told.write(f"{os.environ['OUTLAST_ATTEMPT']} {text}\n")

first = client.chat.completions.create(model="gpt-4o-mini", max_tokens=50, messages=messages, tools=tools)
call = first.choices[0].message.tool_calls[0]
say(f"{call.function.name} {json.loads(call.function.arguments)}")
messages += [first.choices[0].message.model_dump(exclude_none=True),
             {"role": "tool", "tool_call_id": call.id, "content": "fine"}]
stream = client.chat.completions.create(
    model="gpt-4o-mini", max_tokens=50, messages=messages, tools=tools, stream=True)
said = "".join(c.choices[0].delta.content or "" for c in stream if c.choices)
say(said)
if os.environ["OUTLAST_ATTEMPT"] == "2":
    os.kill(os.getppid(), signal.SIGKILL)
    signal.pause()
messages += [{"role": "assistant", "content": said}, {"role": "user", "content": "and now\nmock: reply done"}]
last = client.chat.completions.create(model="gpt-4o-mini", max_tokens=50, messages=messages)
say(last.choices[0].message.content.splitlines()[-1])
"#;

/// The same, with its conversation kept at the provider: each request goes on from the answer before it.
const RESPONSES: &str = r#"
import json, os, signal
from openai import OpenAI

client = OpenAI()
tools = [{"type": "function", "name": "look", "parameters": {
    "type": "object", "properties": {"at": {"type": "string"}}}}]
common = dict(model="gpt-4o-mini", max_output_tokens=50)

def say(text):
    with open("../told", "a") as told:
        told.write(f"{os.environ['OUTLAST_ATTEMPT']} {text}\n")

first = client.responses.create(
    input="work\nmock: tool look {\"at\": \"a.txt\"}\nmock: reply all is well", tools=tools, **common)
call = next(item for item in first.output if item.type == "function_call")
say(f"{call.name} {json.loads(call.arguments)}")
result = {"type": "function_call_output", "call_id": call.call_id, "output": "fine"}
with client.responses.stream(
        previous_response_id=first.id, input=[result], tools=tools, **common) as stream:
    said = "".join(e.delta for e in stream if e.type == "response.output_text.delta")
    second = stream.get_final_response()
assert second.output_text == said and second.usage.output_tokens > 0, second
say(said)
if os.environ["OUTLAST_ATTEMPT"] == "2":
    os.kill(os.getppid(), signal.SIGKILL)
    signal.pause()
last = client.responses.create(previous_response_id=second.id, input="and now\nmock: reply done", **common)
assert client.responses.retrieve(last.id).output_text == last.output_text
say(last.output_text.splitlines()[-1])
"#;

const ANTHROPIC: &str = r#"
import os, signal
from anthropic import Anthropic

client = Anthropic()
tools = [{"name": "look", "input_schema": {"type": "object", "properties": {"at": {"type": "string"}}}}]
messages = [{"role": "user", "content": "work\nmock: tool look {\"at\": \"a.txt\"}\nmock: reply all is well"}]

def say(text):
    with open("../told", "a") as told:
        told.write(f"{os.environ['OUTLAST_ATTEMPT']} {text}\n")

first = client.messages.create(model="claude-haiku-4-5", max_tokens=50, messages=messages, tools=tools)
call = next(block for block in first.content if block.type == "tool_use")
say(f"{call.name} {call.input}")
messages += [{"role": "assistant", "content": [block.model_dump(exclude_none=True) for block in first.content]},
             {"role": "user", "content": [{"type": "tool_result", "tool_use_id": call.id, "content": "fine"}]}]
with client.messages.stream(model="claude-haiku-4-5", max_tokens=50, messages=messages, tools=tools) as stream:
    said = "".join(stream.text_stream)
say(said)
if os.environ["OUTLAST_ATTEMPT"] == "2":
    os.kill(os.getppid(), signal.SIGKILL)
    signal.pause()
messages += [{"role": "assistant", "content": said}, {"role": "user", "content": "and now\nmock: reply done"}]
last = client.messages.create(model="claude-haiku-4-5", max_tokens=50, messages=messages)
say(last.content[0].text.splitlines()[-1])
"#;

fn check(agent: &str) {
    let python = std::env::var("OUTLAST_TEST_PYTHON")
        .expect("OUTLAST_TEST_PYTHON names a Python with the packages openai and anthropic: run `make test`");
    let bed = Bed::with_mock(&["--latency", "100ms"]);
    let file = bed.write("agent.py", agent);
    let mut run = bed.outlast(&["run", "--run", "r", "--kill-at", "call:2:mid", "--"]);
    run.args([&python, text(&file)]);
    bed.run(run).code(137).tells(&["killing the agent (--kill-at)", "attempt 1 died (killed by SIGKILL)"]);
    bed.does(&["resume", "r"]).code(0);
    let told = bed.text("told");
    let lives: Vec<&str> = told.lines().collect();
    let looks = "look {'at': 'a.txt'}";
    let wanted = [
        format!("1 {looks}"),
        format!("2 {looks}"),
        "2 all is well".into(),
        format!("3 {looks}"),
        "3 all is well".into(),
    ];
    assert_eq!(lives[..5], wanted, "{told}");
    assert!(lives[5].starts_with("3 ") && lives.len() == 6, "{told}");
    assert_eq!((bed.paid(), bed.status("r").as_str()), (3, "completed"));
}

#[test]
fn openai_agent_is_killed_twice_and_pays_for_three_calls() {
    check(OPENAI);
}

#[test]
fn responses_agent_is_killed_twice_and_pays_for_three_calls() {
    check(RESPONSES);
}

#[test]
fn anthropic_agent_is_killed_twice_and_pays_for_three_calls() {
    check(ANTHROPIC);
}
