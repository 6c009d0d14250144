//! Drives a run: attempt after attempt, until it is done, halted, stopped, or no use.

use std::{
    path::PathBuf,
    sync::Arc,
    time::{Duration, Instant},
};

use outlast_core::{
    attempt::Attempt,
    clock::random,
    engine::{claim::Claim, end_attempt::EndAttempt},
    id::{AttemptNo, Slot},
    journal::Role,
    op::{Claimed, Durability, Then},
    run::Command,
    status::Status,
    store::{Ask as _, RunView, Store},
    token::Claims,
};
use outlast_server::{
    node::Node,
    proxy::{Access, Observer, Providers, Proxy, Seen},
};
use tokio::{net::TcpListener, sync::mpsc};

use super::{
    attempt::{self, AttemptError, EndedBy, KillPoint, Outcome, Watch},
    beat::Beat,
    environment::{self, Mark},
    story,
};
use crate::{
    cli::{shared::ProxyArgs, values::KillAt},
    context::Context,
    error::CliError,
    exit_code,
    process::{
        backoff::Backoff,
        crash_loop::{self, Death},
        exit::Exit,
        exit_policy::{self, Futile, Verdict},
        signals::Signals,
        spawn::{self, Spawner},
    },
    proxy_setup,
    say::say,
};

/// How long calls in flight may go on when the agent is gone: paid answers are recorded.
const DRAIN: Duration = Duration::from_secs(120);

/// What is to be driven, and with what.
pub struct Plan {
    pub view: RunView,
    pub node: Arc<Node>,
    pub providers: Providers,
    pub proxy: ProxyArgs,
    pub kill_at: Option<KillAt>,
    pub context: Context,
}

/// Drives the run to an end, and returns the exit code.
pub fn drive(plan: Plan) -> Result<u8, CliError> {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .map_err(|e| failed("runtime", format!("cannot start the runtime: {e}")))?;
    let node = plan.node.clone();
    let code = runtime.block_on(async {
        let mut driver = Driver::start(plan).await?;
        let code = driver.attempts().await;
        driver.stop().await;
        code
    });
    // Also after an error: what is open is then in doubt at once, and nobody waits out our lease.
    let left = node.leave();
    let code = code?;
    left?;
    Ok(code)
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
    shutdown: Option<tokio::sync::oneshot::Sender<()>>,
    serving: tokio::task::JoinHandle<()>,
}

/// What follows an attempt.
enum Next {
    Again(Duration),
    Exit(u8),
}

impl Driver {
    async fn start(plan: Plan) -> Result<Driver, CliError> {
        let Plan { view, node, providers, proxy, kill_at, context } = plan;
        let store = node.store().clone();
        let command =
            view.spec.command.clone().ok_or_else(|| failed("no_command", "the run has no command".into()))?;
        let listener = TcpListener::bind("127.0.0.1:0")
            .await
            .map_err(|e| failed("cannot_listen", format!("cannot listen on 127.0.0.1: {e}")))?;
        let address = listener.local_addr()?;
        let access = Access { api_token: None, loopback: true, only_run: Some(view.run.no) };
        let config =
            proxy_setup::config(&proxy, access, providers.clone(), view.envelope.limits, view.run.policy)?;
        let (sender, seen) = mpsc::unbounded_channel();
        let observer: Observer = Arc::new(move |s: &Seen| {
            // Between attempts nobody looks.
            let _ = sender.send(s.clone());
        });
        let face = Proxy::new(node.clone(), context.entropy.as_ref(), config, Some(observer))?;
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
            shutdown: Some(shutdown),
            serving,
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
        let _ = (&mut self.serving).await;
    }

    async fn attempts(&mut self) -> Result<u8, CliError> {
        let mut restart = false;
        loop {
            let strays = attempt::end_strays(&self.mark).await?;
            if strays > 0 {
                return Err(failed(
                    "strays",
                    format!("{strays} processes of an earlier attempt cannot be ended; nothing was started"),
                ));
            }
            let claim = Claim {
                run: self.view.run.no,
                slot: Slot::DRIVER,
                instance: self.node.instance(),
                label: None,
                fresh: false,
                restart: restart || self.died_before()?,
            };
            let (attempt, fence) = match self.store.ask(claim, Durability::Synced).await? {
                Claimed::Attempt { attempt, fence, .. } => (attempt, fence),
                Claimed::Refused(_) => return self.finish(Status::Halted),
            };
            let claims = Claims { run: self.view.run.no, attempt, slot: Slot::DRIVER, fence: Some(fence) };
            self.beat.open(attempt);
            let began = Instant::now();
            let outcome = self.one(claims).await;
            let active_ms = self.beat.close();
            match self.judge(attempt, active_ms, began.elapsed(), outcome).await? {
                Next::Exit(code) => return Ok(code),
                Next::Again(wait) => {
                    restart = true;
                    if let Some(code) = self.pause(wait).await? {
                        return Ok(code);
                    }
                }
            }
        }
    }

