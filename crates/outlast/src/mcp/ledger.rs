//! The recorder's side of the store: reserves tool calls, asks for approvals, records answers.

use std::{collections::HashMap, sync::Arc, time::Duration};

use outlast_core::{
    engine::{
        self, Actor, Asker, Claim, Claimed, Delivered, EndAttempt, GiveUpTool, Receiver, Record as Close,
        RequestApproval, ReserveTool, Reserved, SendTool, run::end_attempt::Then,
    },
    journal::{Entry, Kind, Opening, Payload, Role, State, approval::Status, iteration_scope},
    reads::entries,
    run::{Exit, Record, rules::Rules},
    store::{self, Ask as _, Durability, Store},
    words::{AttemptNo, Digest, InstanceNo, RunId, RunNo, Seq, Slot},
};
use outlast_server::{
    api::approvals::decided,
    hints::Hints,
    mcp::message::{self, ToolCall},
    node::Node,
};
use parking_lot::Mutex;
use serde_json::{Value, json};
use tokio::{
    sync::{OnceCell, watch},
    task::AbortHandle,
};

use super::{configured::Manner, secrets::Secrets};
use crate::program::{context::Context, error::CliError, say::say};

/// Pause between two looks at a call that another process makes, and at an approval that is pending.
const LOOK: Duration = Duration::from_millis(100);

/// Longest time that a request for approval is open, in milliseconds, even if its call is repeated.
const EXPIRES_MS: i64 = outlast_core::journal::approval::EXPIRES_MS;

/// Attempt in whose name tool calls are recorded.
#[derive(Clone, Debug)]
pub enum RecordedAttempt {
    /// An attempt that a supervisor drives; this process has the attempt's token.
    Inside { attempt: AttemptNo, slot: Slot, scope: Arc<str> },
    /// An attempt that this process claims for itself.
    Alone,
}

/// Process and attempt in whose name calls are recorded. Known at the first call: a server that is only listed costs
/// the store nothing.
struct Life {
    node: Arc<Node>,
    /// Task that renews the heartbeat.
    beat: AbortHandle,
    /// Instance that claimed the attempt; `None` if a supervisor drives it.
    claimed_by: Option<InstanceNo>,
    attempt: AttemptNo,
    slot: Slot,
    scope: Arc<str>,
    /// Number of recorded answers of earlier attempts that calls without an id may get.
    earlier: usize,
}

pub struct Ledger {
    pub context: Context,
    pub store: Arc<dyn Store>,
    hints: Arc<Hints>,
    pub run: RunNo,
    pub id: RunId,
    pub seat: RecordedAttempt,
    /// Name of the MCP server, by which its tool calls are recorded.
    pub server: String,
    pub record: Record,
    pub rules: Option<Rules>,
    /// Values that are not recorded.
    secrets: Secrets,
    life: OnceCell<Life>,
    /// Calls of this recorder that are over, though their entries could not be closed. Each is closed before the same
    /// call is looked for: its entry would look as if it were in flight.
    unclosed: Mutex<HashMap<Seq, Opening>>,
    /// Closed when a recorder has ended: recorders of the same server whose clients are gone, and which may
    /// still hold its calls.
    leaving: Vec<watch::Receiver<()>>,
    /// Runtime on which the heartbeat is renewed.
    runtime: tokio::runtime::Handle,
}

/// Next step of a tool call that the client made.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// The call is reserved on disk; send it to the server, with this idempotency key.
    Send {
        opening: Opening,
        key: String,
        /// Whether the call is made for the first time, and not taken over from an earlier process of the run.
        new: bool,
        /// Whether the call is already marked as sent, so that it may be written to the server at once.
        sent: bool,
        /// Whether the run's policy forbids the tool, or wants a person's approval before the call is sent.
        asks: bool,
        /// Number of recorded answers of earlier attempts to calls without an id.
        earlier: usize,
    },
    /// Give this answer to the client. The caller marks the entry `seq` as delivered after that; `None`: there is no
    /// entry to mark.
    Answer { seq: Option<Seq>, body: String },
}

impl Ledger {
    pub fn new(
        context: Context,
        store: Arc<dyn Store>,
        view: &outlast_core::store::RunView,
        seat: RecordedAttempt,
        server: String,
        runtime: tokio::runtime::Handle,
    ) -> Ledger {
        Ledger {
            context,
            hints: Hints::new(store.clone()),
            store,
            run: view.run.no,
            id: view.run.id.clone(),
            seat,
            server,
            record: view.run.policy.record,
            rules: view.spec.rules.clone(),
            secrets: Secrets::default(),
            life: OnceCell::new(),
            unclosed: Mutex::default(),
            leaving: Vec::new(),
            runtime,
        }
    }

    /// Keeps these values out of the journal.
    pub fn hiding(self, secrets: Secrets) -> Ledger {
        Ledger { secrets, ..self }
    }

