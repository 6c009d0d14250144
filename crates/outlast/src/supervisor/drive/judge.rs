//! Decides what follows an attempt's end and records it: done, restart, stopped, given up, or failed at once because
//! every further attempt would end so.

use std::time::Duration;

use outlast_core::{
    engine::{self, AwaitProvider, EndAttempt, run::end_attempt::Then},
    envelope::Unit,
    journal::{Entry, Kind, State},
    reads::entries,
    run::{Attempt, Run, Status},
    store::{self, Ask as _, Durability},
    words::{AttemptNo, InstanceNo},
};
use outlast_process::{
    exit::{self, DeathAt, Exit, Futile, Verdict},
    guardian,
};
use outlast_view::lines;
use rustix::event::{PollFd, PollFlags};

use super::{
    Driver, Life, Next,
    attempt::{EndedBy, Outcome},
};
use crate::{
    agent::truth,
    logs,
    loops::task_context::TaskContext,
    program::{
        error::{CliError, RunError},
        exit_code,
        say::say,
    },
    render::{did::Did, next::is_expected_to_call, short::called},
    supervisor::story,
};

impl Driver {
    /// Decides what follows an attempt's end (done, restart, stopped, given up), and records it in the commit that ends
    /// the attempt.
    pub(super) async fn judge(
        &mut self,
        life: Life,
        outcome: Result<Outcome, RunError>,
    ) -> Result<Next, CliError> {
        let (judged, outcome) = match outcome {
            Ok(outcome) => (self.judge_ours(&life, Ok(&outcome)).await, Some(outcome)),
            Err(e) => (self.judge_ours(&life, Err(e)).await, None),
        };
        match judged {
            Err(CliError::Store(store::Error::Engine(engine::Error::LeaseLost { .. }))) => {}
            judged => return judged,
        }
        // The verdict has ended the attempt already; whoever claims the run now drives it.
        if let Some(by @ (EndedBy::Person | EndedBy::Machine)) = outcome.as_ref().map(|o| o.by) {
            return self.interrupted(by == EndedBy::Person).await.map(Next::Exit);
        }
        say("this process was taken for dead (was the machine asleep?); claiming the run again");
        let done = outcome.filter(|o| o.by == EndedBy::Itself && o.exit == Exit::code(0)).map(|o| o.exit);
        Ok(Next::Claim { done })
    }

