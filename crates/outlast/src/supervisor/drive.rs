//! Drives a run: attempt after attempt, until it is done, halted, stopped or given up.

pub(super) mod attempt;
pub(super) mod iterate;
mod judge;
mod live;
mod start;
mod waits;

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use outlast_core::{
    engine::{self, Claim, Claimed, run::end_attempt::Then},
    price::PriceTable,
    run::{Attempt, Claims, Command, Status},
    store::{self, Ask as _, Durability, RunView, Store},
    words::{AttemptNo, InstanceNo, Slot},
};
use outlast_server::{
    door::{Providers, Proxy, Seen},
    node::Node,
};
use tokio::sync::mpsc;

use super::{
    Served,
    beat::Beat,
    confine::{Confined, Net},
    front::Show,
    intercept::Interception,
    provider, story, strays,
};
use crate::{
    agent::{conduct::Conduct, truth::Left},
    files::keeper::{Keeper, Target},
    mcp::host::Face,
    notify::Delivering,
    program::{
        context::Context,
        error::{CliError, RunError},
        exit_code, host,
        mark::Mark,
        run_directory::RunDirectory,
        say::say,
    },
    render::{amount::some, short::called},
};
use outlast_process::{
    attach::stage::Listening,
    cgroup::ParentGroup,
    exit::{Backoff, Exit},
    signals::Signals,
    spawn::Spawner,
    terminal::Terminal,
};

use self::{
    attempt::{EndedBy, KillPoint},
    start::StateFace,
};

/// Time for which calls in flight may go on before a message reports that they are awaited.
const QUIETLY: Duration = Duration::from_secs(1);

/// Interval at which the run is checked for a stop or a cancel between attempts.
const LOOK: Duration = Duration::from_millis(500);

/// Time that background tasks have to end, at the end of the supervisor.
const LAST_TASKS: Duration = Duration::from_secs(5);

/// Run to drive, with all that a supervisor needs for it.
pub struct Plan {
    pub view: RunView,
    pub node: Arc<Node>,
    pub providers: Providers,
    pub prices: PriceTable,
    pub served: Served,
    pub context: Context,
}

/// Drives the run, attempt after attempt, to its end and returns the exit code.
pub fn drive(plan: Plan) -> Result<u8, CliError> {
    let runtime = host::runtime(Some(2))?;
    let code = runtime.block_on(async {
        let mut driver = Driver::start(plan).await?;
        let code = driver.attempts().await;
        driver.stop().await;
        if let Some(tools) = driver.tools.take() {
            tools.finish().await;
        }
        if let Some(telling) = driver.telling.take() {
            telling.finish().await;
        }
        code
    });
    // Ends the heartbeat task: it would register this process again after it has left.
    runtime.shutdown_timeout(LAST_TASKS);
    code
}

struct Driver {
    view: RunView,
    confined: Confined,
    command: Command,
    /// Directory for the run's files. `None` if it cannot be made, which has been reported.
    directory: Option<RunDirectory>,
    /// Store of the run. Operations wait while the store is away.
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
    /// Deliverer of messages; `None` if no endpoint is configured.
    telling: Option<Delivering>,
    /// MCP servers at `/mcp/NAME`; `None` if no server is configured.
    tools: Option<Face>,
    seen: mpsc::UnboundedReceiver<Seen>,
    kill_at: Option<KillPoint>,
    grace: Option<Duration>,
    backoff: Backoff,
    /// Time for which the newest attempt lived.
    lived: Duration,
    outage_rules: provider::Rules,
    /// Number of calls that the agent made through the proxy, over all attempts of this supervisor.
    asked: u64,
    /// Outage that the newest calls met, over all attempts.
    outage: provider::CurrentOutage,
    /// Newest attempt, if this supervisor drove it and certainly none of its processes is left; `None`
    /// otherwise.
    cleared: Option<AttemptNo>,
    /// Death of the attempt after which the next one starts; `None` if none died.
    died: Option<attempt::Death>,
    /// Number of the loop's next or current iteration, counted from 1; `None` if the run is no loop.
    iteration: Option<i64>,
    said_no_git: bool,
    state: Option<StateFace>,
    show: Show,
    /// Parent of the attempts' control groups; `None` if no group can be made.
    ground: Option<ParentGroup>,
    /// Whether the agent of the attempt being judged was killed because memory ran out.
    oom: bool,
    /// Number of requests of the attempt being judged that passed unread on opened hosts.
    unread: i64,
    /// Last refusal of the attempt being judged, if the proxy let none of its calls through.
    refused: Option<String>,
    /// Socket at which others attach to watch; `None` if there is none.
    listening: Option<Listening>,
    shutdown: Option<tokio::sync::oneshot::Sender<()>>,
    /// Proxy of this run, served by the supervisor.
    proxy: Proxy,
    serving: tokio::task::JoinHandle<()>,
    terminal: Option<Terminal>,
    conduct: Option<Conduct>,
    interception: Interception,
    /// Network of the run's agents, if the network is confined; `None` otherwise.
    net: Option<Net>,
    /// Processes of tools of an earlier attempt, which were ended before the next one began.
    strays: Vec<Left>,
    /// Taker of snapshots of the run's files; `None` if none are kept.
    files: Option<Keeper>,
    /// Files that are brought back before the first attempt's agent starts.
    restore: Option<Target>,
}

