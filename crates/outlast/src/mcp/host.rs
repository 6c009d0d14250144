//! Carries a session's deeds out: the client, the server, the ledger. Its client is at this process's standard input and
//! output, or at `/mcp/NAME`, where each session has a recorder.

use std::{collections::BTreeMap, ffi::OsString, io, sync::Arc, thread, time::Duration};

use outlast_core::{store::Store, words::RunNo};
use outlast_server::mcp::{
    front::Front,
    recorder::{Caller, Mark, OutgoingLine, Recorders},
    remote::{Heard, Remote, Target},
};
use parking_lot::Mutex;
use tokio::{
    sync::{mpsc, watch},
    task::JoinHandle,
};

use super::{
    child::{Process, Writer, read_lines},
    configured::{Server, Tools},
    ledger::{Ledger, RecordedAttempt},
    session::{Deed, Event, Session},
};
use crate::{
    program::{context::Context, error::CliError, exit_code, find, say::say, server},
    render::text::clean_line,
};

/// Longest wait for answers to calls in flight after the client has gone.
const LAST_ANSWERS: Duration = Duration::from_secs(10);

/// Longest wait for the client to receive the last lines.
const LAST_BYTES: Duration = Duration::from_secs(2);

/// Most bytes of a stray line that are logged.
const SHOWN: usize = 400;

/// Way in which a server is reached.
#[derive(Clone, Debug)]
pub enum Way {
    /// A command that starts the server as a process.
    Command {
        argv: Vec<OsString>,
        /// Environment of the server's process; `None`: that of this process.
        variables: Option<Vec<(OsString, OsString)>>,
    },
    Url(Target),
}

/// Server that is running or connected.
enum RunningServer {
    Process(Process),
    Remote(Remote),
}

/// Lines of a recorder's client, and the sender of those to it.
type Client = (mpsc::UnboundedReceiver<Vec<u8>>, mpsc::UnboundedSender<OutgoingLine>);

/// Runs the recorder until its client on standard input is gone. Returns the exit code.
pub fn run(ledger: Ledger, tools: Tools, way: Way) -> Result<u8, CliError> {
    let (lines, client) = mpsc::unbounded_channel();
    thread::spawn(move || read_lines(io::stdin().lock(), |line| lines.send(line).is_ok()));
    let output = Writer::start(io::stdout());
    let mut terminate = tokio::signal::unix::signal(tokio::signal::unix::SignalKind::terminate())?;
    let mut interrupt = tokio::signal::unix::signal(tokio::signal::unix::SignalKind::interrupt())?;
    let stop = async move {
        tokio::select! { _ = terminate.recv() => {}, _ = interrupt.recv() => {} }
    };
    let recorded = record(ledger, tools, way, (client, output.lines()), stop);
    let ended = tokio::runtime::Handle::current().block_on(recorded);
    output.finish();
    Ok(match ended? {
        None => exit_code::OK,
        Some(why) => {
            say(&why);
            exit_code::FAILED
        }
    })
}

/// Records the calls of one client until the sender of its lines is dropped, or `stop`. Returns why the server was given
/// up.
async fn record(
    ledger: Ledger,
    tools: Tools,
    way: Way,
    (mut client, told): Client,
    stop: impl Future<Output = ()>,
) -> Result<Option<String>, CliError> {
    let ledger = Arc::new(ledger);
    let (events, mut inbox) = mpsc::unbounded_channel();
    let (pending, mut all_had) = mpsc::channel(1);
    let marks = Marks::default();
    let mut host =
        Host { ledger: ledger.clone(), events, told, pending, way, server: None, marks: marks.clone() };
    let ended = host.obey(&mut client, &mut inbox, tools, stop).await;
    host.end_server().await;
    drop(host);
    let _ = tokio::time::timeout(LAST_BYTES, all_had.recv()).await;
    marks.made().await;
    let left = tokio::task::spawn_blocking(move || ledger.leave()).await;
    left.map_err(|e| io::Error::other(e.to_string()))??;
    ended
}