    /// Judges an attempt whose lease this process still holds. Errors: `LeaseLost` when it does not.
    async fn judge_ours(
        &mut self,
        life: &Life,
        outcome: Result<&Outcome, RunError>,
    ) -> Result<Next, CliError> {
        let attempts = self.store.attempts(self.view.run.no)?;
        let is_open = attempts.iter().any(|a| a.no == life.attempt && a.is_open());
        if !is_open || matches!(&outcome, Ok(o) if o.by == EndedBy::LostLease) {
            let id = self.view.run.id.to_string();
            let lost = engine::Error::LeaseLost { id, attempt: life.attempt.0 };
            return Err(store::Error::Engine(lost).into());
        }
        let outcome = match outcome {
            Ok(outcome) => outcome,
            Err(e) => {
                let (code, goes_on) = match &e {
                    RunError::NotStarted(e) => (e.exit_code(), e.is_passing() || ran_before(&attempts, life)),
                    RunError::NoCgroup(_) => (None, ran_before(&attempts, life)),
                    _ => (None, true),
                };
                let then = match goes_on {
                    true => Then::Interrupt { by_person: false },
                    false => Then::Fail(e.to_string()),
                };
                self.end_of(life, Exit { code, signal: None }, then).await?;
                if let RunError::NotStarted(_) = e {
                    let view = story::view(self.store.as_ref(), &self.view)?;
                    story::end(&view, &[]);
                }
                return Err(e.into());
            }
        };
        let exit = outcome.exit;
        (self.oom, self.unread, self.refused) = (outcome.oom, outcome.unread, outcome.limited.refused(exit));
        self.asked += outcome.asked;
        if outcome.oom {
            say("the kernel killed the agent for its memory (OOM)");
        }
        if outcome.left > 0 {
            self.end_of(life, exit, Then::Interrupt { by_person: false }).await?;
            return Err(RunError::Strays { count: outcome.left, whose: "the agent", before: false }.into());
        }
        // The refusal that halts the run may have come just before the agent ended.
        let run = story::view(self.store.as_ref(), &self.view)?.run;
        let status = run.status;
        if matches!(status, Status::Halted | Status::Cancelled) {
            self.end_of(life, exit, Then::Interrupt { by_person: false }).await?;
            return Ok(Next::Exit(self.finish(status)?));
        }
        if let Some(until) = outcome.limited.until().filter(|_| is_end_at_limit(outcome)) {
            let status = self.end_of(life, exit, Then::Sleep { until, why: outcome.limited.why() }).await?;
            // A run that got on before its limit begins again soon when that is over.
            if self.got_on(life.attempt)? {
                self.backoff.got_on();
            }
            return match status {
                Status::Sleeping => Ok(Next::Sleep),
                status => Ok(Next::Exit(self.finish(status)?)),
            };
        }
        if is_end_in_outage(outcome) {
            let run = self.dies_of_its_provider(run.clone()).await?;
            if run.awaited_outage().is_some() {
                return self.wait_for_provider(life, exit, &run).await;
            }
        }
        // An agent that waits for a person's approval is restarted, and asks again.
        let waits = status == Status::Waiting && run.halt.is_some();
        if (waits || outcome.limited.no_room()) && gave_up(outcome) {
            self.end_of(life, exit, Then::Wait).await?;
            return Ok(Next::Wait);
        }
        let stop_asked = outcome.by != EndedBy::Itself;
        let verdict = exit::judge(exit, stop_asked);
        match verdict {
            Verdict::Done if self.is_unfinished()? => {
                // Many signal handlers exit with 0, but the task is still open: that counts as an
                // interruption.
                self.over(life, exit, Then::Interrupt { by_person: false }).await
            }
            Verdict::Done if self.view.spec.looping().is_some() => {
                match self.end_of(life, exit, Then::Turn).await? {
                    status @ (Status::Halted | Status::Cancelled) => Ok(Next::Exit(self.finish(status)?)),
                    _ => Ok(Next::Turn),
                }
            }
            Verdict::Done => {
                let over = self.over(life, exit, Then::Complete).await?;
                self.say_if_unmetered()?;
                Ok(over)
            }
            Verdict::Interrupted => {
                self.over(life, exit, Then::Interrupt { by_person: outcome.by == EndedBy::Person }).await
            }
            Verdict::Stop(why) => {
                let text = why.words(exit);
                let code = match why {
                    Futile::Usage => exit_code::FAILED,
                    Futile::NotExecutable => exit_code::NOT_EXECUTABLE,
                    Futile::NotFound => exit_code::NOT_FOUND,
                };
                let is_away = why != Futile::Usage && ran_before(&attempts, life);
                let then = match is_away {
                    true => Then::Interrupt { by_person: false },
                    false => Then::Fail(text.clone()),
                };
                let status = self.end_of(life, exit, then).await?;
                say(&format!("not restarted: {text}"));
                self.finish(status)?;
                Ok(Next::Exit(code))
            }
            Verdict::Restart(_) if ended_by_a_closed_pipe(exit) && reader_is_gone() => {
                say("nobody reads its output any more, and the agent ended with that");
                self.over(life, exit, Then::Interrupt { by_person: true }).await
            }
            Verdict::Restart(_) => match self.futile(life, outcome, &attempts)? {
                Some(why) => self.give_up(life, exit, ("not restarted: ", why), exit_code::FAILED).await,
                None => self.restart(life, exit).await,
            },
        }
    }

    /// Reports a run that has ended without a call. Adapters of CLI agents report each attempt.
    fn say_if_unmetered(&self) -> Result<(), CliError> {
        let view = story::view(self.store.as_ref(), &self.view)?;
        let metered = self.asked > 0 || view.envelope.spent[Unit::Calls] > 0 || view.run.replayed > 0;
        if !metered && self.conduct.is_none() && is_expected_to_call(&view) {
            let entries = truth::newest_entries(self.store.as_ref(), self.view.run.no)?;
            if Did::of(&entries, None).has_called {
                return Ok(());
            }
            story::nothing_metered(&view, entries.iter().filter(|e| e.tool.is_some()).count());
        }
        Ok(())
    }

