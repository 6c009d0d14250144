//! Drives a run: attempt after attempt, until it is done, halted, stopped, or no use.

mod judge;

use std::{
    path::PathBuf,
    sync::Arc,
    time::{Duration, Instant},
};

use outlast_core::{
    attempt::Attempt,
    engine::{self, claim::Claim},
    id::{AttemptNo, InstanceNo, Slot},
    journal::Role,
    op::{Claimed, Durability, Then},
    price::PriceTable,
    run::Command,
    state::transaction::Conflicts,
    status::Status,
    store::{self, Ask as _, RunView, Store},
    token::Claims,
};
use outlast_server::{
    node::Node,
    proxy::{Access, Observer, Providers, Proxy, Seen},
};
use tokio::{net::TcpListener, sync::mpsc};

use super::{
    Served,
    attempt::{self, AttemptError, EndedBy, KillPoint, Outcome, Watch},
    beat::Beat,
    environment::{self, Mark},
    state::{self, StateFace},
    story,
};
use crate::{
    context::Context,
    error::CliError,
    exit_code,
    process::{
        backoff::Backoff,
        exit::Exit,
        signals::Signals,
        spawn::{self, Spawner},
        terminal::Terminal,
    },
    proxy_setup,
    render::amount::some,
    say::say,
    task_context::mirror::Mirror,
    upstreams,
};

/// How long calls in flight may go on when the agent is gone: paid answers are recorded.
const DRAIN: Duration = Duration::from_secs(120);

/// How long it is said nothing while calls in flight go on.
const QUIETLY: Duration = Duration::from_secs(1);

/// How often it is looked whether the run is stopped or cancelled, between attempts.
const LOOK: Duration = Duration::from_millis(500);

/// What still runs beside at the end has this long.
const LAST_TASKS: Duration = Duration::from_secs(5);

/// What is to be driven, and with what.
pub struct Plan {
    pub view: RunView,
    pub node: Arc<Node>,
    pub providers: Providers,
    pub prices: PriceTable,
    pub served: Served,
    pub context: Context,
}

/// Drives the run to an end, and returns the exit code.
pub fn drive(plan: Plan) -> Result<u8, CliError> {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .map_err(|e| failed("runtime", format!("cannot start the runtime: {e}")))?;
    let code = runtime.block_on(async {
        let mut driver = Driver::start(plan).await?;
        let code = driver.attempts().await;
        driver.stop().await;
        code
    });
    // The heart beats no more: it would register us anew when we have left.
    runtime.shutdown_timeout(LAST_TASKS);
    code
}

struct Driver {
    view: RunView,
    command: Command,
    store: Arc<dyn Store>,
    node: Arc<Node>,
    context: Context,
    providers: Providers,
    mark: Mark,
    stdin: Option<Vec<u8>>,
    address: std::net::SocketAddr,
    spawner: Spawner,
    signals: Signals,
    beat: Arc<Beat>,
    seen: mpsc::UnboundedReceiver<Seen>,
    kill_at: Option<KillPoint>,
    backoff: Backoff,
    state: Option<StateFace>,
    shutdown: Option<tokio::sync::oneshot::Sender<()>>,
    serving: tokio::task::JoinHandle<()>,
    terminal: Option<Terminal>,
}

/// What follows an attempt.
enum Next {
    Again(Duration),
    Exit(u8),
    /// The lease was lost. `done`: the agent had finished meanwhile, and is not started again.
    Claim {
        done: Option<Exit>,
    },
}

/// An attempt that is over.
struct Life {
    attempt: AttemptNo,
    instance: InstanceNo,
    /// Not yet posted.
    active_ms: i64,
    lived: Duration,
}

impl Driver {
    async fn start(plan: Plan) -> Result<Driver, CliError> {
        let Plan { view, node, providers, prices, served: Served { proxy, grpc, kill_at }, context } = plan;
        let store = node.store().clone();
        let command =
            view.spec.command.clone().ok_or_else(|| failed("no_command", "the run has no command".into()))?;
        let listener = TcpListener::bind("127.0.0.1:0")
            .await
            .map_err(|e| failed("cannot_listen", format!("cannot listen on 127.0.0.1: {e}")))?;
        let address = listener.local_addr()?;
        let access = Access { loopback: true, only_run: Some(view.run.no), ..Access::default() };
        let config = proxy_setup::config(
            &proxy,
            access,
            providers.clone(),
            prices,
            view.envelope.limits,
            view.run.policy,
        );
        let (sender, seen) = mpsc::unbounded_channel();
        let observer: Observer = Arc::new(move |s: &Seen| {
            // Between attempts nobody looks.
            let _ = sender.send(s.clone());
        });
        let state = match grpc {
            Some((address, conflicts)) => {
                Some(StateFace::start(&view.run.id, address, conflicts, &node, &context).await?)
            }
            None => None,
        };
        let face = Proxy::new(node.clone(), context.entropy.as_ref(), config, Some(observer))?
            .with_state(state::desk(&node, &context, Conflicts::default()));
        let (shutdown, stop) = tokio::sync::oneshot::channel::<()>();
        let serving = tokio::spawn(face.serve(
            listener,
            async {
                let _ = stop.await;
            },
            DRAIN,
        ));
        let stdin = kept_stdin(store.as_ref(), &view, &command)?;
        let mark = Mark::new(&view, &store.token_keys()?);
        Ok(Driver {
            mark,
            stdin,
            command,
            address,
            spawner: Spawner::start()?,
            signals: Signals::install()?,
            beat: Beat::start(node.clone(), view.run.no),
            seen,
            kill_at: kill_at.map(KillPoint::new),
            backoff: Backoff::default(),
            state,
            shutdown: Some(shutdown),
            serving,
            terminal: Terminal::of_stdin(),
            view,
            store,
            node,
            context,
            providers,
        })
    }