/// Next step after an attempt.
enum Next {
    Again(Duration),
    /// The loop's iteration is over, and is judged.
    Turn,
    /// The run sleeps until the usage limit resets.
    Sleep,
    /// The run waits for room in a budget above its own, or for its provider.
    Wait,
    Exit(u8),
    /// The lease was lost, and the run is claimed again. `done`: the agent finished meanwhile and is not
    /// started again.
    Claim {
        done: Option<Exit>,
    },
}

/// Attempt that has ended.
struct Life {
    attempt: AttemptNo,
    instance: InstanceNo,
    /// Active time of the attempt that was not posted yet, in milliseconds.
    active_ms: i64,
}

impl Driver {
    /// Waits for calls in flight to be settled, and stops the proxy.
    async fn stop(&mut self) {
        if let Some(shutdown) = self.shutdown.take() {
            let _ = shutdown.send(());
        }
        // A panic in the task has been printed already.
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
        let mut begun = false;
        loop {
            if let Some(code) = self.sleep_on().await? {
                return Ok(code);
            }
            if finished.is_none()
                && let Some(code) = self.wait_for_room().await?
            {
                return Ok(code);
            }
            if finished.is_none()
                && let Some(code) = self.judge_iteration().await?
            {
                return Ok(code);
            }
            let iteration = self.iteration().await?;
            let fresh = iteration.as_ref().is_some_and(|i| i.fresh);
            // First the claim, whose fence shuts out whoever drove the run before; then the end of what that
            // process left. The agent of a living supervisor is not ours to end.
            let restarts = restart || self.is_restart()?;
            let (claims, instance) = match self.claim(restarts, fresh).await {
                Ok(Some(claimed)) => claimed,
                Ok(None) => return self.finish(Status::Halted),
                // The run was cancelled since it was last checked.
                Err(CliError::Store(store::Error::Engine(engine::Error::RunEnded { .. }))) if begun => {
                    let status = story::view(self.store.as_ref(), &self.view)?.run.status;
                    return self.finish(status);
                }
                Err(e) => return Err(e),
            };
            begun = true;
            let attempt = claims.attempt;
            if let Some(exit) = finished {
                // In a loop the finished agent was an iteration, which is judged next.
                let looping = self.view.spec.looping().is_some();
                let then = if looping { Then::Turn } else { Then::Complete };
                let status = self.end(attempt, instance, exit, 0, then).await?;
                if !looping {
                    return self.finish(status);
                }
                (finished, restart) = (None, false);
                continue;
            }
            // No process can have the mark before a run's first attempt, nor after an attempt of ours that
            // left none: another process that drove the run meanwhile would have had an attempt of its own.
            let (strays, tools) = match attempt.0 {
                1 => (0, Vec::new()),
                _ if self.cleared == Some(AttemptNo(attempt.0 - 1)) => (0, Vec::new()),
                _ => {
                    let keep = &self.command.supervision.keep;
                    strays::end(&self.mark, self.ground.as_ref(), keep).await?
                }
            };
            self.strays = tools;
            self.strays.extend(self.directory.iter().flat_map(|own| strays::take_left(&own.left())));
            if strays > 0 {
                let (exit, then) = (Exit { code: None, signal: None }, Then::Interrupt { by_person: false });
                self.end(attempt, instance, exit, 0, then).await?;
                return Err(
                    RunError::Strays { count: strays, whose: "an earlier attempt", before: true }.into()
                );
            }
            if let Some(iteration) = iteration {
                self.begin(iteration, &claims, instance).await?;
            }
            self.let_watch();
            (self.oom, self.unread, self.refused) = (false, 0, None);
            self.beat.open(attempt, instance);
            let began = Instant::now();
            if let Some(state) = &self.state {
                state.drive(claims, instance);
            }
            let outcome = self.one(claims, instance).await;
            self.show.stage.close();
            if let Some(state) = &self.state {
                state.rest();
            }
            let active_ms = self.beat.close();
            let is_cleared =
                outcome.as_ref().is_ok_and(|o| o.all_gone && o.left == 0 && o.by != EndedBy::LostLease);
            self.cleared = is_cleared.then_some(attempt);
            if outcome.as_ref().map_or(true, |o| o.exit != Exit::code(0))
                && let Some(terminal) = &self.terminal
            {
                terminal.restore();
            }
            self.lived = began.elapsed();
            let life = Life { attempt, instance, active_ms };
            let seen_at = outcome.as_ref().ok().map(|o| o.seen_at);
            match self.judge(life, outcome).await? {
                Next::Exit(code) => return Ok(code),
                Next::Again(wait) => {
                    restart = true;
                    let pausing = tokio::time::Instant::now();
                    if let Some(code) = self.pause(wait).await? {
                        return Ok(code);
                    }
                    let waited = wait.min(pausing.elapsed());
                    self.died = seen_at.map(|seen_at| attempt::Death { seen_at, waited });
                }
                Next::Wait => {
                    restart = false;
                    if let Some(code) = self.stand_back().await? {
                        return Ok(code);
                    }
                }
                Next::Turn | Next::Sleep => restart = false,
                Next::Claim { done } => finished = done,
            }
        }
    }