struct Host {
    ledger: Arc<Ledger>,
    events: mpsc::UnboundedSender<Event>,
    /// Sender of the lines to the client.
    told: mpsc::UnboundedSender<OutgoingLine>,
    /// Cloned for each answer that the client has not received yet: the channel closes when all were received.
    pending: mpsc::Sender<()>,
    way: Way,
    server: Option<RunningServer>,
    marks: Marks,
}

/// Marks of delivery that are on their way to the store. An answer without its mark would be given to another call.
#[derive(Clone, Default)]
struct Marks(Arc<Mutex<Vec<tokio::task::JoinHandle<()>>>>);

impl Marks {
    fn add(&self, mark: tokio::task::JoinHandle<()>) {
        let mut marks = self.0.lock();
        marks.retain(|mark| !mark.is_finished());
        marks.push(mark);
    }

    /// Waits until all marks are stored.
    async fn made(&self) {
        let marks = std::mem::take(&mut *self.0.lock());
        for mark in marks {
            let _ = mark.await;
        }
    }
}

impl Host {
    /// Carries out what the session wants until nothing is left, or `stop`. Returns why the server was given up.
    async fn obey(
        &mut self,
        client: &mut mpsc::UnboundedReceiver<Vec<u8>>,
        inbox: &mut mpsc::UnboundedReceiver<Event>,
        tools: Tools,
        stop: impl Future<Output = ()>,
    ) -> Result<Option<String>, CliError> {
        let (mut session, mut deeds) = Session::new(tools);
        let mut stop = std::pin::pin!(stop);
        let mut deadline = None;
        loop {
            for deed in std::mem::take(&mut deeds) {
                match deed {
                    Deed::Start { pause_ms } => {
                        tokio::time::sleep(Duration::from_millis(pause_ms)).await;
                        self.start().await?;
                        deeds.extend(session.started());
                    }
                    Deed::Quit { why } => return Ok(why),
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
                line = client.recv(), if deadline.is_none() => {
                    Some(line.map_or(Event::ClientClosed, Event::Client))
                }
                () = &mut stop => None,
                () = over => None,
            };
            let Some(event) = event else { return Ok(None) };
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
            Deed::ToClient { line, mark: seq } => {
                let mark = seq.map(|seq| -> Mark {
                    let (runtime, marks) = (tokio::runtime::Handle::current(), self.marks.clone());
                    let pending = self.pending.clone();
                    Box::new(move || {
                        marks.add(runtime.spawn(async move {
                            if let Err(e) = ledger.delivered(seq).await {
                                tracing::warn!(error = %e, "an answer was not marked as delivered");
                            }
                        }));
                        drop(pending);
                    })
                });
                let _ = self.told.send(OutgoingLine { line, mark });
            }
            Deed::ToServer(line) => match &self.server {
                Some(RunningServer::Process(process)) => process.send(line),
                Some(RunningServer::Remote(remote)) => remote.send(line),
                None => {}
            },
            Deed::Stray(line) => {
                let text = clean_line(&String::from_utf8_lossy(&line[..line.len().min(SHOWN)]), SHOWN);
                tracing::info!(
                    server = ledger.server,
                    "a line that is no message or no awaited answer: {text}"
                );
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
            Way::Command { argv, variables } => RunningServer::Process(Process::start(
                argv,
                variables.as_deref(),
                move |line| lines.send(Event::Server(line)).is_ok(),
                move |how| drop(ends.send(Event::ServerEnded(how))),
            )?),
            Way::Url(target) => {
                let network = server::network(&self.ledger.context.around)?;
                RunningServer::Remote(Remote::start(target.clone(), &network, move |heard| {
                    let _ = lines.send(match heard {
                        Heard::Line(line) => Event::Server(line),
                        Heard::Lost { line, why, taken } => Event::Lost { line, why, taken },
                        Heard::Forgotten(line) => Event::Forgotten(line),
                    });
                }))
            }
        });
        Ok(())
    }

    async fn end_server(&mut self) {
        match self.server.take() {
            Some(RunningServer::Process(process)) => {
                let _ = tokio::task::spawn_blocking(|| process.close()).await;
            }
            Some(RunningServer::Remote(remote)) => remote.close().await,
            None => {}
        }
    }
}

/// Longest wait until the recorders have ended, at the end of this process.
const LAST: Duration = Duration::from_secs(15);

/// MCP servers that are offered at `/mcp/NAME`, and their recorders that are running.
pub struct Serving {
    servers: BTreeMap<String, Server>,
    context: Context,
    store: Arc<dyn Store>,
    recorders: Mutex<Vec<Recorder>>,
}

/// Recorder that has not ended yet.
struct Recorder {
    run: RunNo,
    server: String,
    /// Sender of the client's lines; it can no longer be upgraded once the client is gone.
    client: mpsc::WeakUnboundedSender<Vec<u8>>,
    task: JoinHandle<()>,
    /// Closed when the recorder has ended.
    ended: watch::Receiver<()>,
}

/// MCP servers as the proxy offers them, with the means to end them.
pub struct Face {
    pub front: Arc<Front>,
    serving: Arc<Serving>,
}

impl Serving {
    /// Prepares the MCP servers; `None` if no server is configured.
    pub fn begin(
        servers: BTreeMap<String, Server>,
        context: &Context,
        store: Arc<dyn Store>,
    ) -> Option<Face> {
        if servers.is_empty() {
            return None;
        }
        let entropy = context.entropy.clone();
        let serving =
            Arc::new(Serving { servers, context: context.clone(), store, recorders: Mutex::default() });
        Some(Face { front: Arc::new(Front::new(serving.clone(), entropy)), serving })
    }
}

impl Face {
    /// Ends all sessions: answers of calls that are out are awaited for a short while, and recorded.
    pub async fn finish(self) {
        self.front.close();
        let recorders = std::mem::take(&mut *self.serving.recorders.lock());
        let all = async {
            for recorder in recorders {
                let _ = recorder.task.await;
            }
        };
        if tokio::time::timeout(LAST, all).await.is_err() {
            tracing::warn!("recorders of MCP servers did not end; their calls are in doubt");
        }
    }
}

impl Recorders for Serving {
    fn stands_alone(&self, name: &str) -> Option<bool> {
        self.servers.get(name).map(|server| matches!(server.way, Way::Url(_)))
    }

