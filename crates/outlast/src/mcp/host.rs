//! Carries a session's deeds out: the client's pipes, the server's process, the ledger.

use std::{
    ffi::OsString,
    io::{self, BufRead as _, BufReader, Read, Write},
    process::{Child, Command, Stdio},
    sync::{Arc, Mutex, PoisonError, mpsc as channel},
    thread,
    time::Duration,
};

use tokio::sync::mpsc;

use super::{
    ledger::Ledger,
    session::{Deed, Event, Session},
    tools::Tools,
};
use crate::program::{error::CliError, exit_code, say::say};

/// Longest line of either side, in bytes.
const MAX_LINE: u64 = 256 << 20;

/// Longest wait for answers to calls that are out, once the client is gone.
const LAST_ANSWERS: Duration = Duration::from_secs(10);

/// Time that a server has to end by itself, once its input is closed.
const GRACE: Duration = Duration::from_secs(2);

/// Runs the recorder between the MCP client on this process's standard streams and the server that `command` starts,
/// until the client is gone. Returns the exit code.
pub fn run(ledger: Arc<Ledger>, tools: Tools, command: &[OsString]) -> Result<u8, CliError> {
    let runtime = tokio::runtime::Handle::current();
    let (events, inbox) = mpsc::unbounded_channel();
    let out = Writer::start(io::stdout());
    let client = events.clone();
    thread::spawn(move || {
        read_lines(io::stdin().lock(), |line| client.send(Event::Client(line)).is_ok());
        let _ = client.send(Event::ClientClosed);
    });
    let marks = Marks::default();
    let host = Host {
        ledger: ledger.clone(),
        events,
        out,
        command: command.to_vec(),
        server: None,
        marks: marks.clone(),
    };
    let code = runtime.block_on(async {
        let code = host.drive(inbox, tools).await;
        marks.made().await;
        code
    });
    ledger.leave()?;
    code
}

struct Host {
    ledger: Arc<Ledger>,
    events: mpsc::UnboundedSender<Event>,
    out: Writer,
    command: Vec<OsString>,
    server: Option<Server>,
    marks: Marks,
}

/// Marks of delivery that are on their way to the store. An answer without its mark would be given to another call.
#[derive(Clone, Default)]
struct Marks(Arc<Mutex<Vec<tokio::task::JoinHandle<()>>>>);

impl Marks {
    fn add(&self, mark: tokio::task::JoinHandle<()>) {
        let mut marks = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        marks.retain(|mark| !mark.is_finished());
        marks.push(mark);
    }

    /// Waits until all are made.
    async fn made(&self) {
        let marks = std::mem::take(&mut *self.0.lock().unwrap_or_else(PoisonError::into_inner));
        for mark in marks {
            let _ = mark.await;
        }
    }
}

struct Server {
    child: Arc<Mutex<Child>>,
    stdin: Writer,
}

impl Host {
    async fn drive(
        mut self,
        mut inbox: mpsc::UnboundedReceiver<Event>,
        tools: Tools,
    ) -> Result<u8, CliError> {
        let (mut session, mut deeds) = Session::new(tools);
        let mut terminate = tokio::signal::unix::signal(tokio::signal::unix::SignalKind::terminate())?;
        let mut interrupt = tokio::signal::unix::signal(tokio::signal::unix::SignalKind::interrupt())?;
        let mut deadline = None;
        loop {
            for deed in std::mem::take(&mut deeds) {
                match deed {
                    Deed::Start { pause_ms } => {
                        tokio::time::sleep(Duration::from_millis(pause_ms)).await;
                        self.start()?;
                        deeds.extend(session.started());
                    }
                    Deed::Quit { why } => {
                        self.end_server();
                        self.out.finish();
                        let Some(why) = why else { return Ok(exit_code::OK) };
                        say(&why);
                        return Ok(exit_code::FAILED);
                    }
                    deed => self.carry_out(deed),
                }
            }
            if !deeds.is_empty() {
                continue;
            }
            let over = async {
                match deadline {
                    Some(at) => tokio::time::sleep_until(at).await,
                    None => std::future::pending().await,
                }
            };
            let event = tokio::select! {
                event = inbox.recv() => event,
                _ = terminate.recv() => None,
                _ = interrupt.recv() => None,
                () = over => None,
            };
            let Some(event) = event else {
                self.end_server();
                self.out.finish();
                return Ok(exit_code::OK);
            };
            if matches!(event, Event::ClientClosed) {
                deadline = Some(tokio::time::Instant::now() + LAST_ANSWERS);
            }
            deeds = session.on(event);
        }
    }

