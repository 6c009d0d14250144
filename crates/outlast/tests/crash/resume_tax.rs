//! Input that a restarted agent buys again although the provider's cache had it: seen, priced and explained.

use crate::{agents::script, bed::Bed};

/// Each life sends the conversation so far and one message more, with a system text of its own, and the first one dies.
const TALKS: &str = r#"
import http.client, json, os, signal, sys, urllib.parse
base = urllib.parse.urlsplit(os.environ["ANTHROPIC_BASE_URL"])
life = 2 if os.path.exists("../lived") else 1
def ask(messages):
    connection = http.client.HTTPConnection(base.hostname, base.port, timeout=120)
    mark = {"cache_control": {"type": "ephemeral"}}
    body = {"model": "claude-sonnet-4-5", "max_tokens": 10, "messages": messages,
            "system": [{"type": "text", "text": "x" * 8000},
                       {"type": "text", "text": "the status is " + sys.argv[life], **mark}]}
    messages[-1]["content"][-1].update(mark)
    headers = {"x-api-key": os.environ["ANTHROPIC_API_KEY"], "anthropic-version": "2023-06-01",
               "Content-Type": "application/json"}
    connection.request("POST", base.path + "/v1/messages", json.dumps(body), headers)
    answer = json.loads(connection.getresponse().read())
    del messages[-1]["content"][-1]["cache_control"]
    return answer["content"][0]["text"]
user = lambda text: {"role": "user", "content": [{"type": "text", "text": text}]}
messages = [user("do it\nmock: reply yes"), {"role": "assistant", "content": "yes"}, user("y" * 8000)]
if life == 1:
    ask(messages[:1])
    ask(messages)
    open("../lived", "w").close()
    os.kill(os.getpid(), signal.SIGKILL)
ask(messages + [{"role": "assistant", "content": "yes"}, user("go on")])
"#;

fn lives(first: &str, second: &str) -> Bed {
    let bed = Bed::new();
    bed.run(script(&bed, &["--run", "r"], TALKS, &[first, second])).code(0);
    bed
}

#[test]
fn what_a_restart_bought_again_is_told_with_the_first_byte_that_differs() {
    let bed = lives("clean", "dirty");
    let told = bed.json(&["journal", "r", "--cache"]);
    let one = &told["resumptions"][0];
    assert_eq!((&one["before"], &one["after"]), (&2.into(), &3.into()), "{told}");
    assert_eq!(one["difference"]["place"], "system[1]");
    assert!(one["difference"]["before"].as_str().unwrap().ends_with("clean\"}"), "{told}");
    // Nothing was marked before the text that changed: all that the cache had is bought again.
    assert_eq!(one["read_tokens"], 0);
    let tokens = one["rebought_tokens"].as_i64().unwrap();
    assert!(tokens > 4000, "{told}");
    let shown = bed.show("r")["money"]["resume_tax"].clone();
    assert_eq!(shown["rebought_tokens"], tokens);
    // Written at 3.75 instead of read at 0.30 usd per million.
    assert_eq!(shown["rebought_nano_usd"], tokens * 3450);
    bed.does(&["show", "r"]).code(0).tells(&["re-bought", "over 1 restart"]);
    bed.does(&["spend", "--resume-tax"]).code(0).tells(&["r: re-bought", "over 1 restart"]);
    let spend = bed.json(&["spend", "--resume-tax"]);
    assert_eq!(
        (&spend["resume_tax"][0]["run"], &spend["resume_tax"][0]["rebought_tokens"]),
        (&"r".into(), &tokens.into())
    );
    assert_eq!(bed.json(&["spend"])["resume_tax"], serde_json::Value::Null);
}

#[test]
fn a_restart_that_sends_the_same_prefix_buys_nothing_again() {
    let bed = lives("clean", "clean");
    let told = bed.json(&["journal", "r", "--cache"]);
    let one = &told["resumptions"][0];
    assert_eq!(
        (&one["difference"], &one["rebought_tokens"]),
        (&serde_json::Value::Null, &0.into()),
        "{told}"
    );
    assert!(one["read_tokens"].as_i64().unwrap() > 4000, "{told}");
    assert_eq!(bed.show("r")["money"]["resume_tax"]["rebought_tokens"], 0);
    bed.does(&["spend", "--resume-tax"]).code(0).tells(&["no restarted agent has bought anything again"]);
}
