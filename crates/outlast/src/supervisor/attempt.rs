//! One attempt: the agent is started, watched, and its whole tree ended.

use std::{sync::Arc, time::Duration};

use outlast_core::{run::status::Status, words::id::Micros};
use outlast_server::door::Seen;
use rustix::process::Signal;
use tokio::{sync::mpsc, time::Instant};

use super::{
    beat::{self, Beat, HALT_GRACE},
    ended_by::{EndedBy, asked, heard},
    environment::Mark,
    kill_point::KillPoint,
    limited::{self, Limited},
    output::Output,
};
use crate::{
    agent::truth::{self, Left},
    program::say::say,
    render::amount::some,
};
use outlast_process::{
    attach::stage::Stage,
    cgroup::{self, Ground, Group, OomKills},
    end_tree::{Ended, Force, end_tree},
    exit::Exit,
    ladder::{Ask, Graces},
    proc_table::ProcId,
    reap,
    signals::Signals,
    spawn::{Child, Command, Spawner},
    start_error,
    tree::Tree,
};

/// How long a reader of ours has for what a stopped agent printed: it is in the log.
const STOPPED_READER: Duration = Duration::from_secs(2);

/// How often it is looked whether orphans have finished.
const LOOK_FOR_ORPHANS: Duration = Duration::from_millis(200);

/// What became of it.
#[derive(Clone, Debug)]
pub struct Outcome {
    pub exit: Exit,
    pub by: EndedBy,
    /// Until when the provider refuses everything, if its last word was that.
    pub limited: Option<Micros>,
    /// The proxy's last word was that there is no room for its call now.
    pub no_room: bool,
    /// Processes that could not be ended.
    pub left: usize,
    /// It is certain that nobody is left.
    pub all_gone: bool,
    /// When its end was seen, before that of what it left.
    pub seen_at: Instant,
    /// Those of tools that lived when the agent was gone, or was asked to go.
    pub tools: Vec<Left>,
    /// What it asked the proxy for, paid, replayed or refused.
    pub asked: u64,
    /// The kernel killed it for its memory.
    pub oom: bool,
}

/// What an attempt is watched with.
pub struct Watch<'a> {
    pub spawner: &'a Spawner,
    pub signals: &'a Signals,
    pub beat: &'a Beat,
    pub seen: &'a mut mpsc::UnboundedReceiver<Seen>,
    pub mark: &'a Mark,
    pub hold: &'a Hold,
    pub stage: &'a Stage,
    /// The run's id and the attempt's number, for those who watch.
    pub who: (&'a str, i64),
    pub kill_at: &'a mut Option<KillPoint>,
    /// How long it may end by itself after a halt, or at a usage limit, if not as long as usual.
    pub grace: Option<Duration>,
    /// The agent keeps its conversation itself: it asks anew, and nobody is surprised.
    pub goes_on_itself: bool,
    /// Whether an agent that waits at a usage limit is stopped there.
    pub stop_at_limit: bool,
    /// Usage limits that the agent prints.
    pub printed: Option<mpsc::UnboundedReceiver<Micros>>,
    /// The death that this attempt follows.
    pub after: Option<Death>,
}

/// A death that another attempt follows.
#[derive(Clone, Copy, Debug)]
pub struct Death {
    pub seen_at: Instant,
    /// How much of the time since then was the backoff.
    pub waited: Duration,
}

/// How the attempt's processes are held together.
#[derive(Debug, Default)]
pub struct Hold {
    pub group: Option<Group>,
    pub keep: Vec<String>,
    /// How long what it leaves may go on.
    pub orphans_wait: Duration,
}

impl Hold {
    fn tree(&self, mark: &Mark) -> std::io::Result<Tree> {
        let groups = self.group.iter().map(|group| group.path().to_owned()).collect();
        // Those of before us have been ended.
        Ok(Tree { groups, keep: self.keep.clone(), ..Tree::of_ours(mark.marker())? })
    }
}