    /// Sets the run waiting for its provider if the newest call's failure may be the first of an outage. Returns the run.
    async fn dies_of_its_provider(&self, run: Run) -> Result<Run, CliError> {
        let Some(outage) = self.outage.failed().filter(|_| run.awaited_outage().is_none()) else {
            return Ok(run);
        };
        let waits = AwaitProvider { run: run.no, outage: outage.clone() };
        self.store.ask(waits, Durability::Committed).await?;
        Ok(story::view(self.store.as_ref(), &self.view)?.run)
    }

    /// Records an end while the provider answered no call, which counts as no death. Gives the run up once it has waited
    /// for too long.
    async fn wait_for_provider(&mut self, life: &Life, exit: Exit, run: &Run) -> Result<Next, CliError> {
        let Some(why) = self.outage_rules.given_up(run, self.store.now()?) else {
            self.end_of(life, exit, Then::AwaitProvider).await?;
            return Ok(Next::Wait);
        };
        let over = self.give_up(life, exit, ("", why), exit_code::FAILED).await?;
        say(&format!("hint: take it up again with `outlast resume {}`", called(&self.view)));
        Ok(over)
    }

    /// Returns whether a task was begun and not done. An exit with 0 is then an interruption.
    fn is_unfinished(&self) -> Result<bool, CliError> {
        let Some(open) = TaskContext::read(self.store.as_ref(), &self.view.run.id)?.task else {
            return Ok(false);
        };
        let task = &open.task;
        say(&format!(
            "the agent ended with exit 0, but task {task:?} was begun and not done: that is an interruption"
        ));
        Ok(true)
    }

    async fn restart(&mut self, life: &Life, exit: Exit) -> Result<Next, CliError> {
        if self.loops()? {
            let why = format!(
                "crash loop: {} deaths in 10 minutes with nothing finished between, the last {exit}",
                exit::DEATHS
            );
            let over = self.give_up(life, exit, ("", why), exit_code::CRASH_LOOP).await?;
            self.say_if_unmetered()?;
            return Ok(over);
        }
        self.end_of(life, exit, Then::Restart).await?;
        if self.got_on(life.attempt)? {
            self.backoff.got_on();
        }
        let wait = self.jitter();
        let mut view = story::view(self.store.as_ref(), &self.view)?;
        if self.conduct.is_some() {
            // The agent keeps its conversation itself, and asks for none of the recorded answers again.
            view.run.answers = 0;
        }
        // At a limit no attempt follows: the run halts at its claim.
        let left = lines(&view, self.store.now()?).into_iter().filter(|line| is_checked_by_claim(line.unit));
        if left.into_iter().any(|line| line.left.is_some_and(|left| left <= 0)) {
            say(&format!("attempt {} died ({exit})", life.attempt));
            return Ok(Next::Again(Duration::ZERO));
        }
        story::died(life.attempt.0, exit, wait, &view);
        Ok(Next::Again(wait))
    }

    /// Returns whether the run closed entries since the attempt began.
    pub(super) fn got_on(&self, attempt: AttemptNo) -> Result<bool, CliError> {
        let closed = story::view(self.store.as_ref(), &self.view)?.run.closed;
        let attempts = self.store.attempts(self.view.run.no)?;
        Ok(attempts.iter().any(|a| a.no == attempt && closed > a.closed_before))
    }

    /// Returns whether this death and the recorded ones before it make a crash loop.
    fn loops(&self) -> Result<bool, CliError> {
        let now = self.store.now()?;
        let closed = story::view(self.store.as_ref(), &self.view)?.run.closed;
        let attempts = self.store.attempts(self.view.run.no)?;
        let mut deaths: Vec<DeathAt> = attempts
            .iter()
            .zip(attempts.iter().skip(1).map(|next| next.closed_before))
            .filter(|(a, _)| a.costs_restart())
            .filter_map(|(a, closed)| Some(death(a.ended_at?.0, closed)))
            .collect();
        deaths.push(death(now.0, closed));
        Ok(exit::is_crash_loop(&deaths))
    }

    /// Records an attempt's end that is the run's, and says it.
    async fn over(&self, life: &Life, exit: Exit, then: Then) -> Result<Next, CliError> {
        let status = self.end_of(life, exit, then).await?;
        self.finish(status).map(Next::Exit)
    }

