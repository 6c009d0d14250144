//! An agent that dies again and again and gets on each time.

use crate::{
    agents::script,
    bed::{Bed, until},
};

const LIVES: usize = 41;

/// Each life asks what the last one was answered, asks one thing more, and dies by SIGKILL.
const ONE_STEP_A_LIFE: &str = r#"
import http.client, json, os, signal, sys, urllib.parse
base = urllib.parse.urlsplit(os.environ["OPENAI_BASE_URL"])
def ask(i):
    connection = http.client.HTTPConnection(base.hostname, base.port, timeout=120)
    body = {"model": "gpt-4o-mini", "max_tokens": 10,
            "messages": [{"role": "user", "content": f"step {i}\nmock: reply answer {i}"}]}
    headers = {"Authorization": "Bearer " + os.environ["OPENAI_API_KEY"], "Content-Type": "application/json"}
    connection.request("POST", base.path + "/chat/completions", json.dumps(body), headers)
    answer = connection.getresponse()
    text = json.loads(answer.read())["choices"][0]["message"]["content"]
    assert text == f"answer {i}", text
done = open("../steps").read().count("\n") if os.path.exists("../steps") else 0
if done: ask(done - 1)
ask(done)
with open("../steps", "a") as steps: steps.write(f"{done}\n")
if done + 1 < int(sys.argv[1]): os.kill(os.getpid(), signal.SIGKILL)
"#;

#[test]
fn forty_restarts_of_an_agent_that_gets_on_lose_no_step_and_do_none_twice() {
    // Bug: an agent that got on in each of its short lives waited up to five minutes before the next.
    // Consequence: a hundred restarts took hours. Cause: only a minute's life ended the row of failures.
    let bed = Bed::new();
    let run = bed.start(script(&bed, &["--run", "r"], ONE_STEP_A_LIFE, &[&LIVES.to_string()]));
    for steps in (10..=LIVES).step_by(7) {
        until(&format!("{steps} steps"), || (bed.text("steps").lines().count() >= steps).then_some(()));
    }
    run.done().code(0);
    let wanted: Vec<String> = (0..LIVES).map(|i| i.to_string()).collect();
    assert_eq!(bed.text("steps").lines().collect::<Vec<_>>(), wanted);
    assert_eq!((bed.paid(), bed.spent("r", "calls"), bed.spent("r", "restarts")), (LIVES, LIVES as i64, 40));
    assert_eq!(bed.show("r")["replayed"], 40);
}