/// Ends whatever an earlier attempt left behind, also one of a supervisor that died.
///
/// Returns how many could not be ended, and which of all were tools'.
pub async fn end_strays(
    mark: &Mark,
    ground: Option<&Ground>,
    keep: &[String],
) -> std::io::Result<(usize, Vec<Left>)> {
    let groups = ground.map_or_else(Vec::new, |ground| ground.left(&mark.group()));
    let tree = Tree::new(mark.marker(), vec![ProcId::of_self()?]);
    let tree = Tree { groups: groups.clone(), keep: keep.to_vec(), ..tree };
    let strays = tree.survivors()?.len();
    if strays == 0 {
        groups.iter().for_each(|group| cgroup::remove(group));
        return Ok((0, Vec::new()));
    }
    let tools = truth::look(&tree)?;
    say(&format!("ending {} of an earlier attempt", some(strays as i64, "process")));
    let ended = ladder(tree, None, Ask::EndRest, Graces::default(), Arc::new(Force::new()?)).await?;
    groups.iter().for_each(|group| cgroup::remove(group));
    Ok((ended.left.len(), tools))
}

async fn ladder(
    tree: Tree,
    child: Option<Arc<Child>>,
    ask: Ask,
    graces: Graces,
    force: Arc<Force>,
) -> std::io::Result<Ended> {
    tokio::task::spawn_blocking(move || end_tree(&tree, child.as_deref(), ask, graces, &force))
        .await
        .map_err(std::io::Error::other)?
}

