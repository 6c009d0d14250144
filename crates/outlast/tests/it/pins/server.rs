//! A fake provider and a server on it; requests byte by byte, and what of an answer is a promise.

use std::{
    fs::{self, File},
    io::{Read as _, Write as _},
    net::TcpStream,
    os::unix::process::CommandExt as _,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    time::{Duration, Instant},
};

use serde_json::Value;

use super::shape::short;

const LONGEST: Duration = Duration::from_secs(60);

/// Waits until `found` finds something.
#[track_caller]
pub fn until<T>(what: &str, mut found: impl FnMut() -> Option<T>) -> T {
    let began = Instant::now();
    loop {
        if let Some(found) = found() {
            return found;
        }
        assert!(began.elapsed() < LONGEST, "waited in vain: {what}");
        std::thread::yield_now();
    }
}

/// A process that ends with its test.
pub struct Running {
    pub child: Child,
    log: PathBuf,
}

impl Running {
    pub fn start(command: &mut Command, log: PathBuf) -> Running {
        let file = File::create(&log).unwrap();
        command.stdin(Stdio::null()).stdout(file.try_clone().unwrap()).stderr(file);
        Running { child: command.process_group(0).spawn().unwrap(), log }
    }

    /// The word behind `mark` in what it prints.
    pub fn tells(&mut self, mark: &str) -> String {
        until(mark, || {
            let text = fs::read_to_string(&self.log).unwrap();
            assert!(self.child.try_wait().unwrap().is_none(), "it ended: {text}");
            let rest = text.split_once(mark)?.1;
            let end = rest.find([' ', ',', '\n', '/'])?;
            Some(rest[..end].to_owned())
        })
    }

    pub fn signal(&self, signal: rustix::process::Signal) {
        rustix::process::kill_process(rustix::process::Pid::from_child(&self.child), signal).unwrap();
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// `outlast WORDS` in `dir`, which is its home, on the store `runs.db` there.
pub fn outlast(dir: &Path, words: &[&str]) -> Command {
    let mut command = Command::new(assert_cmd::cargo::cargo_bin!("outlast"));
    command
        .args(words)
        .env_clear()
        .env("HOME", dir)
        .current_dir(dir)
        .env("OUTLAST_STORE", dir.join("runs.db"));
    command.env("PATH", "/usr/local/bin:/usr/bin:/bin").env("USER", "ann");
    command
}

/// Output of `outlast WORDS`, which has to succeed.
#[track_caller]
pub fn told(dir: &Path, words: &[&str]) -> String {
    let output = outlast(dir, words).output().unwrap();
    assert!(output.status.success(), "{words:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

/// A provider.
pub struct Provider {
    _running: Running,
    address: String,
}

impl Provider {
    pub fn start(dir: &Path) -> Provider {
        let mut running =
            Running::start(&mut outlast(dir, &["mock", "--listen", "127.0.0.1:0"]), dir.join("mock.log"));
        let address = running.tells("http://");
        Provider { _running: running, address }
    }

    /// The variables that lead to it.
    pub fn variables(&self) -> [(&'static str, String); 3] {
        let url = format!("http://{}", self.address);
        [
            ("OPENAI_BASE_URL", format!("{url}/v1")),
            ("ANTHROPIC_BASE_URL", url.clone()),
            ("GOOGLE_GEMINI_BASE_URL", url),
        ]
    }
}

/// `outlast serve FLAGS` on a free port.
pub struct Server {
    pub running: Running,
    pub at: String,
}

impl Server {
    pub fn start(dir: &Path, provider: &Provider, flags: &[&str]) -> Server {
        let mut command = outlast(dir, &["serve", "--listen", "127.0.0.1:0"]);
        command.args(flags).envs(provider.variables());
        let mut running = Running::start(&mut command, dir.join(format!("serve-{}.log", flags.len())));
        let at = running.tells("serving on http://");
        Server { running, at }
    }

    pub fn ask(&self, method: &str, target: &str, headers: &[(&str, &str)], body: &str) -> Answer {
        ask(&self.at, method, target, headers, body.as_bytes())
    }
}

/// An answer.
pub struct Answer {
    pub status: u16,
    pub headers: Vec<(String, String)>,
    pub text: String,
}

/// Sends a request and reads its answer to the end of the connection.
pub fn ask(at: &str, method: &str, target: &str, headers: &[(&str, &str)], body: &[u8]) -> Answer {
    let mut stream = TcpStream::connect(at).unwrap();
    stream.set_read_timeout(Some(LONGEST)).unwrap();
    let mut head = format!("{method} {target} HTTP/1.1\r\nconnection: close\r\n");
    if !headers.iter().any(|(name, _)| *name == "host") {
        head += &format!("host: {at}\r\n");
    }
    headers.iter().for_each(|(name, value)| head += &format!("{name}: {value}\r\n"));
    if !body.is_empty() || method != "GET" {
        head += &format!("content-length: {}\r\n", body.len());
    }
    // The server may answer before it has read all of it.
    let _ = stream.write_all(format!("{head}\r\n").as_bytes()).and_then(|()| stream.write_all(body));
    let mut all = Vec::new();
    let _ = stream.read_to_end(&mut all);
    let all = String::from_utf8_lossy(&all).into_owned();
    let (head, text) = all.split_once("\r\n\r\n").unwrap_or((&all, ""));
    let is_chunked = head.to_ascii_lowercase().contains("\r\ntransfer-encoding: chunked");
    let text = if is_chunked { unframed(text) } else { text.to_owned() };
    let mut lines = head.lines();
    let status = lines.next().and_then(|l| l.split(' ').nth(1)?.parse().ok()).unwrap_or(0);
    let header = |line: &str| line.split_once(": ").map(|(n, v)| (n.to_ascii_lowercase(), v.to_owned()));
    Answer { status, headers: lines.filter_map(header).collect(), text }
}

/// Returns what the chunks of a body carry. Where a chunk ends is a matter of the connection, and no part of an answer.
#[track_caller]
fn unframed(mut chunks: &str) -> String {
    let mut text = String::new();
    loop {
        let (length, rest) = chunks.split_once("\r\n").expect("a chunk's length");
        let length = usize::from_str_radix(length, 16).unwrap();
        if length == 0 {
            return text;
        }
        text += &rest[..length];
        chunks = rest[length..].strip_prefix("\r\n").expect("a chunk's end");
    }
}

impl Answer {
    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find(|(n, _)| n == name).map(|(_, v)| v.as_str())
    }

    pub fn json(&self) -> Value {
        serde_json::from_str(&self.text).unwrap_or_default()
    }

    /// Status, code and our headers; of a body of ours its shape, of a provider's only its type.
    pub fn told(&self, with_body: bool) -> String {
        let mut out = self.status.to_string();
        if let Some(code) = self.header("x-outlast-code") {
            out += &format!(" {code}");
        }
        for (name, value) in &self.headers {
            match name.as_str() {
                "content-type" | "x-should-retry" | "cache-control" | "allow" => {
                    out += &format!(" | {name}: {value}");
                }
                "x-outlast-code" => {}
                _ if name.starts_with("x-outlast-")
                    || name.starts_with("x-riskkernel-")
                    || name == "retry-after" =>
                {
                    out += &format!(" | {name}");
                }
                _ => {}
            }
        }
        match (with_body, serde_json::from_str::<Value>(&self.text)) {
            (true, Ok(body)) if body.is_object() || body.is_array() => out += &format!(" | {}", short(&body)),
            (true, _) if !self.text.is_empty() && self.text.len() < 60 => {
                out += &format!(" | {:?}", self.text)
            }
            _ => {}
        }
        out + "\n"
    }
}