    fn carry_out(&self, deed: Deed) {
        let (ledger, events) = (self.ledger.clone(), self.events.clone());
        let said = |e: CliError| match e.hint() {
            Some(hint) => format!("{e} ({hint})"),
            None => e.to_string(),
        };
        match deed {
            Deed::ToClient { line, mark: None } => self.out.write(line, || {}),
            Deed::ToClient { line, mark: Some(seq) } => {
                let (runtime, marks) = (tokio::runtime::Handle::current(), self.marks.clone());
                self.out.write(line, move || {
                    marks.add(runtime.spawn(async move {
                        if let Err(e) = ledger.delivered(seq).await {
                            tracing::warn!(error = %e, "an answer was not marked as delivered");
                        }
                    }));
                });
            }
            Deed::ToServer(line) => {
                if let Some(server) = &self.server {
                    server.stdin.write(line, || {});
                }
            }
            Deed::Reserve { no, call, manner, leaves, anew } => drop(tokio::spawn(async move {
                let verdict = ledger.reserve(&call, manner, leaves, anew).await;
                let _ = events.send(Event::Reserved(no, verdict.map_err(said)));
            })),
            Deed::Approve { no, call, manner, opening, patience_ms } => drop(tokio::spawn(async move {
                let patience = Duration::from_millis(patience_ms);
                let approval = ledger.approved(&call, manner, opening, patience).await;
                let _ = events.send(Event::Approved(no, approval.map_err(said)));
            })),
            Deed::Leave { no, opening } => drop(tokio::spawn(async move {
                let _ = events.send(Event::Left(no, ledger.leaves(opening).await.map_err(said)));
            })),
            Deed::Record { no, opening, body, failed } => drop(tokio::spawn(async move {
                let recorded = ledger.record(opening, &body, failed).await;
                let _ = events.send(Event::Recorded(no, recorded.map_err(said)));
            })),
            Deed::GiveUp { no, opening, tool } => drop(tokio::spawn(async move {
                let given_up = ledger.give_up(opening, &tool).await;
                let _ = events.send(Event::GivenUp(no, given_up.map_err(said)));
            })),
            // `drive` has taken these.
            Deed::Start { .. } | Deed::Quit { .. } => {}
        }
    }

    /// Starts the server. Its environment is this process's own.
    fn start(&mut self) -> Result<(), CliError> {
        self.end_server();
        let (program, arguments) =
            self.command.split_first().ok_or_else(|| io::Error::other("no command"))?;
        let mut child = Command::new(program)
            .args(arguments)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .map_err(|e| CliError::Usage {
                message: format!("the server {} cannot be started: {e}", program.to_string_lossy()),
                hint: Some("give its command behind --: outlast mcp -- CMD".into()),
            })?;
        let (Some(stdin), Some(stdout)) = (child.stdin.take(), child.stdout.take()) else {
            return Err(io::Error::other("the server has no pipes").into());
        };
        let child = Arc::new(Mutex::new(child));
        let (events, waited) = (self.events.clone(), child.clone());
        thread::spawn(move || {
            read_lines(BufReader::new(stdout), |line| events.send(Event::Server(line)).is_ok());
            // All that it said is heard, so nothing of it comes after its end.
            let _ = events.send(Event::ServerEnded(end(&waited)));
        });
        self.server = Some(Server { child, stdin: Writer::start(stdin) });
        Ok(())
    }

    /// Closes the server's input, and ends it if it does not end by itself.
    fn end_server(&mut self) {
        let Some(server) = self.server.take() else { return };
        server.stdin.finish();
        let until = std::time::Instant::now() + GRACE;
        loop {
            let mut child = server.child.lock().unwrap_or_else(PoisonError::into_inner);
            match child.try_wait() {
                Ok(None) if std::time::Instant::now() < until => {}
                Ok(Some(_)) => return,
                _ => {
                    let _ = child.kill();
                    let _ = child.wait();
                    return;
                }
            }
            drop(child);
            thread::sleep(Duration::from_millis(10));
        }
    }
}

/// Returns how a server ended whose output is closed; one that goes on without it is killed.
fn end(child: &Mutex<Child>) -> String {
    let until = std::time::Instant::now() + GRACE;
    loop {
        let mut child = child.lock().unwrap_or_else(PoisonError::into_inner);
        match child.try_wait() {
            Ok(Some(status)) => return status.to_string(),
            Ok(None) if std::time::Instant::now() < until => {}
            _ => {
                let _ = child.kill();
                return child.wait().map_or_else(|e| e.to_string(), |status| status.to_string());
            }
        }
        drop(child);
        thread::sleep(Duration::from_millis(5));
    }
}

/// Calls `each` with each line, without its end, until the input ends or `each` returns false.
fn read_lines(mut from: impl io::BufRead, mut each: impl FnMut(Vec<u8>) -> bool) {
    loop {
        let mut line = Vec::new();
        let read = from.by_ref().take(MAX_LINE).read_until(b'\n', &mut line);
        // A line that was cut off is no message.
        if read.is_err() || line.pop() != Some(b'\n') {
            return;
        }
        if line.last() == Some(&b'\r') {
            line.pop();
        }
        if !each(line) {
            return;
        }
    }
}

type Line = (Vec<u8>, Box<dyn FnOnce() + Send>);

/// Thread that writes lines in order, so that a reader that is slow holds nobody else up.
struct Writer {
    lines: channel::Sender<Line>,
    thread: thread::JoinHandle<()>,
}

impl Writer {
    fn start(mut to: impl Write + Send + 'static) -> Writer {
        let (lines, queue) = channel::channel::<Line>();
        let thread = thread::spawn(move || {
            for (mut line, written) in queue {
                line.push(b'\n');
                // Nobody reads any more: its end is noticed by whoever reads from it.
                if to.write_all(&line).and_then(|()| to.flush()).is_ok() {
                    written();
                }
            }
        });
        Writer { lines, thread }
    }

    /// Writes a line. `written` is called once it is with the system.
    fn write(&self, line: Vec<u8>, written: impl FnOnce() + Send + 'static) {
        let _ = self.lines.send((line, Box::new(written)));
    }

    /// Writes what waits, and closes. A reader that reads nothing is not waited for.
    fn finish(self) {
        drop(self.lines);
        let until = std::time::Instant::now() + GRACE;
        while !self.thread.is_finished() && std::time::Instant::now() < until {
            thread::sleep(Duration::from_millis(5));
        }
    }
}