    /// Ends the proxy; calls in flight are settled first.
    async fn stop(&mut self) {
        if let Some(shutdown) = self.shutdown.take() {
            let _ = shutdown.send(());
        }
        // A panic in it has been printed.
        if tokio::time::timeout(QUIETLY, &mut self.serving).await.is_ok() {
            return;
        }
        say(
            "waiting for answers in flight: they are paid, and will be replayed (Ctrl-C leaves them in doubt)",
        );
        loop {
            tokio::select! {
                _ = &mut self.serving => return,
                signals = self.signals.next() => {
                    if signals.is_ok_and(|s| attempt::asked(&s).is_none()) {
                        continue;
                    }
                    self.serving.abort();
                    return;
                }
            }
        }
    }

    async fn attempts(&mut self) -> Result<u8, CliError> {
        let mut restart = false;
        let mut finished = None;
        loop {
            // First the fence, which shuts out whoever drove it before, and then the end of what that left:
            // the agent of a living supervisor is not ours to end.
            let restarts = restart || self.died_before()?;
            let Some((claims, instance)) = self.claim(restarts).await? else {
                return self.finish(Status::Halted);
            };
            let attempt = claims.attempt;
            if let Some(exit) = finished {
                let status = self.end(attempt, instance, exit, 0, Then::Complete).await?;
                return self.finish(status);
            }
            let strays = attempt::end_strays(&self.mark).await?;
            if strays > 0 {
                let (exit, then) = (Exit { code: None, signal: None }, Then::Interrupt { by_person: false });
                self.end(attempt, instance, exit, 0, then).await?;
                return Err(failed(
                    "strays",
                    format!("{strays} processes of an earlier attempt cannot be ended; nothing was started"),
                ));
            }
            self.beat.open(attempt, instance);
            let began = Instant::now();
            if let Some(state) = &self.state {
                state.drive(claims, instance);
            }
            let outcome = self.one(claims).await;
            if let Some(state) = &self.state {
                state.rest();
            }
            let active_ms = self.beat.close();
            if outcome.as_ref().map_or(true, |o| o.exit != Exit::code(0))
                && let Some(terminal) = &self.terminal
            {
                terminal.restore();
            }
            let life = Life { attempt, instance, active_ms, lived: began.elapsed() };
            match self.judge(life, outcome).await? {
                Next::Exit(code) => return Ok(code),
                Next::Again(wait) => {
                    restart = true;
                    if let Some(code) = self.pause(wait).await? {
                        return Ok(code);
                    }
                }
                Next::Claim { done } => finished = done,
            }
        }
    }

    /// Opens the next attempt. `None`: that is refused, and the run is halted.
    ///
    /// Errors: another process drives the run, or it has ended.
    async fn claim(&self, restart: bool) -> Result<Option<(Claims, InstanceNo)>, CliError> {
        let run = self.view.run.no;
        let mut waited = false;
        loop {
            let instance = self.node.instance();
            let claim = Claim { run, slot: Slot::DRIVER, instance, label: None, fresh: false, restart };
            match self.store.ask(claim, Durability::Synced).await {
                Ok(Claimed::Attempt { attempt, fence, .. }) => {
                    let claims = Claims { run, attempt, slot: Slot::DRIVER, fence: Some(fence) };
                    return Ok(Some((claims, instance)));
                }
                Ok(Claimed::Refused(_)) => return Ok(None),
                Err(store::Error::Engine(engine::Error::InstanceDead)) => {
                    self.node.register_anew(instance).await?;
                }
                // A holder that cannot be seen from here may be dead: a container's, killed a moment ago.
                Err(store::Error::Engine(engine::Error::RunHeld { .. })) if !waited => {
                    waited = true;
                    let node = self.node.clone();
                    let judged = tokio::task::spawn_blocking(move || node.await_verdicts()).await;
                    judged.map_err(std::io::Error::other)??;
                }
                Err(e) => return Err(e.into()),
            }
        }
    }

