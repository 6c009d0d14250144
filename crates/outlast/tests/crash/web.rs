//! Requests as a stranger sends them: no library between, every byte chosen here.

use std::{
    io::{Read, Write},
    net::{SocketAddr, TcpListener, TcpStream},
    process::Command,
    sync::atomic::{AtomicU32, Ordering},
};

use serde_json::{Value, json};

use crate::bed::{Bed, LONGEST, Proc, until};

/// Response of the server.
#[derive(Debug)]
pub struct Answer {
    pub status: u16,
    pub text: String,
}

impl Answer {
    /// The code in an error of either dialect's shape.
    pub fn code(&self) -> String {
        let body: Value = serde_json::from_str(&self.text).unwrap_or_default();
        let code = [&body["error"]["code"], &body["error"]["type"]];
        code.iter().find_map(|c| c.as_str()).unwrap_or_default().to_owned()
    }
}

/// A call of OpenAI's dialect.
pub fn call(text: &str) -> Value {
    json!({"model": "gpt-4o-mini", "max_tokens": 1000, "messages": [{"role": "user", "content": text}]})
}

/// Sends a call. `None`: the connection broke.
pub fn post(to: SocketAddr, headers: &[(&str, &str)], body: &Value) -> Option<Answer> {
    post_bytes(to, "/v1/chat/completions", headers, body.to_string().as_bytes())
}

pub fn post_bytes(to: SocketAddr, path: &str, headers: &[(&str, &str)], body: &[u8]) -> Option<Answer> {
    ask("POST", to, path, headers, body)
}

/// Sends a request. `None`: the connection broke.
pub fn ask(
    method: &str,
    to: SocketAddr,
    path: &str,
    headers: &[(&str, &str)],
    body: &[u8],
) -> Option<Answer> {
    let mut stream = TcpStream::connect(to).ok()?;
    stream.set_read_timeout(Some(LONGEST)).unwrap();
    let mut head = format!("{method} {path} HTTP/1.1\r\nhost: {to}\r\nconnection: close\r\n");
    for (name, value) in headers {
        head += &format!("{name}: {value}\r\n");
    }
    head += &format!("content-type: application/json\r\ncontent-length: {}\r\n\r\n", body.len());
    stream.write_all(head.as_bytes()).ok()?;
    stream.write_all(body).ok()?;
    let mut all = Vec::new();
    stream.read_to_end(&mut all).ok()?;
    let all = String::from_utf8_lossy(&all).into_owned();
    let (head, text) = all.split_once("\r\n\r\n")?;
    let status = head.split(' ').nth(1)?.parse().ok()?;
    Some(Answer { status, text: text.to_owned() })
}

/// A port that was free a moment ago.
///
/// The port is below those that the kernel gives out: no connection takes it while the server is away. Tests that run side by
/// side begin at different ones.
pub fn free_port() -> SocketAddr {
    static TAKEN: AtomicU32 = AtomicU32::new(0);
    let next = || {
        let port = 10_000 + (std::process::id() * 8 + TAKEN.fetch_add(1, Ordering::Relaxed)) % 20_000;
        let at = SocketAddr::from(([127, 0, 0, 1], port as u16));
        TcpListener::bind(at).is_ok().then_some(at)
    };
    std::iter::repeat_with(next).flatten().next().unwrap()
}

/// Starts `outlast serve FLAGS` there, and waits until it serves.
pub fn serve(bed: &Bed, at: SocketAddr, flags: &[&str]) -> Proc {
    let mut command = bed.outlast(&["serve", "--listen", &at.to_string()]);
    command.args(flags);
    serve_by(bed, command)
}

pub fn serve_by(bed: &Bed, command: Command) -> Proc {
    let mut server = bed.start(command);
    until("the server serves", || {
        assert!(server.child.try_wait().unwrap().is_none(), "it ended: {}", server.output());
        server.output().contains("serving on").then_some(())
    });
    server
}