/// Starts the agent and watches it to its end. Nothing of its tree lives when this returns, and what it
/// printed to `output` is kept and passed on.
pub async fn run(
    command: Command,
    output: Option<Output>,
    mut watch: Watch<'_>,
) -> Result<Outcome, AttemptError> {
    let oom_kills = OomKills::begin(watch.hold.group.as_ref().map(Group::path));
    let child = Arc::new(watch.spawner.spawn(command)?);
    if let Some(death) = watch.after {
        let took = death.seen_at.elapsed().saturating_sub(death.waited);
        let (took_us, waited_ms) = (took.as_micros() as u64, death.waited.as_millis() as u64);
        tracing::info!(attempt = watch.who.1, took_us, waited_ms, "started again");
    }
    watch.stage.begun(watch.who.0, watch.who.1);
    let tree = watch.hold.tree(watch.mark)?;
    let mut word = watch.beat.word();
    let mut by = EndedBy::Itself;
    let mut halting: Option<(Instant, Status)> = None;
    let mut asked_for = 0;
    let mut limited = Limited::default();
    let ask = loop {
        tokio::select! {
            exit = child.exited() => {
                // A terminal's Ctrl-C ends the agent before we look; of an agent with a group of its own
                // that has finished, a signal to us alone comes too late.
                if exit? != Exit::code(0) || !child.leads_own_group() {
                    by = asked(&watch.signals.take()).unwrap_or(by);
                }
                if by == EndedBy::Itself && watch.stage.is_interrupted(child.try_wait()?) {
                    by = EndedBy::Person;
                }
                break None;
            }
            signals = watch.signals.next() => {
                let (ask, who) = heard(&signals?, &child)?;
                if let Some(ask) = ask {
                    by = who;
                    break Some(ask);
                }
            }
            word = beat::ending(&mut word), if halting.is_none() => {
                if word.dead {
                    by = EndedBy::LostLease;
                    break Some(Ask::Stop(Some(Signal::TERM)));
                }
                let Some(pulse) = word.pulse else { continue };
                if pulse.stop_requested && matches!(pulse.status, Status::Running | Status::Waiting) {
                    by = EndedBy::Person;
                    break Some(Ask::Stop(Some(Signal::TERM)));
                }
                // Its own error handling comes first: most agents end on the refusal by themselves.
                halting = Some((Instant::now() + watch.grace.unwrap_or(HALT_GRACE), pulse.status));
            }
            status = over(halting) => {
                halting = None;
                // Given room meanwhile, it goes on.
                if word.borrow().ends() {
                    by = EndedBy::Halt(status);
                    break Some(Ask::Stop(Some(Signal::TERM)));
                }
            }
            () = reached(limited.patience(watch.grace.unwrap_or(limited::GRACE))), if watch.stop_at_limit && halting.is_none() => {
                by = EndedBy::Limit;
                break Some(Ask::Stop(Some(Signal::TERM)));
            }
            until = heard_of(&mut watch.printed) => limited.read(until),
            seen = watch.seen.recv() => {
                let Some(seen) = seen else { continue };
                asked_for += u64::from(is_metered(&seen));
                limited.note(&seen);
                if watch.kill_at.as_mut().is_some_and(|k| k.is_now(&seen)) {
                    *watch.kill_at = None;
                    say("killing the agent (--kill-at)");
                    child.signal(Signal::KILL)?;
                }
                let is_expected = watch.goes_on_itself && matches!(seen, Seen::Diverged { .. });
                if !is_expected {
                    note(&seen, watch.beat).await;
                }
            }
        }
    };
    let seen_at = Instant::now();
    // An end of its own that was not seen yet comes first: nothing was asked of it in time.
    let ask = match (ask, child.try_wait()?) {
        (Some(_), Some(exit)) => {
            let heard_too = !child.leads_own_group() && matches!(by, EndedBy::Person | EndedBy::Machine);
            if exit == Exit::code(0) && !heard_too {
                by = EndedBy::Itself;
            }
            None
        }
        (ask, _) => ask,
    };
    // What it died of may not have been heard yet: the proxy says it before the agent hears.
    while let Ok(seen) = watch.seen.try_recv() {
        asked_for += u64::from(is_metered(&seen));
        limited.note(&seen);
    }
    if ask.is_none()
        && by == EndedBy::Itself
        && let Some(who) = let_finish(&tree, &watch).await?
    {
        by = if child.try_wait()? == Some(Exit::code(0)) { by } else { who };
    }
    // The agent is gone, or is to go: in both cases with everything it started.
    let force = Arc::new(Force::new()?);
    let ask = ask.unwrap_or(Ask::EndRest);
    // An agent that has finished leaves no tool that anybody asks about.
    let finished = child.try_wait()? == Some(Exit::code(0));
    let tools = if finished { Vec::new() } else { truth::look(&tree)? };
    let mut hurried = false;
    let ending = ladder(tree, Some(child.clone()), ask, Graces::default(), force.clone());
    let mut ending = std::pin::pin!(ending);
    let ended = loop {
        tokio::select! {
            ended = &mut ending => break ended?,
            signals = watch.signals.next() => {
                let Some(who) = asked(&signals?) else { continue };
                match by {
                    // It died by itself: this is the first that is asked of us, and no attempt follows.
                    EndedBy::Itself if child.try_wait()? != Some(Exit::code(0)) => by = who,
                    // A second Ctrl-C means now, also to a reader of ours who does not read.
                    _ => {
                        force.now()?;
                        hurried = true;
                    }
                }
            }
        }
    };
    if let Some(output) = output
        && let Some(who) = finish(output, watch.signals, hurried, by != EndedBy::Itself).await?
        && by == EndedBy::Itself
        && child.try_wait()? != Some(Exit::code(0))
    {
        by = who;
    }
    while let Some(until) = watch.printed.as_mut().and_then(|printed| printed.try_recv().ok()) {
        limited.read(until);
    }
    let exit = match ended.main {
        Some(exit) => exit,
        None => child.try_wait()?.unwrap_or(Exit { code: None, signal: None }),
    };
    while let Ok(seen) = watch.seen.try_recv() {
        asked_for += u64::from(is_metered(&seen));
    }
    // Who else was killed there for memory, while our own kill ended the agent, is not its story.
    let oom = by == EndedBy::Itself && is_killed(exit) && oom_kills.grew();
    let (left, all_gone) = (ended.left.len(), ended.all_gone);
    let (until, no_room) = (limited.until(), limited.no_room());
    Ok(Outcome { exit, by, limited: until, no_room, left, all_gone, seen_at, tools, asked: asked_for, oom })
}

fn is_metered(seen: &Seen) -> bool {
    matches!(seen, Seen::Opened { .. } | Seen::Replayed { .. } | Seen::Refused { .. })
}

