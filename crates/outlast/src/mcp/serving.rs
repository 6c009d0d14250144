//! Recorders for the MCP servers that this process has at `/mcp/NAME`.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use outlast_core::{store::Store, words::id::RunNo};
use outlast_server::mcp::{
    front::Front,
    recorder::{Caller, OutgoingLine, Recorders},
};
use tokio::{
    sync::{mpsc, watch},
    task::JoinHandle,
};

use super::{
    host::{self, Way},
    ledger::{Ledger, RecordedAttempt},
};
use crate::{
    program::{context::Context, error::CliError, find},
    settings::mcp::Server,
};

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
        let recorders =
            std::mem::take(&mut *self.serving.recorders.lock().unwrap_or_else(PoisonError::into_inner));
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
        let mut recorders = self.recorders.lock().unwrap_or_else(PoisonError::into_inner);
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
                Ok(ledger) => record(ledger, server, (client, told)).await,
                Err(e) => Err(e),
            };
            if let Err(e) = ended {
                tracing::warn!(error = %e, server = named, "a recorder of an MCP server ended");
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

async fn record(
    ledger: Ledger,
    server: Server,
    client: (mpsc::UnboundedReceiver<Vec<u8>>, mpsc::UnboundedSender<OutgoingLine>),
) -> Result<(), CliError> {
    let ledger = Arc::new(ledger);
    let served = host::serve(ledger.clone(), server.tools, server.way, client).await;
    let left = tokio::task::spawn_blocking(move || ledger.leave()).await;
    left.map_err(|e| std::io::Error::other(e.to_string()))??;
    served
}