    /// Claims the run and opens its next attempt. `None`: the claim is refused, and the run is halted.
    ///
    /// Errors: another process drives the run, or it has ended.
    async fn claim(&self, restart: bool, fresh: bool) -> Result<Option<(Claims, InstanceNo)>, CliError> {
        let run = self.view.run.no;
        let claim = |instance| Claim { run, slot: Slot::DRIVER, instance, label: None, fresh, restart };
        Ok(match self.ask_alive(claim).await? {
            (Claimed::Attempt { attempt, fence, .. }, instance) => {
                Some((Claims { run, attempt, slot: Slot::DRIVER, fence: Some(fence) }, instance))
            }
            (Claimed::Refused(_), _) => None,
        })
    }

    /// Returns whether the run's next attempt is a restart.
    fn is_restart(&self) -> Result<bool, CliError> {
        Ok(self.store.attempts(self.view.run.no)?.last().is_some_and(Attempt::costs_restart))
    }

    /// Waits out the backoff. Returns an exit code if a person or the machine ends the run meanwhile.
    async fn pause(&mut self, wait: Duration) -> Result<Option<u8>, CliError> {
        let until = tokio::time::Instant::now() + wait;
        let since = story::view(self.store.as_ref(), &self.view)?.run.next_seq;
        loop {
            let left = until.saturating_duration_since(tokio::time::Instant::now());
            if let Some(code) = self.wait_for_signals(left.min(LOOK)).await? {
                return Ok(Some(code));
            }
            let view = story::view(self.store.as_ref(), &self.view)?;
            match view.run.status {
                Status::Halted | Status::Cancelled | Status::Completed => {
                    return self.finish(view.run.status).map(Some);
                }
                _ if view.run.stop_requested => return self.interrupted(true).await.map(Some),
                _ if tokio::time::Instant::now() >= until => return Ok(None),
                _ if view.run.awaited_outage().is_some()
                    && waits::is_woken(self.store.as_ref(), &view.run, since)? =>
                {
                    say("woken: the provider is asked now");
                    return Ok(None);
                }
                _ => {}
            }
        }
    }

    /// Interrupts the run between attempts, when there is no open attempt to end with it.
    async fn interrupted(&self, by_person: bool) -> Result<u8, CliError> {
        use outlast_core::engine::{Tell, Word};
        if by_person {
            let tell = Tell { run: self.view.run.no, word: Word::Stop };
            self.store.ask(tell, Durability::Synced).await?;
        }
        // Otherwise the run becomes interrupted when this process leaves.
        self.finish(Status::Interrupted)
    }

    /// Prints how the run ended and returns the exit code.
    fn finish(&self, status: Status) -> Result<u8, CliError> {
        let mut view = story::view(self.store.as_ref(), &self.view)?;
        // A run stopped between attempts gets this status only when this process leaves.
        view.run.status = status;
        story::end(&view, &self.store.attempts(self.view.run.no)?);
        if let Some(point) = &self.kill_at {
            let calls = some(i64::try_from(point.calls).unwrap_or(i64::MAX), "new call");
            say(&format!("the point of --kill-at was never reached: there were {calls}"));
        }
        let id = called(&view);
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