    fn start(
        &self,
        name: &str,
        caller: Caller,
        told: mpsc::UnboundedSender<OutgoingLine>,
    ) -> Option<mpsc::UnboundedSender<Vec<u8>>> {
        let server = self.servers.get(name)?.clone();
        let (lines, client) = mpsc::unbounded_channel();
        let mut recorders = self.recorders.lock();
        recorders.retain(|recorder| !recorder.task.is_finished());
        // What a client that is gone has left is settled before the same call is looked for.
        let leaving = recorders
            .iter()
            .filter(|r| r.run == caller.run && r.server == name && r.client.upgrade().is_none())
            .map(|recorder| recorder.ended.clone())
            .collect();
        let (ends, ended) = watch::channel(());
        let run = caller.run;
        let ledger = self.ledger(name, caller).map(|ledger| ledger.after(leaving));
        let named = name.to_owned();
        let task = tokio::spawn(async move {
            let ended = match ledger {
                Ok(ledger) => {
                    record(ledger, server.tools, server.way, (client, told), std::future::pending()).await
                }
                Err(e) => Err(e),
            };
            match ended {
                Ok(why) => why.into_iter().for_each(|why| tracing::warn!("{why}")),
                Err(e) => tracing::warn!(error = %e, server = named, "a recorder of an MCP server ended"),
            }
            drop(ends);
        });
        recorders.push(Recorder { run, server: name.to_owned(), client: lines.downgrade(), task, ended });
        Some(lines)
    }
}

impl Serving {
    fn ledger(&self, server: &str, caller: Caller) -> Result<Ledger, CliError> {
        let view = find::view(self.store.as_ref(), caller.run)?;
        let seat =
            RecordedAttempt::Inside { attempt: caller.attempt, slot: caller.slot, scope: caller.scope };
        let (context, store) = (self.context.clone(), self.store.clone());
        let runtime = tokio::runtime::Handle::current();
        let secrets = self.servers.get(server).map(|s| s.secrets.clone()).unwrap_or_default();
        Ok(Ledger::new(context, store, &view, seat, server.to_owned(), runtime).hiding(secrets))
    }
}