/// By SIGKILL, or as a shell passes that on.
fn is_killed(exit: Exit) -> bool {
    exit.signal == Some(9) || exit.code == Some(128 + 9)
}

/// Lets what the agent left go on for its time. Returns who asked for an end meanwhile.
async fn let_finish(tree: &Tree, watch: &Watch<'_>) -> std::io::Result<Option<EndedBy>> {
    let until = Instant::now() + watch.hold.orphans_wait;
    let mut said = false;
    while Instant::now() < until && !watch.beat.word().borrow().ends() {
        reap::reap_adopted()?;
        let left = tree.survivors()?.len();
        if left == 0 {
            return Ok(None);
        }
        if !std::mem::replace(&mut said, true) {
            let (left, wait) = (some(left as i64, "process"), watch.hold.orphans_wait.as_secs());
            say(&format!("the agent has ended and left {left}: waiting up to {wait} s for their end"));
        }
        tokio::select! {
            () = tokio::time::sleep(LOOK_FOR_ORPHANS) => {}
            signals = watch.signals.next() => {
                if let Some(who) = asked(&signals?) {
                    return Ok(Some(who));
                }
            }
        }
    }
    Ok(None)
}

/// Waits until what was printed is passed on: a reader of ours who has stopped reading is not waited for
/// once somebody asks that the run stops, and not for long once it is stopped. Returns who.
async fn finish(
    output: Output,
    signals: &Signals,
    hurried: bool,
    is_stopped: bool,
) -> std::io::Result<Option<EndedBy>> {
    let hurry = output.hurry();
    if hurried {
        hurry();
    }
    let patience = tokio::time::sleep(STOPPED_READER);
    let mut patience = std::pin::pin!(patience);
    let mut is_patient = is_stopped && !hurried;
    let mut finished = tokio::task::spawn_blocking(move || output.finish());
    let mut by = None;
    loop {
        tokio::select! {
            done = &mut finished => {
                done.map_err(std::io::Error::other)?;
                return Ok(by);
            }
            () = &mut patience, if is_patient => {
                is_patient = false;
                hurry();
            }
            signals = signals.next() => {
                if let Some(who) = asked(&signals?) {
                    by = Some(who);
                    hurry();
                }
            }
        }
    }
}

/// When a halted agent's time is over.
async fn over(halting: Option<(Instant, Status)>) -> Status {
    match halting {
        Some((at, status)) => {
            tokio::time::sleep_until(at).await;
            status
        }
        None => std::future::pending().await,
    }
}

/// The next limit that is printed, if any.
async fn heard_of(printed: &mut Option<mpsc::UnboundedReceiver<Micros>>) -> Micros {
    match printed {
        Some(receiver) => match receiver.recv().await {
            Some(until) => until,
            None => {
                *printed = None;
                std::future::pending().await
            }
        },
        None => std::future::pending().await,
    }
}

/// When it is time, if ever.
async fn reached(at: Option<Instant>) {
    match at {
        Some(at) => tokio::time::sleep_until(at).await,
        None => std::future::pending().await,
    }
}

async fn note(seen: &Seen, beat: &Beat) {
    match seen {
        Seen::Refused { code, message, hint } => {
            say(&format!("a call was refused ({code}): {message}"));
            // What halts the run is told with its hint when the agent has ended.
            if let Some(hint) = hint.as_ref().filter(|_| !halts(code)) {
                say(&format!("hint: {hint}"));
            }
            beat.now().await;
        }
        Seen::Diverged { untaken } => say(&format!(
            "the restarted agent asks something new while {untaken} recorded answers are untaken: these will be paid"
        )),
        _ => {}
    }
}

fn halts(code: &str) -> bool {
    matches!(code, "diverged" | "price_unknown") || code.ends_with("_budget_exceeded")
}

/// Why an attempt could not be made.
#[derive(Debug, thiserror::Error)]
pub enum AttemptError {
    #[error(transparent)]
    Start(#[from] start_error::Error),
    #[error("the limits of memory and processor time cannot be kept: {0}")]
    Limits(cgroup::Error),
    #[error("the supervisor failed: {0}")]
    Io(#[from] std::io::Error),
}