    /// Fails the run with its attempt, and says `why`.
    async fn give_up(
        &self,
        life: &Life,
        exit: Exit,
        (before, why): (&str, String),
        code: u8,
    ) -> Result<Next, CliError> {
        self.end_of(life, exit, Then::Fail(why.clone())).await?;
        say(&format!("{before}{why}"));
        self.finish(Status::Failed)?;
        Ok(Next::Exit(code))
    }

    async fn end_of(&self, life: &Life, exit: Exit, then: Then) -> Result<Status, CliError> {
        self.end(life.attempt, life.instance, exit, life.active_ms, then).await
    }

    pub(super) async fn end(
        &self,
        attempt: AttemptNo,
        instance: InstanceNo,
        exit: Exit,
        active_ms: i64,
        then: Then,
    ) -> Result<Status, CliError> {
        // What this supervisor ends because its guardian died is lost with both of them.
        guardian::stop_if_lost();
        let exit = outlast_core::run::attempt::Exit {
            code: exit.code,
            signal: exit.signal,
            oom: self.oom,
            stopped: matches!(then, Then::Interrupt { .. }),
            at_limit: matches!(then, Then::Sleep { .. }),
            for_room: matches!(then, Then::Wait),
            unread: self.unread,
            refused: self.refused.clone(),
            ..outlast_core::run::attempt::Exit::default()
        };
        // The next attempt's claim syncs this record as well. If power fails before that, the attempt is
        // found cut off, which counts as a death all the same.
        let durability =
            if matches!(then, Then::Restart) { Durability::Committed } else { Durability::Synced };
        let end = EndAttempt { run: self.view.run.no, attempt, instance, exit, active_ms, then };
        Ok(self.store.ask(end, durability).await?)
    }
}

/// Returns whether a limit of this unit keeps a next attempt from beginning.
fn is_checked_by_claim(unit: Unit) -> bool {
    match unit {
        Unit::WallMs | Unit::ActiveMs | Unit::Restarts => true,
        Unit::CostNanoUsd | Unit::Tokens | Unit::Calls | Unit::Loops => false,
    }
}

/// Returns whether the exit means SIGPIPE: by the signal itself, or by a shell's exit code 141.
fn ended_by_a_closed_pipe(exit: Exit) -> bool {
    exit.signal == Some(13) || exit.code == Some(128 + 13)
}

/// Returns whether nobody reads this process's standard output any longer, as after `| head`.
fn reader_is_gone() -> bool {
    let stdout = std::io::stdout();
    let mut polled = [PollFd::new(&stdout, PollFlags::empty())];
    let at_once = rustix::time::Timespec::default();
    rustix::event::poll(&mut polled, Some(&at_once)).is_ok() && polled[0].revents().contains(PollFlags::ERR)
}

/// Returns whether a usage limit that stands may have ended the attempt. Many an agent exits with 0 there; one that got
/// past the limit has had an answer since, which cleared it.
fn is_end_at_limit(outcome: &Outcome) -> bool {
    match outcome.by {
        EndedBy::Limit | EndedBy::Itself => true,
        EndedBy::Person | EndedBy::Machine | EndedBy::Halt(_) | EndedBy::Outage | EndedBy::LostLease => false,
    }
}

/// Returns whether the agent ended without success while its provider answered no call, or was stopped for that.
fn is_end_in_outage(outcome: &Outcome) -> bool {
    match outcome.by {
        EndedBy::Outage => true,
        EndedBy::Itself => outcome.exit != Exit::code(0),
        _ => false,
    }
}

/// Returns whether the agent failed by itself, without a signal, as it does after it was told too often to
/// retry.
pub(super) fn gave_up(outcome: &Outcome) -> bool {
    outcome.by == EndedBy::Itself
        && matches!(exit::judge(outcome.exit, false), Verdict::Restart(exit::Death::Failed))
}

/// Returns whether the command was executed in an earlier attempt. That it is not found now may pass: a disk that is not
/// mounted, another PATH.
fn ran_before(attempts: &[Attempt], life: &Life) -> bool {
    let ran =
        |attempt: &Attempt| attempt.exit.as_ref().is_none_or(|exit| !matches!(exit.code, Some(126 | 127)));
    attempts.iter().any(|attempt| attempt.no < life.attempt && ran(attempt))
}

