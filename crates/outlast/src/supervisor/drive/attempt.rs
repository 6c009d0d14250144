//! One attempt: starts the agent, watches it, and ends its whole process tree. Its end has a cause: a person, the machine,
//! `--kill-at`, a limit, or the agent itself.

use std::{path::PathBuf, sync::Arc, time::Duration};

use outlast_core::{
    run::Status,
    words::{AttemptNo, Micros, Seq},
};
use outlast_process::{
    cgroup::{Group, OomKills},
    end_tree::{Ended, end_tree},
    exit::Exit,
    ladder::{Ask, Graces},
    reap,
    signals::{Signals, suspend_self},
    spawn::{Child, Command},
    tree::{Marker, Tree},
    wait::Bell,
};
use outlast_server::door::{NOT_OPENED, Seen};
use rustix::process::Signal;
use tokio::{sync::mpsc, time::Instant};

use super::Driver;
use crate::{
    agent::truth::{self, Left},
    cli::values::KillAt,
    program::{error::RunError, say::say},
    render::{amount::some, time},
    supervisor::{
        beat::{self, Beat, HALT_GRACE},
        output::Output,
        provider::{self, Limited},
    },
};

/// Time that a reader of the supervisor's output has to take what a stopped agent printed. The log has it in
/// any case.
const STOPPED_READER: Duration = Duration::from_secs(2);

/// Time that an agent has to end when the machine asks for it, and then what it started. `docker stop` kills after 10 s,
/// and whoever is killed cannot end anything.
const MACHINE_GRACE: Duration = Duration::from_secs(7);
const LEFT_GRACE: Duration = Duration::from_secs(1);

/// Interval at which the supervisor checks whether orphans have finished.
const LOOK_FOR_ORPHANS: Duration = Duration::from_millis(200);

/// Result of one attempt, after the agent's processes have been ended.
#[derive(Clone, Debug)]
pub struct Outcome {
    pub exit: Exit,
    pub by: EndedBy,
    /// Usage limit at which the agent ended, if any, and the proxy's last refusal.
    pub limited: Limited,
    /// Number of processes of the attempt that could not be ended.
    pub left: usize,
    /// Whether it is certain that no process of the attempt is left.
    pub all_gone: bool,
    /// Moment at which the supervisor saw the agent's end, before it ended the remaining processes.
    pub seen_at: Instant,
    /// Processes of tools that were alive when the agent ended or was asked to end.
    pub tools: Vec<Left>,
    /// Number of calls that the agent made through the proxy: paid, replayed or refused.
    pub asked: u64,
    /// Number of the attempt's requests that passed unread on opened hosts.
    pub unread: i64,
    /// Whether the kernel killed the agent because memory ran out (OOM).
    pub oom: bool,
}

/// Attempt that [`Driver::watch`] watches, with what tells it from others.
pub struct Watch<'a> {
    pub attempt: AttemptNo,
    pub hold: &'a Hold,
    /// Whether the agent keeps its conversation itself. That its calls differ from the recorded ones is then not
    /// reported.
    pub goes_on_itself: bool,
    /// Whether an agent that waits at a usage limit is stopped, to be started again when the limit is over.
    pub stop_at_limit: bool,
    /// Whether the agent is killed at the point of `--kill-at`.
    pub is_killed: bool,
    /// Ends of usage limits in the agent's last words, and `None` each time that it went on printing; `None` if the output
    /// is not searched.
    pub printed: Option<mpsc::UnboundedReceiver<Option<Micros>>>,
    /// Death of the attempt before, which this attempt follows; `None` if no attempt died before it.
    pub after: Option<Death>,
}

/// Death of an agent, after which another attempt is started.
#[derive(Clone, Copy, Debug)]
pub struct Death {
    pub seen_at: Instant,
    /// Time since `seen_at` that the supervisor spent waiting in its backoff.
    pub waited: Duration,
}

/// Means by which the supervisor finds and ends the processes of an attempt.
#[derive(Debug, Default)]
pub struct Hold {
    pub group: Option<Group>,
    pub keep: Vec<String>,
    /// Time for which processes that the agent left may go on before they are ended.
    pub orphans_wait: Duration,
}

