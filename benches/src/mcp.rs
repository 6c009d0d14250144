//! Measures what the recorder adds to an MCP server's answers: of tool calls, which it syncs to the disk twice, and of
//! lists and reads, which it passes on.

use std::{
    io::{BufRead as _, BufReader, Write as _},
    path::Path,
    process::{Child, ChildStdin, ChildStdout, Command, Stdio},
    time::{Duration, Instant},
};

use serde_json::{Value, json};

use crate::{
    raw::Raw,
    report::{Row, Unit, section},
    servers::outlast,
    stats::Samples,
};

/// Kinds of requests, the milliseconds that each may take longer for a fdatasync of 1 ms, and those beside it.
const KINDS: [(&str, f64, f64); 3] =
    [("tools/call", 2.0, 0.5), ("tools/list", 0.0, 0.3), ("resources/read", 0.0, 0.3)];

/// Answers every request at once, until its input ends. For `measure`, in a process of its own.
pub fn serve() {
    let (mut out, mut line) = (std::io::stdout().lock(), String::new());
    let mut input = std::io::stdin().lock();
    while {
        line.clear();
        input.read_line(&mut line).is_ok_and(|n| n > 0)
    } {
        let Ok(request) = serde_json::from_str::<Value>(&line) else { continue };
        let (Some(id), Some(method)) = (request.get("id"), request["method"].as_str()) else { continue };
        let result = match method {
            "initialize" => json!({
                "protocolVersion": "2025-06-18", "serverInfo": {"name": "bench", "version": "1"},
                "capabilities": {"tools": {}, "resources": {}},
            }),
            "tools/list" => json!({"tools": [{"name": "note", "inputSchema": {"type": "object"}}]}),
            "tools/call" => json!({"content": [{"type": "text", "text": "noted ".repeat(20)}]}),
            "resources/read" => json!({"contents": [{"uri": "note://a", "text": "noted ".repeat(20)}]}),
            _ => json!({}),
        };
        let answer = json!({"jsonrpc": "2.0", "id": id, "result": result});
        if writeln!(out, "{answer}").and_then(|()| out.flush()).is_err() {
            return;
        }
    }
}

/// Asks a server directly and through `outlast mcp`, in turns, for `seconds`.
pub fn measure(dir: &Path, seconds: u64, raw: &Raw) {
    section("MCP servers");
    let me = std::env::current_exe().expect("this program");
    let mut direct = Command::new(&me);
    direct.arg("mcp-server");
    let mut recorder = outlast();
    recorder.env("HOME", dir).arg("--store").arg(dir.join("mcp.db"));
    recorder.args(["mcp", "--run", "bench", "--name", "b", "--"]).arg(&me).arg("mcp-server");
    let mut clients = [Client::of(direct), Client::of(recorder)];
    let mut samples: [[Samples; 3]; 2] = Default::default();
    let until = Instant::now() + Duration::from_secs(seconds.max(2));
    while Instant::now() < until {
        for (client, samples) in clients.iter_mut().zip(&mut samples) {
            for ((method, ..), samples) in KINDS.iter().zip(samples) {
                samples.add(client.ask(method));
            }
        }
    }
    let [directly, recorded] = &mut samples;
    for (((method, synced, beside), direct), through) in KINDS.iter().zip(directly).zip(recorded) {
        let (with, without) = (through.p50(), direct.p50());
        let (added, most) = (with - without, synced * raw.p50_ms + beside);
        let of = if *synced > 0.0 { "2 x fdatasync + " } else { "" };
        Row::new(format!("{method} behind the recorder, p50"), Unit::Ms, with)
            .limit("the server alone", without)
            .note(format!("p99 {:.3} ms", through.p99()))
            .goal(added <= most, &format!("added {added:.3} of {most:.3} ms: {of}{beside}"))
            .tell();
    }
}

/// A client of a server on its standard input and output.
struct Client {
    child: Child,
    to: ChildStdin,
    from: BufReader<ChildStdout>,
    asked: u64,
}

impl Drop for Client {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Client {
    fn of(mut command: Command) -> Client {
        let mut child =
            command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("a server of MCP");
        let to = child.stdin.take().expect("its input");
        let from = BufReader::new(child.stdout.take().expect("its output"));
        let mut client = Client { child, to, from, asked: 0 };
        client.ask("initialize");
        client.send(&json!({"jsonrpc": "2.0", "method": "notifications/initialized"}));
        client
    }

    fn send(&mut self, message: &Value) {
        writeln!(self.to, "{message}").and_then(|()| self.to.flush()).expect("a server that reads");
    }

    /// Asks, and returns how long the answer took. No two calls are equal.
    fn ask(&mut self, method: &str) -> Duration {
        self.asked += 1;
        let params = match method {
            "initialize" => json!({
                "protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": {"name": "bench", "version": "1"},
            }),
            "tools/call" => json!({"name": "note", "arguments": {"n": self.asked}}),
            "resources/read" => json!({"uri": "note://a"}),
            _ => json!({}),
        };
        let request = json!({"jsonrpc": "2.0", "id": self.asked, "method": method, "params": params});
        let (began, mut line) = (Instant::now(), String::new());
        self.send(&request);
        self.from.read_line(&mut line).expect("an answer");
        let took = began.elapsed();
        let answer: Value = serde_json::from_str(&line).unwrap_or_default();
        assert!(answer["id"] == self.asked && answer["result"].is_object(), "{method}: {line}");
        took
    }
}
