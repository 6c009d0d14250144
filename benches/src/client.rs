//! Load generator with keep-alive connections that use little CPU themselves.

use std::time::{Duration, Instant};

use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::TcpStream,
};

use crate::stats::Samples;

/// One keep-alive connection.
pub struct Connection {
    stream: TcpStream,
    buffer: Vec<u8>,
}

/// Answer to a request, with its timing.
pub struct Came {
    pub status: u16,
    /// Time until the first byte of the body.
    pub first: Duration,
    pub total: Duration,
    pub replayed: bool,
}

impl Connection {
    pub async fn open(address: &str) -> Connection {
        let stream = TcpStream::connect(address).await.expect("connected");
        stream.set_nodelay(true).expect("nodelay");
        Connection { stream, buffer: Vec::with_capacity(64 << 10) }
    }

    /// Sends one request and reads the whole answer.
    pub async fn ask(&mut self, request: &[u8]) -> Came {
        let began = Instant::now();
        self.stream.write_all(request).await.expect("sent");
        self.buffer.clear();
        let mut head = None;
        let mut first = None;
        loop {
            if self.stream.read_buf(&mut self.buffer).await.expect("read") == 0 {
                panic!("the connection was closed: {}", String::from_utf8_lossy(&self.buffer));
            }
            if head.is_none() {
                head = find(&self.buffer, b"\r\n\r\n").map(|at| Head::read(&self.buffer[..at], at + 4));
            }
            let Some(head) = &head else { continue };
            if self.buffer.len() > head.body_at {
                first.get_or_insert_with(|| began.elapsed());
            }
            let done = match head.length {
                Some(n) => self.buffer.len() >= head.body_at + n,
                None => self.buffer.ends_with(b"\r\n0\r\n\r\n") || self.buffer.ends_with(b"0\r\n\r\n"),
            };
            if done {
                let total = began.elapsed();
                return Came {
                    status: head.status,
                    first: first.unwrap_or(total),
                    total,
                    replayed: head.replayed,
                };
            }
        }
    }
}

struct Head {
    status: u16,
    length: Option<usize>,
    body_at: usize,
    replayed: bool,
}

impl Head {
    fn read(bytes: &[u8], body_at: usize) -> Head {
        let text = String::from_utf8_lossy(bytes).to_ascii_lowercase();
        let value = |name: &str| {
            text.lines()
                .find_map(|l| l.strip_prefix(name))
                .map(|v| v.trim_start_matches(':').trim().to_owned())
        };
        Head {
            status: text.split(' ').nth(1).and_then(|s| s.parse().ok()).unwrap_or(0),
            length: value("content-length").and_then(|v| v.parse().ok()),
            body_at,
            replayed: value("x-outlast-replayed").is_some(),
        }
    }
}

fn find(haystack: &[u8], needle: &[u8]) -> Option<usize> {
    haystack.windows(needle.len()).position(|w| w == needle)
}

/// Returns a chat request of about 400 bytes. Each `n` makes a different one.
pub fn request(host: &str, run: &str, attempt: &str, n: u64, stream: bool) -> Vec<u8> {
    let script = if stream { "mock: tokens 50\\n" } else { "" };
    let body = format!(
        "{{\"model\":\"gpt-4o-mini\",\"max_tokens\":100,\"stream\":{stream},\"messages\":[{{\"role\":\"system\",\"content\":\"You are a helpful assistant that answers in one short sentence.\"}},{{\"role\":\"user\",\"content\":\"{script}What is the answer to question number {n} of this long list of questions?\"}}]}}"
    );
    format!(
        "POST /v1/chat/completions HTTP/1.1\r\nhost: {host}\r\nauthorization: Bearer sk-bench-key\r\ncontent-type: application/json\r\nx-outlast-run: {run}\r\nx-outlast-attempt: {attempt}\r\ncontent-length: {}\r\n\r\n{body}",
        body.len()
    )
    .into_bytes()
}

/// Result of a load.
pub struct Load {
    pub per_second: f64,
    pub total: Samples,
    pub first: Samples,
    pub calls: u64,
    pub replayed: u64,
}

/// A number that differs between the connections of a measurement.
fn number_of(name: &str) -> u64 {
    name.bytes().fold(7, |hash, byte| (hash * 31 + u64::from(byte)) % 0xFFFF)
}

/// Parameters of a load.
#[derive(Clone, Copy)]
pub struct Plan<'a> {
    pub address: &'a str,
    pub connections: usize,
    pub seconds: u64,
    /// Prefix of run names, which are `tag-connection`.
    pub tag: &'a str,
    /// The run of all connections; `None`: each connection has one of its own.
    pub run: Option<&'a str>,
    pub attempt: &'a str,
    pub stream: bool,
    /// Largest number of calls per connection, numbered from 0: a second load repeats the first.
    pub most: u64,
}

impl Load {
    /// Sums up loads that ran beside each other.
    pub fn sum(loads: Vec<Load>) -> Load {
        let mut sum = Load {
            per_second: 0.0,
            total: Samples::default(),
            first: Samples::default(),
            calls: 0,
            replayed: 0,
        };
        for load in loads {
            sum.per_second += load.per_second;
            sum.total.extend(load.total);
            sum.first.extend(load.first);
            sum.calls += load.calls;
            sum.replayed += load.replayed;
        }
        sum
    }
}

/// Drives the plan's connections for its number of seconds.
pub async fn load(plan: Plan<'_>) -> Load {
    let until = Instant::now() + Duration::from_secs(plan.seconds);
    let began = Instant::now();
    let mut tasks = Vec::new();
    for c in 0..plan.connections {
        let own = format!("{}-{c}", plan.tag);
        // No two connections of one run ask the same.
        let first = if plan.run.is_some() { number_of(&own) << 24 } else { 0 };
        let (address, run, attempt) =
            (plan.address.to_owned(), plan.run.map_or(own, str::to_owned), plan.attempt.to_owned());
        let (stream, most) = (plan.stream, plan.most);
        tasks.push(tokio::spawn(async move {
            let mut connection = Connection::open(&address).await;
            let (mut total, mut begun, mut n, mut replayed) = (Samples::default(), Samples::default(), 0, 0);
            while n < most && Instant::now() < until {
                let came = connection.ask(&request(&address, &run, &attempt, first + n, stream)).await;
                assert_eq!(came.status, 200, "call {n} of {run}");
                total.add(came.total);
                begun.add(came.first);
                replayed += u64::from(came.replayed);
                n += 1;
            }
            (total, begun, n, replayed)
        }));
    }
    let mut each = Vec::new();
    for task in tasks {
        let (total, first, calls, replayed) = task.await.expect("a connection");
        each.push(Load { per_second: 0.0, total, first, calls, replayed });
    }
    let mut out = Load::sum(each);
    out.per_second = out.calls as f64 / began.elapsed().as_secs_f64();
    out
}