impl Hold {
    /// Returns the control groups of the attempt.
    pub fn groups(&self) -> Vec<PathBuf> {
        self.group.iter().map(|group| group.path().to_owned()).collect()
    }

    /// Returns the processes of the attempt, of which `marker` is an additional trace. Those of earlier attempts have been
    /// ended before this one starts.
    pub fn tree(&self, marker: Marker) -> std::io::Result<Tree> {
        Ok(Tree { groups: self.groups(), keep: self.keep.clone(), ..Tree::of_ours(marker)? })
    }
}

/// Runs [`end_tree`] on a thread on which it may block.
pub(in crate::supervisor) async fn ladder(
    tree: Tree,
    child: Option<Arc<Child>>,
    ask: Ask,
    graces: Graces,
    force: Arc<Bell>,
) -> std::io::Result<Ended> {
    tokio::task::spawn_blocking(move || end_tree(&tree, child.as_deref(), ask, graces, &force))
        .await
        .map_err(std::io::Error::other)?
}

impl Driver {
    /// Starts the agent, watches it, and returns after its end.
    ///
    /// When this returns, no process of the agent's tree is alive, except those that cannot be ended. Everything that the
    /// agent prints to `output` is logged and passed on.
    pub(super) async fn watch(
        &mut self,
        command: Command,
        output: Option<Output>,
        mut watch: Watch<'_>,
    ) -> Result<Outcome, RunError> {
        let oom_kills = OomKills::begin(watch.hold.group.as_ref().map(Group::path));
        let child = Arc::new(self.spawner.spawn(command)?);
        if let Some(death) = watch.after {
            let took = death.seen_at.elapsed().saturating_sub(death.waited);
            let (took_us, waited_ms) = (took.as_micros() as u64, death.waited.as_millis() as u64);
            tracing::info!(attempt = watch.attempt.0, took_us, waited_ms, "started again");
        }
        self.show.stage.begun(self.view.run.id.as_str(), watch.attempt.0);
        let mut tree = watch.hold.tree(self.mark.marker())?;
        let mut word = self.beat.word();
        let mut by = EndedBy::Itself;
        let mut halting: Option<(Instant, Status)> = None;
        let (mut asked_for, mut unread) = (0, 0);
        let mut count = |seen: &Seen| {
            asked_for += u64::from(is_metered(seen));
            unread += i64::from(*seen == Seen::Passed);
        };
        let mut limited = Limited::default();
        let mut said = None;
        let ask = loop {
            tokio::select! {
                exit = child.exited() => {
                    // A terminal's Ctrl-C ends the agent before we see the signal. If an agent with a process
                    // group of its own has finished, a signal that only we got came too late.
                    if exit? != Exit::code(0) || !child.leads_own_group() {
                        by = asked(&self.signals.take()).unwrap_or(by);
                    }
                    if by == EndedBy::Itself && self.show.stage.is_interrupted(child.try_wait()?) {
                        by = EndedBy::Person;
                    }
                    break None;
                }
                signals = self.signals.next() => {
                    let (ask, who) = heard(&signals?, &child)?;
                    if let Some(ask) = ask {
                        by = who;
                        break Some(ask);
                    }
                }
                word = beat::ending(&mut word), if halting.is_none() => {
                    if word.dead {
                        by = EndedBy::LostLease;
                        // A successor may be at work, and a grace would let both of them work.
                        break Some(Ask::Force);
                    }
                    let Some(pulse) = word.pulse else { continue };
                    if pulse.stop_requested && matches!(pulse.status, Status::Running | Status::Waiting) {
                        by = EndedBy::Person;
                        break Some(Ask::Stop(Some(Signal::TERM)));
                    }
                    // The agent's own error handling comes first: most agents end by themselves on the refusal.
                    halting = Some((Instant::now() + self.grace.unwrap_or(HALT_GRACE), pulse.status));
                }
                Some(status) = over(halting) => {
                    halting = None;
                    // The run may have been given room meanwhile: then the agent goes on.
                    if word.borrow().ends() {
                        by = EndedBy::Halt(status);
                        break Some(Ask::Stop(Some(Signal::TERM)));
                    }
                }
                () = reached(limited.patience(self.grace.unwrap_or(provider::GRACE))), if watch.stop_at_limit && halting.is_none() => {
                    by = EndedBy::Limit;
                    break Some(Ask::Stop(Some(Signal::TERM)));
                }
                () = reached(self.outage.over(self.outage_rules)), if halting.is_none() => {
                    by = EndedBy::Outage;
                    break Some(Ask::Stop(Some(Signal::TERM)));
                }
                printed = heard_of(&mut watch.printed) => limited.read(printed),
                seen = self.seen.recv() => {
                    let Some(seen) = seen else { continue };
                    count(&seen);
                    limited.note(&seen);
                    self.outage.note(&seen).iter().for_each(|news| say(news));
                    if watch.is_killed && self.kill_at.as_mut().is_some_and(|k| k.is_now(&seen)) {
                        self.kill_at = None;
                        say("killing the agent (--kill-at)");
                        child.signal(Signal::KILL)?;
                    }
                    let is_expected = watch.goes_on_itself && matches!(seen, Seen::Diverged { .. });
                    // A client that tries again is refused in the same words.
                    let is_refused = matches!(seen, Seen::Refused { .. });
                    let is_known = is_refused && said.as_ref() == Some(&seen);
                    if is_refused {
                        // A client may try again for ever. What cannot be read now is read at its next refusal.
                        let _ = self.halts_if_hopeless().await;
                    }
                    if !is_expected && !is_known {
                        note(&seen, &self.beat).await;
                        said = Some(seen);
                    }
                }
            }
        };
        let seen_at = Instant::now();
        // If the agent had already ended by itself, that counts: our request did not reach it in time.
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
        // The cause of the end may still be queued: the proxy reports it before the agent gets its answer.
        while let Ok(seen) = self.seen.try_recv() {
            count(&seen);
            limited.note(&seen);
            self.outage.note(&seen).iter().for_each(|news| say(news));
        }
        if ask.is_none()
            && by == EndedBy::Itself
            && let Some(who) = self.let_finish(&tree, watch.hold).await?
        {
            by = if child.try_wait()? == Some(Exit::code(0)) { by } else { who };
        }
        // The agent has ended or must end: in both cases together with everything it started.
        let force = Arc::new(Bell::new()?);
        let (mut hurried, mut cut_off) = (false, self.beat.cut_off().is_on());
        // An agent that stands still could not use a grace, and may not go on.
        let ask = if cut_off { Ask::Force } else { ask.unwrap_or(Ask::EndRest) };
        if cut_off || by == EndedBy::LostLease {
            // A successor on this machine bears the same mark. What is ours descends from us.
            tree.marker = Marker::new([]);
        }
        // Nobody asks about the tools of an agent that has finished.
        let finished = child.try_wait()? == Some(Exit::code(0));
        let tools = if finished { Vec::new() } else { truth::look(&tree)? };
        let ending = ladder(tree, Some(child.clone()), ask, graces(by, self.grace), force.clone());
        let mut ending = std::pin::pin!(ending);
        let ended = loop {
            tokio::select! {
                ended = &mut ending => break ended?,
                () = self.beat.cut_off().begun(), if !cut_off => {
                    force.ring();
                    cut_off = true;
                }
                signals = self.signals.next() => {
                    let Some(who) = asked(&signals?) else { continue };
                    match by {
                        // The agent died by itself. This is the first request to stop, and no further attempt
                        // follows.
                        EndedBy::Itself if child.try_wait()? != Some(Exit::code(0)) => by = who,
                        // A second Ctrl-C means now, even if a reader of our output has stopped reading.
                        _ => {
                            force.ring();
                            hurried = true;
                        }
                    }
                }
            }
        };
        if let Some(output) = output
            && let Some(who) = finish(output, &self.signals, hurried, by != EndedBy::Itself).await?
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
        while let Ok(seen) = self.seen.try_recv() {
            count(&seen);
        }
        // If our own kill ended the agent, another process killed there for memory does not count as the agent's
        // OOM.
        let oom = by == EndedBy::Itself && is_killed(exit) && oom_kills.grew();
        let (left, all_gone) = (ended.left.len(), ended.all_gone);
        if by == EndedBy::Itself {
            limited.ended(exit);
        }
        Ok(Outcome { exit, by, limited, left, all_gone, seen_at, tools, asked: asked_for, unread, oom })
    }

