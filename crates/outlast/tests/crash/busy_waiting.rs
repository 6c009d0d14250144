//! An agent that asks for the same thing again and again is told by `show`; one that gets on is not.

use crate::{agents::script, bed::Bed};

/// Calls a tool so many times, each time with the results so far. What the tool says is an expression of Python's.
const LOOPS: &str = r#"
import http.client, json, os, sys, urllib.parse
base = urllib.parse.urlsplit(os.environ["OPENAI_BASE_URL"])
messages = [{"role": "user", "content": "wait for it"}]
for n in range(int(sys.argv[1])):
    connection = http.client.HTTPConnection(base.hostname, base.port, timeout=120)
    body = {"model": "gpt-4o-mini", "max_tokens": 10, "messages": messages}
    headers = {"Authorization": "Bearer " + os.environ["OPENAI_API_KEY"], "Content-Type": "application/json"}
    connection.request("POST", base.path + "/chat/completions", json.dumps(body, separators=(",", ":")), headers)
    assert connection.getresponse().read()
    call = {"id": "call_%d" % n, "type": "function", "function": {"name": "status", "arguments": "{}"}}
    messages.append({"role": "assistant", "content": None, "tool_calls": [call]})
    messages.append({"role": "tool", "tool_call_id": call["id"], "content": eval(sys.argv[2])})
"#;

fn repeated(says: &str) -> (i64, String) {
    let bed = Bed::new();
    bed.run(script(&bed, &["--run", "r"], LOOPS, &["30", says])).code(0);
    (bed.show("r")["money"]["busy_waiting_calls"].as_i64().unwrap(), bed.does(&["show", "r"]).code(0).text)
}

#[test]
fn a_poll_that_is_told_nothing_new_is_seen() {
    let (calls, shown) = repeated("'in progress, %d s' % n");
    // The first request has no result yet, and the second nothing to repeat.
    assert!(calls >= 26, "{calls}");
    assert!(shown.contains("told nothing new"), "{shown}");
}

#[test]
fn an_agent_that_is_told_something_new_each_time_does_not_wait() {
    let (calls, shown) = repeated("'file ' + chr(97 + n % 26) * (1 + n // 26)");
    assert_eq!(calls, 0);
    assert!(!shown.contains("told nothing new"), "{shown}");
}