fn death(at_us: i64, closed: i64) -> DeathAt {
    DeathAt { at_us, entries_closed: u64::try_from(closed).unwrap_or(0) }
}

/// Exit code with which programs tell no more than that they failed.
const FAILED: i32 = 1;

impl Driver {
    /// Returns why another attempt would end as this one did; `None` if it may get further. `attempts` are all of the
    /// run's, this one too.
    pub(super) fn futile(
        &self,
        life: &Life,
        outcome: &Outcome,
        attempts: &[Attempt],
    ) -> Result<Option<String>, CliError> {
        if !gave_up(outcome) {
            return Ok(None);
        }
        if let Some(refused) = outcome.limited.for_good() {
            let id = called(&self.view);
            let hint = match (refused.code.as_str(), &refused.hint) {
                (outlast_server::door::TOO_LARGE, _) => {
                    format!("; hint: `outlast resume {id} --max-body 256MiB` takes larger ones")
                }
                (_, Some(hint)) => format!("; hint: {hint}"),
                (_, None) => String::new(),
            };
            return Ok(Some(format!("{}{hint}", refused.message)));
        }
        let failed_before = |a: &&Attempt| {
            a.no.0 + 1 == life.attempt.0
                && a.died()
                && a.exit.as_ref().is_some_and(|e| e.code == Some(FAILED))
        };
        let before = attempts.iter().find(failed_before).filter(|_| outcome.exit.code == Some(FAILED));
        if let Some(before) = before
            && let Some(words) = self.refused_key(before.no)?.and(self.refused_key(life.attempt)?)
        {
            return Ok(Some(format!("its provider refused its key twice: {words}")));
        }
        let did = Did::of(&truth::newest_entries(self.store.as_ref(), self.view.run.no)?, None);
        if self.asked > 0 || did != Did::default() || self.got_on(life.attempt)? {
            return Ok(None);
        }
        let Some(printed) = self.printed(life.attempt) else { return Ok(None) };
        if let Some((line, key)) = no_login(&printed) {
            let hint = format!("hint: set {key}, or log in, then `outlast resume {}`", called(&self.view));
            return Ok(Some(format!("the agent has no key and no login: {line}; {hint}")));
        }
        if life.attempt == AttemptNo(1) {
            return Ok(mistake(&printed).map(|line| format!("the program cannot be loaded: {line}")));
        }
        let is_same = before.is_some_and(|before| self.printed(before.no).as_ref() == Some(&printed));
        Ok(is_same.then(|| {
            let said = printed.iter().rfind(|line| !line.trim().is_empty());
            exit::twice_words(FAILED, said.map_or("", |line| line.trim()))
        }))
    }

    /// Returns the provider's words, if it refused the key of each call of the attempt; `None` if it did not, or was not
    /// called.
    fn refused_key(&self, attempt: AttemptNo) -> Result<Option<String>, CliError> {
        let run = super::story::view(self.store.as_ref(), &self.view)?.run;
        let mut words = None;
        for entry in entries::each_back(self.store.as_ref(), run.no, run.next_seq) {
            let entry = entry?;
            if entry.attempt < attempt {
                break;
            }
            if entry.kind == Kind::Call && entry.attempt == attempt {
                let Some(refusal) = refusal(&entry) else { return Ok(None) };
                words.get_or_insert(refusal);
            }
        }
        Ok(words)
    }

    /// Returns the last lines that the attempt printed; `None` if there is no log of it.
    fn printed(&self, attempt: AttemptNo) -> Option<Vec<String>> {
        let own = self.directory.as_ref().filter(|_| !self.command.supervision.no_logs)?;
        logs::last_lines(&own.logs(), attempt, LINES).ok()
    }
}

/// Returns status and words with which a provider refused the key of a call; `None` if the call had another end.
fn refusal(entry: &Entry) -> Option<String> {
    let call = entry.call.as_ref().filter(|_| entry.state == State::Failed)?;
    let status = call.http_status.filter(|status| matches!(status, 401 | 403))?;
    Some(match call.error.as_deref().map(str::trim) {
        Some(words) if !words.is_empty() => format!("{status}, {words}"),
        _ => status.to_string(),
    })
}