    /// Waits up to `orphans_wait` for processes that the agent left. Returns who asked for an end meanwhile.
    async fn let_finish(&self, tree: &Tree, hold: &Hold) -> std::io::Result<Option<EndedBy>> {
        let until = Instant::now() + hold.orphans_wait;
        let mut said = false;
        while Instant::now() < until && !self.beat.word().borrow().ends() {
            reap::reap_adopted()?;
            let left = tree.survivors()?.len();
            if left == 0 {
                return Ok(None);
            }
            if !std::mem::replace(&mut said, true) {
                let (left, wait) = (some(left as i64, "process"), hold.orphans_wait.as_secs());
                say(&format!("the agent has ended and left {left}: waiting up to {wait} s for their end"));
            }
            tokio::select! {
                () = tokio::time::sleep(LOOK_FOR_ORPHANS) => {}
                signals = self.signals.next() => {
                    if let Some(who) = asked(&signals?) {
                        return Ok(Some(who));
                    }
                }
            }
        }
        Ok(None)
    }
}

fn is_metered(seen: &Seen) -> bool {
    match seen {
        Seen::Opened { .. } | Seen::Replayed { .. } => true,
        // A program that does not take the run's certificate has asked for nothing.
        Seen::Refused { code, .. } => code != NOT_OPENED,
        _ => false,
    }
}