    async fn one(&mut self, claims: Claims) -> Result<Outcome, AttemptError> {
        let keys = self.store.token_keys().map_err(std::io::Error::other)?;
        let attempts = self.store.attempts(self.view.run.no).map_err(std::io::Error::other)?;
        let last_exit = attempts.iter().rev().find_map(|a| a.exit.as_ref()).map(crate::render::exit::words);
        let state_file = self.mirror(claims.attempt).map_err(std::io::Error::other)?;
        let named = upstreams::load(&self.context.around).map_err(std::io::Error::other)?;
        let env = environment::Attempt {
            command: &self.command,
            mark: &self.mark,
            claims,
            keys: &keys,
            providers: &self.providers,
            named: &named,
            proxy: self.address,
            store: self.context.place.without_secret(),
            grpc: self.state.as_ref().map(StateFace::address),
            last_exit,
            state_file,
        }
        .variables(self.context.around.variables());
        let command = spawn::Command {
            argv: self.command.argv.iter().map(Into::into).collect(),
            cwd: PathBuf::from(&self.command.directory),
            umask: self.command.umask,
            env,
            stdin: attempt::stdin(self.stdin.as_deref())?,
        };
        // What was seen before belongs to the attempt before.
        while self.seen.try_recv().is_ok() {}
        let watch = Watch {
            spawner: &self.spawner,
            signals: &self.signals,
            beat: &self.beat,
            seen: &mut self.seen,
            mark: &self.mark,
            kill_at: &mut self.kill_at,
        };
        attempt::run(command, watch).await
    }

    /// Makes the context's mirror anew: what an agent finds there is what the store has, whatever became of the
    /// file. `None`: there is no place for it.
    fn mirror(&self, attempt: AttemptNo) -> Result<Option<String>, CliError> {
        match Mirror::of(&self.context.place, &self.view, &self.context.around) {
            Ok(mirror) => {
                mirror.renew(self.store.as_ref(), &self.view, attempt)?;
                Ok(Some(mirror.file.to_string_lossy().into_owned()))
            }
            Err(e) => {
                say(&format!("no state file: {e}"));
                Ok(None)
            }
        }
    }

    /// Whether the run's newest attempt ended by a death: this one counts as a restart then.
    fn died_before(&self) -> Result<bool, CliError> {
        Ok(self.store.attempts(self.view.run.no)?.last().is_some_and(Attempt::died))
    }

    /// Waits out the backoff, unless a person or the machine ends the run meanwhile.
    async fn pause(&mut self, wait: Duration) -> Result<Option<u8>, CliError> {
        let until = tokio::time::Instant::now() + wait;
        loop {
            let look = until.min(tokio::time::Instant::now() + LOOK);
            tokio::select! {
                () = tokio::time::sleep_until(look) => {}
                signals = self.signals.next() => match attempt::asked(&signals?) {
                    Some(by) => return self.interrupted(by == EndedBy::Person).await.map(Some),
                    None => continue,
                },
            }
            let view = story::view(self.store.as_ref(), &self.view)?;
            match view.run.status {
                Status::Halted | Status::Cancelled | Status::Completed => {
                    return self.finish(view.run.status).map(Some);
                }
                _ if view.run.stop_requested => return self.interrupted(true).await.map(Some),
                _ if look == until => return Ok(None),
                _ => {}
            }
        }
    }

    /// Stopped between attempts: there is no attempt to end with it.
    async fn interrupted(&self, by_person: bool) -> Result<u8, CliError> {
        use outlast_core::engine::tell::{Tell, Word};
        if by_person {
            let tell = Tell { run: self.view.run.no, word: Word::Stop };
            self.store.ask(tell, Durability::Synced).await?;
        }
        // Otherwise our leaving makes it interrupted.
        self.finish(Status::Interrupted)
    }

    /// Tells how it ended, and the exit code.
    fn finish(&self, status: Status) -> Result<u8, CliError> {
        let mut view = story::view(self.store.as_ref(), &self.view)?;
        // Stopped between two attempts it is so when we have left.
        view.run.status = status;
        story::end(&view, &self.store.attempts(self.view.run.no)?);
        if let Some(point) = &self.kill_at {
            let calls = some(i64::try_from(point.calls).unwrap_or(i64::MAX), "new call");
            say(&format!("the point of --kill-at was never reached: there were {calls}"));
        }
        let id = &view.run.id;
        Ok(match status {
            Status::Completed => exit_code::OK,
            Status::Halted => {
                story::halted(&view);
                exit_code::HALTED
            }
            Status::Failed | Status::Cancelled => exit_code::FAILED,
            _ => {
                say(&format!("go on with `outlast resume {id}`, or type the same command again"));
                exit_code::INTERRUPTED
            }
        })
    }
}

fn kept_stdin(store: &dyn Store, view: &RunView, command: &Command) -> Result<Option<Vec<u8>>, CliError> {
    if !command.stdin_kept {
        return Ok(None);
    }
    let Some(kept) = store.payload(view.run.no, outlast_core::id::Seq(0), Role::Stdin)? else {
        return Ok(Some(Vec::new()));
    };
    let bytes = kept.decode().map_err(|e| outlast_core::store::Error::Corrupt {
        what: format!("the kept standard input of {}: {e}", view.run.id),
    })?;
    Ok(Some(bytes.to_vec()))
}

fn failed(code: &'static str, message: String) -> CliError {
    CliError::Other { exit: exit_code::UNAVAILABLE, code, message, hint: None }
}