    /// Lets the first call wait until these recorders have ended.
    pub fn after(self, leaving: Vec<watch::Receiver<()>>) -> Ledger {
        Ledger { leaving, ..self }
    }

    async fn life(&self) -> Result<&Life, CliError> {
        self.life.get_or_try_init(|| self.begin()).await
    }

    async fn begin(&self) -> Result<Life, CliError> {
        for mut recorder in self.leaving.clone() {
            while recorder.changed().await.is_ok() {}
        }
        let (store, context) = (self.store.clone(), self.context.clone());
        let program = format!("mcp {}", self.server);
        let joined = tokio::task::spawn_blocking(move || {
            let node = crate::proxy_setup::join(store, &context, &program)?;
            // A recorder that was killed a moment ago has to be known as dead before its calls are looked for: what a
            // live one makes is its own.
            node.await_verdicts()?;
            Ok::<_, CliError>(node)
        });
        let node = joined.await.map_err(|e| std::io::Error::other(e.to_string()))??;
        let beat = self.runtime.spawn(node.clone().keep_alive()).abort_handle();
        let (claimed_by, attempt, slot, scope) = match &self.seat {
            RecordedAttempt::Inside { attempt, slot, scope } => (None, *attempt, *slot, scope.clone()),
            RecordedAttempt::Alone => {
                let claim = Claim {
                    run: self.run,
                    slot: Slot::ANY,
                    instance: node.instance(),
                    label: None,
                    fresh: false,
                    restart: false,
                };
                match self.store.ask(claim, Durability::Synced).await? {
                    Claimed::Attempt { attempt, slot, iteration, .. } => {
                        (Some(node.instance()), attempt, slot, iteration_scope(iteration))
                    }
                    Claimed::Refused(refusal) => {
                        let (id, why) = (self.id.to_string(), refusal.code);
                        return Err(store::Error::Engine(engine::Error::RunHalted { id, why }).into());
                    }
                }
            }
        };
        let earlier = self.earlier(&scope, attempt)?;
        Ok(Life { node, beat, claimed_by, attempt, slot, scope, earlier })
    }

    /// Counts the recorded answers of earlier attempts that calls without an id may get.
    fn earlier(&self, scope: &str, attempt: AttemptNo) -> Result<usize, store::Error> {
        let is_earlier = |e: &Entry| {
            e.kind == Kind::Tool
                && *e.scope == *scope
                && e.delivered_to != Some(attempt)
                && matches!(e.state, State::Done | State::Failed)
                && e.tool.as_ref().is_some_and(|t| t.server == self.server && t.id.is_none())
        };
        let counts =
            entries::each(self.store.as_ref(), self.run).map(|e| e.map(|e| usize::from(is_earlier(&e))));
        counts.sum()
    }

    fn actor(&self, life: &Life) -> Actor {
        let instance = life.claimed_by.unwrap_or_else(|| life.node.instance());
        Actor { run: self.run, attempt: life.attempt, instance }
    }

    /// Returns the full name of a tool, as people and policies know it: `SERVER/TOOL`.
    pub fn name(&self, tool: &str) -> String {
        format!("{}/{tool}", self.server)
    }

    /// Reserves the call on disk, or finds its recorded answer. Waits while another process makes the same call.
    ///
    /// `leaves`: the call is marked as sent in the same commit, unless it needs an approval. A call that is not marked
    /// must be marked by [`Ledger::leaves`] before it is sent. `anew`: recorded answers are passed over, if the tool
    /// only reads and the call has no id.
    pub async fn reserve(
        &self,
        call: &ToolCall,
        manner: Manner,
        leaves: bool,
        anew: bool,
    ) -> Result<Verdict, CliError> {
        let life = self.life().await?;
        let asks = self.asks(&call.tool, manner);
        let reserve = ReserveTool {
            actor: self.actor(life),
            slot: life.slot,
            scope: life.scope.clone(),
            server: self.server.clone(),
            tool: call.tool.clone(),
            id: call.id.clone(),
            arguments: call.digest,
            about: Payload::encode(self.about(call).to_string().as_bytes()),
            repeatable: manner.repeatable(),
            leaves: leaves && !asks,
            anew: anew && manner == Manner::Reads,
        };
        loop {
            let reserve = ReserveTool { actor: self.actor(life), ..reserve.clone() };
            return match self.ask(life, reserve.clone()).await? {
                Reserved::Send { opening, new } => Ok(Verdict::Send {
                    opening,
                    key: reserve.idempotency_key(self.id.as_str(), opening.seq),
                    new,
                    sent: leaves && !asks,
                    asks,
                    earlier: life.earlier,
                }),
                Reserved::Recorded { seq, .. } => {
                    Ok(Verdict::Answer { seq: Some(seq), body: self.kept(seq)? })
                }
                Reserved::InDoubt { seq } => Ok(self.doubt(seq, &call.tool)),
                Reserved::InFlight { seq } => {
                    let unclosed = self.unclosed.lock().remove(&seq);
                    match unclosed {
                        Some(opening) => drop(self.give_up(opening, &call.tool, None).await?),
                        None => tokio::time::sleep(LOOK).await,
                    }
                    continue;
                }
            };
        }
    }