/// Returns whether the exit means SIGKILL: by the signal itself, or by a shell's exit code 137.
fn is_killed(exit: Exit) -> bool {
    exit.signal == Some(9) || exit.code == Some(128 + 9)
}

/// Waits until the output is passed on. A reader that does not read is abandoned as soon as the run is asked
/// to stop, and after a short time once it is stopped. Returns who asked for the stop.
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

/// Returns the times that an agent has to end, by who ends it. `grace`: the typed one.
fn graces(by: EndedBy, grace: Option<Duration>) -> Graces {
    match by {
        EndedBy::Machine => {
            Graces { main: grace.unwrap_or(MACHINE_GRACE), all: LEFT_GRACE, ..Graces::default() }
        }
        _ => Graces::default(),
    }
}

/// Resolves when the grace period of an agent whose run was halted is over; never if the run was not halted.
async fn over(halting: Option<(Instant, Status)>) -> Option<Status> {
    reached(halting.map(|(at, _)| at)).await;
    halting.map(|(_, status)| status)
}

/// Resolves with the next news of usage limits in what the agent prints; never if nothing is read.
async fn heard_of(printed: &mut Option<mpsc::UnboundedReceiver<Option<Micros>>>) -> Option<Micros> {
    if let Some(receiver) = printed {
        if let Some(until) = receiver.recv().await {
            return until;
        }
        *printed = None;
    }
    std::future::pending().await
}

/// Resolves at the given moment; never for `None`.
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
            // A refusal that halts the run is reported with its hint when the agent has ended.
            if let Some(hint) = hint.as_ref().filter(|_| !halts(code)) {
                say(&format!("hint: {hint}"));
            }
            beat.now().await;
        }
        Seen::Waits { calls, name } => say(&format!(
            "the agent waits busily: {calls} calls in a row brought it nothing new ({name}); each sends its whole \
             conversation again"
        )),
        Seen::Held { ms, name, .. } => say(&format!(
            "the agent's next call is held, for {} at most: it waits ({name}), and nothing has moved",
            time::span(i64::try_from(*ms).unwrap_or(i64::MAX))
        )),
        Seen::Diverged { untaken } => say(&format!(
            "the restarted agent asks something new, and leaves {untaken} recorded answers unused: one with checkpoints \
             of its own goes on like this; any other pays again for what it asks anew"
        )),
        _ => {}
    }
}

