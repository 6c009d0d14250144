//! The agents: Python scripts that know nothing of Outlast but what an SDK reads from its environment.

use std::process::Command;

use crate::bed::{Bed, text};

/// Makes N calls one after another and writes each answer down. Its plan is its argument, in JSON:
/// `dialect`, `stream`, `calls`, and once in all its lives `kill`: who (`parent`, itself by `self`), before
/// or in flight at which call; `log` is the provider's, `slow_ms` how long the killed call takes.
const CALLS: &str = r#"
import http.client, json, os, signal, sys, threading, time, urllib.parse

plan = json.loads(sys.argv[1])
openai = plan["dialect"] == "openai"
base = urllib.parse.urlsplit(os.environ["OPENAI_BASE_URL" if openai else "ANTHROPIC_BASE_URL"])
key = os.environ["OPENAI_API_KEY" if openai else "ANTHROPIC_API_KEY"]
kill = plan.get("kill")
attempt = os.environ.get("OUTLAST_ATTEMPT")

def told(text):
    with open(plan["out"], "a") as out:
        out.write(text + "\n")

def once(name):
    try:
        os.close(os.open(plan["out"] + "." + name, os.O_CREAT | os.O_EXCL))
        return True
    except FileExistsError:
        return False

def paid():
    try:
        with open(plan["log"]) as log:
            return log.read().count("\n")
    except FileNotFoundError:
        return 0

def strike():
    os.kill(os.getppid() if kill["who"] == "parent" else os.getpid(), signal.SIGKILL)
    signal.pause()

def strike_when_paid(before):
    while paid() == before:
        time.sleep(0.002)
    strike()

def ask(i):
    text = f"call {i}\nmock: reply answer {i} of five words"
    if kill and kill["at"] == i and kill["when"] == "flight":
        text += f"\nmock: latency {plan['slow_ms']}ms"
    body = {"model": "gpt-4o-mini" if openai else "claude-haiku-4-5", "max_tokens": 50,
            "stream": plan["stream"], "messages": [{"role": "user", "content": text}]}
    headers = {"Content-Type": "application/json"}
    if openai:
        headers["Authorization"] = "Bearer " + key
    else:
        headers |= {"x-api-key": key, "anthropic-version": "2023-06-01"}
    connection = http.client.HTTPConnection(base.hostname, base.port, timeout=120)
    path = base.path + ("/chat/completions" if openai else "/v1/messages")
    connection.request("POST", path, json.dumps(body), headers)
    response = connection.getresponse()
    if response.status != 200:
        told(f"{attempt} {i} refused {response.status} {response.read().decode()}")
        sys.exit(1)
    if not plan["stream"]:
        answer = json.loads(response.read())
        return answer["choices"][0]["message"]["content"] if openai else answer["content"][0]["text"]
    parts, ended = [], False
    for line in response:
        if not line.startswith(b"data: "):
            continue
        data = line[6:].strip()
        if data == b"[DONE]":
            ended = True
            continue
        event = json.loads(data)
        if openai:
            parts += [c["delta"].get("content") or "" for c in event["choices"]]
        else:
            ended |= event["type"] == "message_stop"
            if event["type"] == "content_block_delta":
                parts.append(event["delta"]["text"])
    assert ended, "the stream broke off"
    return "".join(parts)

for i in range(1, plan["calls"] + 1):
    if kill and kill["at"] == i and once("killed"):
        if kill["when"] == "before":
            strike()
        threading.Thread(target=strike_when_paid, args=[paid()], daemon=True).start()
    answer = ask(i)
    told(f"{attempt} {i} {answer}")
    assert answer == f"answer {i} of five words", answer
told(f"{attempt} finished")
"#;

/// A dialect, streamed or not.
#[derive(Clone, Copy, Debug)]
pub struct Kind {
    pub dialect: &'static str,
    pub stream: bool,
}

pub const KINDS: [Kind; 4] = [
    Kind { dialect: "openai", stream: false },
    Kind { dialect: "openai", stream: true },
    Kind { dialect: "anthropic", stream: false },
    Kind { dialect: "anthropic", stream: true },
];

/// When an agent kills, once.
#[derive(Clone, Copy, Debug)]
pub struct Kill {
    /// `parent`, the supervisor; `self`.
    pub who: &'static str,
    pub at: u32,
    /// `before` the call, or while it is in `flight`.
    pub when: &'static str,
}

/// An agent's command: `python3 script plan`.
pub struct Calls {
    pub kind: Kind,
    pub calls: u32,
    pub kill: Option<Kill>,
}

impl Calls {
    pub fn new(calls: u32) -> Calls {
        Calls { kind: KINDS[0], calls, kill: None }
    }

    /// Writes the script and gives the words after `--`.
    pub fn words(&self, bed: &Bed) -> Vec<String> {
        let script = bed.write("calls.py", CALLS);
        let kill = self.kill.map(|k| serde_json::json!({"who": k.who, "at": k.at, "when": k.when}));
        let plan = serde_json::json!({
            "dialect": self.kind.dialect,
            "stream": self.kind.stream,
            "calls": self.calls,
            "kill": kill,
            "slow_ms": 1000,
            "out": bed.path("told"),
            "log": bed.path("paid.log"),
        });
        ["python3", "-SE", text(&script), &plan.to_string()].map(str::to_owned).to_vec()
    }

    /// `outlast run FLAGS -- agent`.
    pub fn under(&self, bed: &Bed, flags: &[&str]) -> Command {
        let mut command = bed.outlast(&["run"]);
        command.args(flags).arg("--").args(self.words(bed));
        command
    }
}

/// `outlast run FLAGS -- python3 -SE SCRIPT ARGS`.
pub fn script(bed: &Bed, flags: &[&str], script: &str, args: &[&str]) -> Command {
    let file = bed.write("agent.py", script);
    let mut command = bed.outlast(&["run"]);
    command.args(flags).args(["--", "python3", "-SE", text(&file)]).args(args);
    command
}

/// `outlast run FLAGS -- sh -c SCRIPT`.
pub fn shell(bed: &Bed, flags: &[&str], script: &str) -> Command {
    let mut command = bed.outlast(&["run"]);
    command.args(flags).args(["--", "sh", "-c", script]);
    command
}

/// A shell agent that says it is up and ends when it may. The bed is the directory above.
pub const UP_UNTIL_GO: &str = "echo $$ >> ../up; while [ ! -e ../go ]; do sleep 0.02; done";