    /// Passes on what became of a step of an open call. The client gives up a call whose step failed: its entry is
    /// remembered as [`unclosed`](Self::unclosed).
    fn step<T>(&self, opening: Opening, outcome: Result<T, store::Error>) -> Result<T, CliError> {
        if outcome.is_err() {
            self.unclosed.lock().insert(opening.seq, opening);
        }
        Ok(outcome?)
    }

    /// Returns whether a policy forbids the tool, or wants a person's approval.
    fn asks(&self, tool: &str, manner: Manner) -> bool {
        let name = self.name(tool);
        self.rules.as_ref().is_some_and(|rules| {
            !rules.allows(&name) || Rules::ask_for(Some(rules), &name, manner.side_effect())
        })
    }

    /// Asks for the approval that the policy requires, and waits for the decision, at most for `patience`.
    ///
    /// Errors: those of `RequestApproval`.
    pub async fn approved(
        &self,
        call: &ToolCall,
        manner: Manner,
        opening: Opening,
        patience: Duration,
    ) -> Result<Approval, CliError> {
        let life = self.life().await?;
        let request = RequestApproval {
            asker: Asker::Attempt { actor: self.actor(life), slot: life.slot },
            // One approval for each call: the same call again, later, is asked for again.
            key: Some(format!("tool:{}", opening.seq)),
            tool: self.name(&call.tool),
            side_effect: manner.side_effect().map(str::to_owned),
            arguments: Payload::encode(self.secrets.hidden_value(arguments(call)).to_string().as_bytes()),
            expires_ms: EXPIRES_MS,
        };
        let asked = self.store.ask(request, Durability::Synced).await;
        let answer = self.step(opening, asked)?;
        let name = self.name(&call.tool);
        if let (Status::Pending, Some(id)) = (answer.status, answer.id) {
            say(&format!("{name} waits for a person: outlast approve {id}"));
        }
        let until = tokio::time::Instant::now() + patience;
        let answer = self.step(opening, decided(&*self.store, &self.hints, answer, until).await)?;
        let id = answer.id.map(|id| id.to_string()).unwrap_or_default();
        let policy = self.rules.as_ref().map(|r| r.policy.clone()).unwrap_or_default();
        let said = answer.decision.as_ref();
        let reason = said.and_then(|d| d.reason.as_ref()).map(|r| format!(": {r}")).unwrap_or_default();
        let by = said.map(|d| d.by.clone()).unwrap_or_default();
        Ok(match answer.status {
            Status::Approved => Approval::Given,
            Status::Pending => Approval::Pending(message::told(
                &format!(
                    "{name} was not called yet: it waits for a person's approval ({id}). Call it again, with the same arguments, to wait on."
                ),
                json!({"outlast/outcome": "pending", "outlast/approval": id}),
            )),
            Status::Denied => Approval::Refused(format!("{name} was not called: {by} denied it{reason}")),
            Status::Blocked => {
                Approval::Refused(format!("{name} was not called: the policy {policy} does not have it"))
            }
            Status::Timeout | Status::Void => {
                Approval::Refused(format!("{name} was not called: nobody approved it in time"))
            }
        })
    }

    /// Marks a reserved call as sent. The caller sends the call only after that.
    pub async fn leaves(&self, opening: Opening) -> Result<(), CliError> {
        let life = self.life().await?;
        let send = SendTool { opening, attempt: life.attempt, slot: life.slot };
        let sent = self.store.ask(send, Durability::Synced).await;
        self.step(opening, sent).map(drop)
    }

    /// Records a call's answer. The caller passes the answer to the client only after that.
    pub async fn record(&self, opening: Opening, body: &str, failed: bool) -> Result<(), CliError> {
        let kept = match self.record {
            Record::Digests => json!({"sha256": Digest::of(body.as_bytes())}).to_string(),
            _ => format!("{{{}}}", self.secrets.masked(body)),
        };
        let value = Payload::encode(kept.as_bytes());
        let close = Close { opening, value, failed, again: false, changes: Vec::new() };
        let closed = self.store.ask(close, Durability::Synced).await;
        self.step(opening, closed).map(drop)
    }