fn halts(code: &str) -> bool {
    matches!(code, "diverged" | "price_unknown" | "plan_untold" | "no_progress")
        || code.ends_with("_budget_exceeded")
}

/// Cause of an attempt's end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EndedBy {
    Itself,
    /// A person asked for the end: by Ctrl-C or `outlast stop`.
    Person,
    /// SIGTERM or SIGHUP: the machine shuts down, or the terminal was closed.
    Machine,
    /// The run has this status now, because of a limit or a cancel.
    Halt(Status),
    /// The agent waited at the provider's usage limit, and was stopped.
    Limit,
    /// The provider had an outage for too long, and the agent was stopped.
    Outage,
    /// This process was declared dead, and another one may drive the run now.
    LostLease,
}

/// Returns who asks by these signals that the run stops, a person or the machine; `None` if no signal asks for it.
pub fn asked(signals: &[Signal]) -> Option<EndedBy> {
    signals.iter().find_map(|signal| match *signal {
        Signal::INT | Signal::QUIT => Some(EndedBy::Person),
        Signal::TERM | Signal::HUP => Some(EndedBy::Machine),
        _ => None,
    })
}

/// Handles signals that the supervisor has received. Returns how the attempt is to be ended (`None`: it
/// continues), and who asked for that.
pub fn heard(signals: &[Signal], child: &Child) -> std::io::Result<(Option<Ask>, EndedBy)> {
    for signal in signals {
        match *signal {
            Signal::INT | Signal::QUIT => {
                // On a terminal the agent's group has received the Ctrl-C already.
                let to_child = child.leads_own_group().then_some(*signal);
                return Ok((Some(Ask::Stop(to_child)), EndedBy::Person));
            }
            Signal::TERM | Signal::HUP => {
                return Ok((Some(Ask::Stop(Some(Signal::TERM))), EndedBy::Machine));
            }
            Signal::TSTP => {
                if child.leads_own_group() {
                    child.signal_group(Signal::TSTP)?;
                }
                suspend_self()?;
                if child.leads_own_group() {
                    child.signal_group(Signal::CONT)?;
                }
            }
            Signal::CHILD => {
                // A child that is not reaped would hide the ones that are asked about.
                child.try_wait()?;
                reap::reap_adopted()?;
            }
            _ => {}
        }
    }
    Ok((None, EndedBy::Itself))
}

/// Point at which the agent is killed, once.
#[derive(Clone, Copy, Debug)]
pub struct KillPoint {
    pub at: KillAt,
    /// Number of new calls that the agent has made so far.
    pub calls: u64,
    armed: Option<Seq>,
}

impl KillPoint {
    pub fn new(at: KillAt) -> KillPoint {
        KillPoint { at, calls: 0, armed: None }
    }

    /// Returns whether the agent is to be killed at the event `seen` of the proxy.
    pub fn is_now(&mut self, seen: &Seen) -> bool {
        match seen {
            Seen::Opened { seq } => {
                self.calls += 1;
                if self.calls == self.at.call {
                    self.armed = Some(*seq);
                    return !self.at.mid;
                }
                false
            }
            Seen::Streaming { seq } => self.at.mid && self.armed == Some(*seq),
            _ => false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    // Bug: a deaf agent outlasted docker's ten seconds. Consequence: its supervisor was killed with it, and left the run
    // to its lease's end. Cause: the time between SIGTERM and SIGKILL could not be set.
    #[test]
    fn the_typed_grace_is_what_a_deaf_agent_has_after_the_machines_word() {
        let main = |by, ms: Option<u64>| graces(by, ms.map(Duration::from_millis)).main;
        assert_eq!(main(EndedBy::Machine, Some(0)), Duration::ZERO);
        assert_eq!(main(EndedBy::Machine, Some(60_000)), Duration::from_secs(60));
        assert_eq!(main(EndedBy::Machine, None), MACHINE_GRACE);
        // A person who waits in front of it types Ctrl-C again.
        assert_eq!(main(EndedBy::Person, Some(0)), Graces::default().main);
    }
}
