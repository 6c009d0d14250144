//! Carries a session's deeds out: the client, the server, the ledger.

use std::{
    ffi::OsString,
    io,
    sync::{Arc, Mutex, PoisonError},
    thread,
    time::Duration,
};

use outlast_server::mcp::{
    remote::{Heard, Remote},
    target::Target,
};
use tokio::sync::mpsc;

use super::{
    child::{Process, Writer, read_lines},
    ledger::Ledger,
    session::{Deed, Event, Session},
    tools::Tools,
};
use crate::program::{error::CliError, exit_code, say::say};

/// Longest wait for answers to calls that are out, once the client is gone.
const LAST_ANSWERS: Duration = Duration::from_secs(10);

/// Way to a server.
#[derive(Clone, Debug)]
pub enum Way {
    /// Command that starts it.
    Command(Vec<OsString>),
    Url(Target),
}

/// Server that is there.
enum Server {
    Process(Process),
    Remote(Remote),
}

/// Runs the recorder until its client is gone. Returns the exit code.
pub fn run(ledger: Arc<Ledger>, tools: Tools, way: Way) -> Result<u8, CliError> {
    let runtime = tokio::runtime::Handle::current();
    let (events, inbox) = mpsc::unbounded_channel();
    let out = Writer::start(io::stdout());
    let client = events.clone();
    thread::spawn(move || {
        read_lines(io::stdin().lock(), |line| client.send(Event::Client(line)).is_ok());
        let _ = client.send(Event::ClientClosed);
    });
    let marks = Marks::default();
    let host = Host { ledger: ledger.clone(), events, out, way, server: None, marks: marks.clone() };
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
    way: Way,
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
                        self.start().await?;
                        deeds.extend(session.started());
                    }
                    Deed::Quit { why } => {
                        self.end_server().await;
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
                self.end_server().await;
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
            Deed::ToServer(line) => match &self.server {
                Some(Server::Process(process)) => process.send(line),
                Some(Server::Remote(remote)) => remote.send(line),
                None => {}
            },
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
            Deed::GiveUp { no, opening, tool, refused } => drop(tokio::spawn(async move {
                let given_up = ledger.give_up(opening, &tool, refused).await;
                let _ = events.send(Event::GivenUp(no, given_up.map_err(said)));
            })),
            // `drive` has taken these.
            Deed::Start { .. } | Deed::Quit { .. } => {}
        }
    }

    /// Starts the server that is a command, or connects to the one at a URL.
    async fn start(&mut self) -> Result<(), CliError> {
        if let (Way::Url(_), Some(_)) = (&self.way, &self.server) {
            return Ok(());
        }
        self.end_server().await;
        let (lines, ends) = (self.events.clone(), self.events.clone());
        self.server = Some(match &self.way {
            Way::Command(command) => Server::Process(Process::start(
                command,
                move |line| lines.send(Event::Server(line)).is_ok(),
                move |how| drop(ends.send(Event::ServerEnded(how))),
            )?),
            Way::Url(target) => Server::Remote(Remote::start(target.clone(), move |heard| {
                let _ = lines.send(match heard {
                    Heard::Line(line) => Event::Server(line),
                    Heard::Lost { line, why, taken } => Event::Lost { line, why, taken },
                    Heard::Forgotten(line) => Event::Forgotten(line),
                });
            })),
        });
        Ok(())
    }

    async fn end_server(&mut self) {
        match self.server.take() {
            Some(Server::Process(process)) => {
                let _ = tokio::task::spawn_blocking(|| process.close()).await;
            }
            Some(Server::Remote(remote)) => remote.close().await,
            None => {}
        }
    }
}