    async fn one(&mut self, claims: Claims) -> Result<Outcome, AttemptError> {
        let keys = self.store.token_keys().map_err(std::io::Error::other)?;
        let attempts = self.store.attempts(self.view.run.no).map_err(std::io::Error::other)?;
        let last_exit = attempts.iter().rev().find_map(|a| a.exit.as_ref()).map(crate::render::exit::words);
        let env = environment::Attempt {
            command: &self.command,
            mark: &self.mark,
            claims,
            keys: &keys,
            providers: &self.providers,
            proxy: self.address,
            last_exit,
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

    /// Says what follows, and records it in the commit that ends the attempt.
    async fn judge(
        &mut self,
        attempt: AttemptNo,
        active_ms: i64,
        lived: Duration,
        outcome: Result<Outcome, AttemptError>,
    ) -> Result<Next, CliError> {
        let outcome = match outcome {
            Ok(outcome) => outcome,
            Err(AttemptError::Start(e)) => {
                let exit = Exit { code: e.exit_code(), signal: None };
                self.end(attempt, exit, active_ms, Then::Fail(e.to_string())).await?;
                story::end(&story::view(self.store.as_ref(), &self.view)?, &[]);
                let hint = Some("correct the command and type it again".into());
                let exit = e.exit_code().and_then(|c| u8::try_from(c).ok()).unwrap_or(exit_code::FAILED);
                return Err(CliError::Other { exit, code: e.code(), message: e.to_string(), hint });
            }
            Err(AttemptError::Io(e)) => {
                let exit = Exit { code: None, signal: None };
                self.end(attempt, exit, active_ms, Then::Interrupt { by_person: false }).await?;
                return Err(failed("supervisor", format!("the supervisor failed: {e}")));
            }
        };
        let exit = outcome.exit;
        if outcome.left > 0 {
            let then = Then::Interrupt { by_person: false };
            self.end(attempt, exit, active_ms, then).await?;
            return Err(failed("strays", format!("{} processes of the agent cannot be ended", outcome.left)));
        }
        // The refusal that halts a run may have come in the agent's last breath.
        let status = story::view(self.store.as_ref(), &self.view)?.run.status;
        if outcome.by == EndedBy::LostLease {
            // The verdict ended the attempt already; whoever claims now drives the run.
            say("this process was taken for dead (was the machine asleep?); claiming the run again");
            return Ok(Next::Again(Duration::ZERO));
        }
        if matches!(status, Status::Halted | Status::Cancelled) {
            self.end(attempt, exit, active_ms, Then::Interrupt { by_person: false }).await?;
            return Ok(Next::Exit(self.finish(status)?));
        }
        let stop_asked = outcome.by != EndedBy::Itself;
        match exit_policy::judge(exit, stop_asked) {
            Verdict::Done => {
                let status = self.end(attempt, exit, active_ms, Then::Complete).await?;
                Ok(Next::Exit(self.finish(status)?))
            }
            Verdict::Interrupted => {
                let then = Then::Interrupt { by_person: outcome.by == EndedBy::Person };
                let status = self.end(attempt, exit, active_ms, then).await?;
                Ok(Next::Exit(self.finish(status)?))
            }
            Verdict::Stop(why) => {
                let text = match why {
                    Futile::Usage => format!("the agent ended with {exit}: wrong usage or configuration"),
                    Futile::NotExecutable => "the command cannot be executed".to_owned(),
                    Futile::NotFound => "the command was not found".to_owned(),
                };
                let status = self.end(attempt, exit, active_ms, Then::Fail(text.clone())).await?;
                say(&format!("not restarted: {text}"));
                Ok(Next::Exit(self.finish(status)?))
            }
            Verdict::Restart(_) => self.restart(attempt, exit, active_ms, lived).await,
        }
    }

    async fn restart(
        &mut self,
        attempt: AttemptNo,
        exit: Exit,
        active_ms: i64,
        lived: Duration,
    ) -> Result<Next, CliError> {
        if self.loops(exit)? {
            let why = format!(
                "crash loop: {} deaths in 10 minutes with nothing finished between, the last with {exit}",
                crash_loop::DEATHS
            );
            self.end(attempt, exit, active_ms, Then::Fail(why.clone())).await?;
            say(&why);
            self.finish(Status::Failed)?;
            return Ok(Next::Exit(exit_code::CRASH_LOOP));
        }
        self.end(attempt, exit, active_ms, Then::Restart).await?;
        let entropy = u64::from_le_bytes(random(self.context.entropy.as_ref()));
        let wait = self.backoff.after(lived, entropy);
        story::died(attempt.0, exit, wait, &story::view(self.store.as_ref(), &self.view)?);
        Ok(Next::Again(wait))
    }

    /// Whether this death, with those the store knows, makes a crash loop.
    fn loops(&self, _exit: Exit) -> Result<bool, CliError> {
        let now = self.store.now()?;
        let closed = story::view(self.store.as_ref(), &self.view)?.run.closed;
        let attempts = self.store.attempts(self.view.run.no)?;
        let mut deaths: Vec<Death> = attempts
            .iter()
            .zip(attempts.iter().skip(1).map(|next| next.closed_before))
            .filter(|(a, _)| a.died())
            .filter_map(|(a, closed)| Some(death(a.ended_at?.0, closed)))
            .collect();
        deaths.push(death(now.0, closed));
        Ok(crash_loop::is_crash_loop(&deaths))
    }

    /// Whether the run's newest attempt ended by a death: this one counts as a restart then.
    fn died_before(&self) -> Result<bool, CliError> {
        Ok(self.store.attempts(self.view.run.no)?.last().is_some_and(Attempt::died))
    }

    async fn end(
        &self,
        attempt: AttemptNo,
        exit: Exit,
        active_ms: i64,
        then: Then,
    ) -> Result<Status, CliError> {
        let exit = outlast_core::attempt::Exit {
            code: exit.code,
            signal: exit.signal,
            ..outlast_core::attempt::Exit::default()
        };
        let end = EndAttempt {
            run: self.view.run.no,
            attempt,
            instance: self.node.instance(),
            exit,
            active_ms,
            then,
        };
        Ok(self.store.ask(end, Durability::Synced).await?)
    }

    /// Waits out the backoff, unless a person or the machine ends the run meanwhile.
    async fn pause(&mut self, wait: Duration) -> Result<Option<u8>, CliError> {
        use rustix::process::Signal;
        let until = tokio::time::Instant::now() + wait;
        loop {
            tokio::select! {
                () = tokio::time::sleep_until(until) => break,
                signals = self.signals.next() => {
                    let signals = signals?;
                    let person = signals.iter().any(|s| matches!(*s, Signal::INT | Signal::QUIT));
                    let machine = signals.iter().any(|s| matches!(*s, Signal::TERM | Signal::HUP));
                    if person || machine {
                        return self.interrupted(person).await.map(Some);
                    }
                }
            }
        }
        let view = story::view(self.store.as_ref(), &self.view)?;
        if view.run.stop_requested {
            return self.interrupted(true).await.map(Some);
        }
        match view.run.status {
            Status::Halted | Status::Cancelled | Status::Completed => self.finish(view.run.status).map(Some),
            _ => Ok(None),
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
        let view = story::view(self.store.as_ref(), &self.view)?;
        story::end(&view, &self.store.attempts(self.view.run.no)?);
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

fn death(at_us: i64, closed: i64) -> Death {
    Death { at_us, entries_closed: u64::try_from(closed).unwrap_or(0) }
}

fn kept_stdin(store: &dyn Store, view: &RunView, command: &Command) -> Result<Option<Vec<u8>>, CliError> {
    if !command.stdin_kept {
        return Ok(None);
    }
    let mut all = Vec::new();
    for part in store.payload(view.run.no, outlast_core::id::Seq(0), Role::Stdin)? {
        let bytes = part.decode().map_err(|e| outlast_core::store::Error::Corrupt {
            what: format!("the kept standard input of {}: {e}", view.run.id),
        })?;
        all.extend_from_slice(&bytes);
    }
    Ok(Some(all))
}

fn failed(code: &'static str, message: String) -> CliError {
    CliError::Other { exit: exit_code::UNAVAILABLE, code, message, hint: None }
}