    /// Closes a call that gets no answer, and returns what the client is given instead. `refused`: reason why
    /// the server certainly did not process the call; `None` if it may have.
    pub async fn give_up(
        &self,
        opening: Opening,
        tool: &str,
        refused: Option<String>,
    ) -> Result<Verdict, CliError> {
        let give_up = GiveUpTool { opening, refused: refused.is_some() };
        let closed = self.store.ask(give_up, Durability::Synced).await;
        let state = self.step(opening, closed)?;
        if state == State::Unknown {
            return Ok(self.doubt(opening.seq, tool));
        }
        let why = refused.unwrap_or_else(|| "its server is not there".into());
        let text = format!("{} was not called: {why}", self.name(tool));
        Ok(Verdict::Answer { seq: None, body: message::told(&text, json!({"outlast/outcome": "not sent"})) })
    }

    /// Records that the client has the answer of the entry `seq`, so that no later process gives it to an equal call.
    /// Not synced: a loss of power ends the client too.
    pub async fn delivered(&self, seq: Seq) -> Result<(), CliError> {
        let life = self.life().await?;
        let (attempt, receiver) = (life.attempt, Receiver::Process(life.node.instance()));
        let mark = Delivered { run: self.run, seq, attempt, receiver, count: 0, replayed: false };
        self.store.ask(mark, Durability::Committed).await?;
        Ok(())
    }

    /// Ends this process's own attempt, if it claimed one, and its instance in the store. The next process that asks
    /// for a call in flight decides its outcome.
    pub fn leave(&self) -> Result<(), CliError> {
        let Some(life) = self.life.get() else { return Ok(()) };
        life.beat.abort();
        if let Some(instance) = life.claimed_by {
            let end = EndAttempt {
                run: self.run,
                attempt: life.attempt,
                instance,
                exit: Exit { code: Some(0), ..Exit::default() },
                active_ms: 0,
                then: Then::Interrupt { by_person: false },
            };
            self.store.ask(end, Durability::Synced).wait()?;
        }
        Ok(life.node.leave()?)
    }

    /// Asks the store, and once more after this process was declared dead: a machine that slept, a stopped process.
    async fn ask(&self, life: &Life, reserve: ReserveTool) -> Result<Reserved, CliError> {
        match self.store.ask(reserve.clone(), Durability::Synced).await {
            Err(why @ store::Error::Engine(engine::Error::InstanceDead)) if life.claimed_by.is_none() => {
                life.node.goes_on_after(&why, reserve.actor.instance).await?;
                let again = ReserveTool { actor: self.actor(life), ..reserve };
                Ok(self.store.ask(again, Durability::Synced).await?)
            }
            answered => Ok(answered?),
        }
    }

    /// Returns the answer about a call in doubt. Its text is the same in each attempt, since a replayed model
    /// may depend on it.
    fn doubt(&self, seq: Seq, tool: &str) -> Verdict {
        let text = format!(
            "outcome unknown: {} was cut off before its answer came, and may have been done. Look before you repeat it.",
            self.name(tool)
        );
        let facts = json!({"outlast/outcome": "unknown", "outlast/run": self.id, "outlast/entry": seq});
        Verdict::Answer { seq: Some(seq), body: message::told(&text, facts) }
    }

    /// Returns the recorded answer of a call.
    fn kept(&self, seq: Seq) -> Result<String, CliError> {
        let missing =
            || store::Error::Corrupt { what: format!("entry {seq} of run {}: its answer", self.id) };
        let bytes = self.store.payload(self.run, seq, Role::Value)?.ok_or_else(missing)?;
        let bytes = bytes.decode().map_err(|_| missing())?;
        let text = std::str::from_utf8(&bytes).map_err(|_| missing())?;
        let body = text.strip_prefix('{').and_then(|t| t.strip_suffix('}')).ok_or_else(missing)?;
        if body.starts_with("\"sha256\"") {
            let text = "the call was made in an earlier life of this run, which records no answers. Look at what it did before you repeat it.";
            return Ok(message::told(text, json!({"outlast/outcome": "done", "outlast/entry": seq})));
        }
        self.secrets.restored(body).ok_or_else(|| missing().into())
    }

    /// Returns the description of a call, for people. Arguments are left out if the run records no prompts.
    fn about(&self, call: &ToolCall) -> Value {
        let mut about = json!({
            "tool": self.name(&call.tool),
            "id": call.id,
            "input_digest": call.digest,
        });
        if self.record == Record::All {
            let shown = self.secrets.hidden_value(arguments(call));
            about["input"] = crate::agent::note::excerpt(&shown.to_string()).into();
            about["arguments"] = shown;
        }
        about
    }
}

/// Returns the arguments of a call as a value.
fn arguments(call: &ToolCall) -> Value {
    serde_json::from_str(&call.arguments).unwrap_or_default()
}

/// State of a person's decision on a call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Approval {
    Given,
    /// Nobody has decided yet. The value is the answer for a client that cannot wait longer.
    Pending(String),
    /// The call is not sent. The value is the answer that says why.
    Refused(String),
}