/// Names of the errors by which Python reports a program that it cannot load.
const PYTHON: [&str; 5] =
    ["ModuleNotFoundError", "ImportError", "SyntaxError", "IndentationError", "TabError"];

/// Beginnings of the lines by which Node reports a program that it cannot load.
const NODE: [&str; 3] =
    ["Error: Cannot find module ", "Error [ERR_MODULE_NOT_FOUND]: Cannot find ", "SyntaxError: "];

/// Words that an agent prints which has neither a key nor a login, and the variable of its key.
const NO_LOGIN: [(&str, &str); 1] = [("Not logged in", "ANTHROPIC_API_KEY")];

/// Returns the line, among the last ones that the agent printed, which says that it has no login, and the variable of its
/// key; `None` if there is none.
fn no_login(lines: &[String]) -> Option<(&str, &'static str)> {
    let says = |line: &&str| NO_LOGIN.iter().find(|(words, _)| line.starts_with(words)).map(|(_, key)| *key);
    lines.iter().map(|line| line.trim()).rev().find_map(|line| Some((line, says(&line)?)))
}

/// Number of last printed lines that are searched: Node prints its stack below the error.
pub const LINES: usize = 40;

/// Returns the line that says which program or module cannot be loaded, among the last ones that the agent printed;
/// `None` if there is none.
pub fn mistake(lines: &[String]) -> Option<&str> {
    let last = lines.iter().map(|line| line.trim_end()).rfind(|line| !line.is_empty())?;
    let is_python = last.split_once(": ").is_some_and(|(name, _)| PYTHON.contains(&name));
    if is_python {
        return Some(last);
    }
    // The version comes last in Node's report of an error that nobody caught.
    last.strip_prefix("Node.js v")?;
    lines.iter().map(|line| line.trim_end()).rfind(|line| NODE.iter().any(|begins| line.starts_with(begins)))
}

#[cfg(test)]
mod tests_of_mistakes {
    use super::*;

    #[test]
    fn only_a_program_that_cannot_be_loaded_is_a_mistake() {
        let check = |printed: &str, wanted: Option<&str>| {
            let lines: Vec<String> = printed.lines().map(str::to_owned).collect();
            assert_eq!(mistake(&lines), wanted, "{printed}");
        };
        let module = "ModuleNotFoundError: No module named 'openia'";
        let traceback =
            "Traceback (most recent call last):\n  File \"a.py\", line 1, in <module>\n    import openia\n";
        check(&format!("{traceback}{module}\n"), Some(module));
        check(&format!("{traceback}{module}\n\n"), Some(module));
        check(
            "  File \"a.py\", line 3\n    x = (\n        ^\nSyntaxError: '(' was never closed\n",
            Some("SyntaxError: '(' was never closed"),
        );
        check(&format!("{traceback}openai.APIConnectionError: Connection error.\n"), None);
        check(&format!("{module}\nfalling back\n"), None);
        let node = "node:internal/modules/cjs/loader:1228\n  throw err;\n  ^\n\nError: Cannot find module '/x/a.js'\nRequire stack:\n    at x\n  code: 'MODULE_NOT_FOUND',\n}\n\nNode.js v20.19.2\n";
        check(node, Some("Error: Cannot find module '/x/a.js'"));
        check("TypeError: fetch failed\n    at y\n\nNode.js v20.19.2\n", None);
        check("I think you have an ImportError: see above", None);
        check("", None);
    }

    // Bug: Claude Code without a key was started twice, and its end named no key.
    #[test]
    fn an_agent_without_a_login_says_so_and_its_key_is_named() {
        let check = |printed: &str, wanted: Option<(&str, &str)>| {
            let lines: Vec<String> = printed.lines().map(str::to_owned).collect();
            assert_eq!(no_login(&lines), wanted, "{printed}");
        };
        let line = "Not logged in · Please run /login";
        check(&format!("{line}\n"), Some((line, "ANTHROPIC_API_KEY")));
        check(&format!("starting\n{line}\n\n"), Some((line, "ANTHROPIC_API_KEY")));
        check("the test says: Not logged in", None);
    }
}
