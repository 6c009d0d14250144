//! One running attempt: the agent's environment, its standard input, its output, and what holds its processes together.

use std::{
    collections::BTreeMap,
    ffi::OsString,
    fs::File,
    io::{Seek as _, Write as _},
    path::PathBuf,
    sync::Arc,
    time::Duration,
};

use outlast_core::{
    engine::Actor,
    journal::Role,
    run::{Claims, Command, Pty},
    store::{self, RunView, Store},
    words::{AttemptNo, InstanceNo, Micros},
};
use outlast_process::{
    attach::stage,
    cgroup::{self, Group},
    spawn::{self, Stdin},
    terminal,
};
use tokio::sync::mpsc;

use super::{
    Driver,
    attempt::{EndedBy, Hold, Outcome, Watch},
    start::StateFace,
};
use crate::{
    agent::{
        conduct::Launch,
        eyes::{LastWords, Sight},
        open_calls::SearchScope,
        session::Capture,
        truth,
    },
    logs::AttemptLog,
    loops::task_context::mirror::Mirror,
    program::{
        error::{CliError, RunError},
        say::say,
        told,
    },
    settings::upstreams,
    supervisor::{
        environment,
        output::{self, Ends, Eyes, Output},
        strays,
    },
};

impl Driver {
    /// Returns the environment variables of the agent for this attempt.
    pub(super) fn environment(&self, claims: Claims) -> std::io::Result<BTreeMap<OsString, OsString>> {
        let keys = self.store.token_keys().map_err(std::io::Error::other)?;
        let attempts = self.store.attempts(self.view.run.no).map_err(std::io::Error::other)?;
        let turn = attempts.iter().find(|a| a.no == claims.attempt).map(|a| a.iteration);
        // In a loop, attempts of other iterations did other work.
        let before = || attempts.iter().filter(|a| a.no < claims.attempt && Some(a.iteration) == turn);
        let last_exit = before().rev().find_map(|a| a.exit.as_ref()).map(outlast_view::exit_words);
        let state_file = self.mirror(claims.attempt).map_err(std::io::Error::other)?;
        let named = upstreams::load(&self.context.around).map_err(std::io::Error::other)?;
        let given = self.interception.give()?;
        let mut env = environment::Attempt {
            command: &self.command,
            mark: &self.mark,
            claims,
            keys: &keys,
            providers: &self.providers,
            named: &named,
            proxy: self.address,
            store: self.context.place.without_secret(),
            withheld: self.context.place.secrets(),
            grpc: self.state.as_ref().map(StateFace::address),
            iteration: self.iteration,
            recovered: before().next().is_some(),
            last_exit,
            state_file,
            intercepted: given.as_ref(),
        }
        .variables(self.context.around.variables());
        if self.confined.is_any() {
            env.insert(told::CONFINED.into(), "1".into());
        }
        Ok(env)
    }

    /// Returns the command line that runs `command` under the run's confinement.
    pub(super) fn before<S: Into<OsString>>(&self, command: impl IntoIterator<Item = S>) -> Vec<OsString> {
        let command = self.confined.before(command);
        match &self.net {
            Some(net) => net.before(command),
            None => command,
        }
    }

    pub(super) async fn one(&mut self, claims: Claims, instance: InstanceNo) -> Result<Outcome, RunError> {
        let actor = Actor { run: claims.run, attempt: claims.attempt, instance };
        if let Some(files) = &self.files {
            let undone = files.begin(actor, self.restore.take()).await?;
            if let Some(conduct) = &mut self.conduct {
                conduct.undone = undone;
            }
        }
        let mut env = self.environment(claims)?;
        let launch = self.launch(actor, &mut env).await.map_err(std::io::Error::other)?;
        let hold = self.held_together(claims.attempt).map_err(RunError::NoCgroup)?;
        strays::tell(&self.view, &hold, self.directory.as_ref().map(|own| own.left()))?;
        self.beat.cut_off().find_by(&hold)?;
        let (eyes, printed) = self.eyes(claims.attempt);
        let (ends, output) = self.output(self.log(claims.attempt), eyes)?;
        let on_terminal = ends.terminal.is_some();
        let supervision = &self.command.supervision;
        let command = spawn::Command {
            argv: self.before(launch.argv),
            cwd: PathBuf::from(&self.command.directory),
            umask: self.command.umask,
            env,
            // Nobody types on a terminal that is not lent: reading from it would never end.
            stdin: match (&ends.terminal, &self.stdin) {
                _ if launch.resumes && launch.headless => Stdin::Null,
                (Some(terminal), None) if self.show.is_behind => Stdin::To(terminal.clone()),
                _ => stdin_of(self.stdin.as_deref())?,
            },
            stdout: ends.stdout,
            stderr: ends.stderr,
            terminal: ends.terminal,
            limits: spawn::Limits {
                cgroup: hold.group.as_ref().map(Group::directory),
                address_space: supervision.memory_bytes.filter(|_| supervision.memory_by_rlimit),
            },
        };
        // Events seen so far belong to the attempt before, and may still end an outage.
        while let Ok(seen) = self.seen.try_recv() {
            self.outage.note(&seen).iter().for_each(|news| say(news));
        }
        let died = self.died.take();
        let copies = self.conduct.as_ref().and_then(|conduct| conduct.follow(self.store.clone(), actor));
        let copies = copies.map(tokio::spawn);
        let watch = Watch {
            attempt: claims.attempt,
            hold: &hold,
            goes_on_itself: launch.resumes,
            // At a terminal the agent would wait in a menu.
            stop_at_limit: self.command.stop_at_limit || on_terminal,
            is_killed: true,
            printed,
            after: died,
        };
        let outcome = self.watch(command, output, watch).await;
        if let Some(copies) = copies {
            copies.abort();
            // One copy at a time: what is under way is finished or dropped first.
            let _ = copies.await;
        }
        let outcome = outcome?;
        if let Err(e) = self.settle(actor, &outcome).await {
            say(&format!("what became of the agent's tools could not be recorded: {e}"));
        }
        if let Some(files) = self.files.as_ref().filter(|_| outcome.by != EndedBy::LostLease) {
            files.end().await;
        }
        Ok(outcome)
    }

    async fn launch(
        &mut self,
        actor: Actor,
        env: &mut std::collections::BTreeMap<std::ffi::OsString, std::ffi::OsString>,
    ) -> Result<Launch, store::Error> {
        let strays = std::mem::take(&mut self.strays);
        let store = self.store.as_ref();
        if let Some(conduct) = &mut self.conduct {
            return conduct.launch(store, actor, env, &strays, &self.context).await;
        }
        if !strays.is_empty()
            && let Some(before) = truth::last_that_called(store, actor.run, actor.attempt)?
        {
            let of = SearchScope::new(actor.run, before.no, None);
            truth::settle(store, actor, &of, &strays).await?;
        }
        Ok(Launch { argv: self.command.argv.clone(), ..Launch::default() })
    }

    /// Records the outcome of tools that the attempt left in flight, while the attempt is open.
    async fn settle(&mut self, actor: Actor, outcome: &Outcome) -> Result<(), store::Error> {
        let store = self.store.as_ref();
        let so_far = Some(&self.proxy.so_far(actor.run));
        match &mut self.conduct {
            _ if outcome.by == EndedBy::LostLease => Ok(()),
            Some(conduct) => {
                let end = (outcome.exit, outcome.tools.as_slice());
                conduct.ended(store, actor, end, outcome.asked > 0, so_far).await
            }
            // Agents started by a script: which one owns a tool is decided when they resume.
            None if outcome.tools.is_empty() => Ok(()),
            None => {
                let of = SearchScope { so_far, ..SearchScope::new(actor.run, actor.attempt, None) };
                truth::settle(store, actor, &of, &outcome.tools).await.map(drop)
            }
        }
    }

    /// Writes the task context's mirror file again from the store, whatever became of the file. Returns its
    /// path; `None` if there is no place for it.
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

    /// Returns the means by which the attempt's processes are found and ended: a control group of its own
    /// where possible.
    ///
    /// Errors: limits were asked for, and no group can be made.
    fn held_together(&self, attempt: AttemptNo) -> Result<Hold, cgroup::Error> {
        let supervision = &self.command.supervision;
        let limits = cgroup::Limits {
            memory_bytes: supervision.memory_bytes.filter(|_| !supervision.memory_by_rlimit),
            cpu_percent: supervision.cpu_percent,
        };
        let name = format!("{}{}", self.mark.group(), attempt.0);
        let group = self.ground.as_ref().ok_or(cgroup::Error::None).and_then(|g| g.group(&name, limits));
        let group = match group {
            Err(e) if limits != cgroup::Limits::default() => return Err(e),
            group => group.ok(),
        };
        let orphans_wait = Duration::from_millis(u64::try_from(supervision.orphans_wait_ms).unwrap_or(0));
        Ok(Hold { group, keep: supervision.keep.clone(), orphans_wait })
    }

    /// Begins the attempt's log. `None` if logs are off or there is no directory for them.
    fn log(&self, attempt: AttemptNo) -> Option<AttemptLog> {
        let own = self.directory.as_ref().filter(|_| !self.command.supervision.no_logs)?;
        output::log(&own.logs(), attempt)
    }

    /// Returns the readers of a declared agent's output. A session's id is on disk before the output is
    /// passed on.
    fn eyes(&self, attempt: AttemptNo) -> (Option<Eyes>, Option<mpsc::UnboundedReceiver<Option<Micros>>>) {
        let patterns = self.conduct.as_ref().map(|conduct| conduct.adapter().patterns()).unwrap_or_default();
        if patterns.is_empty() {
            return (None, None);
        }
        let (sender, printed) = mpsc::unbounded_channel();
        let (store, run) = (self.store.clone(), self.view.run.no);
        let words = LastWords::default();
        let tell = move |sight: Sight| {
            if let Some(limit) = words.note(&sight) {
                // At the very end nobody receives.
                let _ = sender.send(limit);
            }
            if let Sight::Session(id) = sight {
                Capture::read(store.as_ref(), run, attempt, &id);
            }
        };
        let eyes = Eyes { patterns, clock: self.context.clock.clone(), tell: Box::new(tell) };
        (Some(eyes), Some(printed))
    }

    /// Opens the agent's output streams. Returns the agent's ends, and the reader of the other ends; `None` if the
    /// agent inherits the supervisor's streams.
    pub(super) fn output(
        &self,
        log: Option<AttemptLog>,
        eyes: Option<Eyes>,
    ) -> std::io::Result<(Ends, Option<Output>)> {
        let (supervision, show) = (&self.command.supervision, &self.show);
        let pty = match supervision.pty {
            Pty::Never if !show.pty_asked => false,
            Pty::Always if !show.pty_asked => true,
            _ => show.pty,
        };
        if supervision.no_logs && !pty && !show.is_behind && eyes.is_none() {
            let inherit = spawn::Output::Inherit;
            return Ok((Ends { terminal: None, stdout: inherit.clone(), stderr: inherit }, None));
        }
        let (ends, streams) = if pty {
            let (pty, theirs) = terminal::Pty::open(show.stage.size())?;
            let both = show.onward.terminal(&pty, theirs)?;
            show.stage.open(Some(pty));
            both
        } else {
            show.stage.open(None);
            show.onward.pipes()?
        };
        Ok((ends, Some(Output::begin(streams, log, show.stage.clone(), eyes)?)))
    }

    /// Opens the socket at which viewers attach to the run. Call it once this process has the run's lease.
    pub(super) fn let_watch(&mut self) {
        let Some(own) = self.directory.as_ref().filter(|_| self.listening.is_none()) else { return };
        match stage::listen(own.path(), self.show.stage.clone()) {
            Ok(listening) => self.listening = Some(listening),
            Err(e) => tracing::warn!(error = %e, "nobody can attach to this run"),
        }
    }
}

/// Returns the agent's standard input: the bytes stored with the run, else this process's terminal, else nothing.
pub fn stdin_of(kept: Option<&[u8]>) -> std::io::Result<Stdin> {
    match kept {
        Some(bytes) => {
            let fd = rustix::fs::memfd_create("outlast-stdin", rustix::fs::MemfdFlags::CLOEXEC)?;
            let mut file = File::from(fd);
            file.write_all(bytes)?;
            file.rewind()?;
            Ok(Stdin::File(Arc::new(file)))
        }
        None => {
            use std::io::IsTerminal as _;
            let terminal = std::io::stdin().is_terminal();
            Ok(if terminal { Stdin::Inherit } else { Stdin::Null })
        }
    }
}

pub fn kept_stdin(store: &dyn Store, view: &RunView, command: &Command) -> Result<Option<Vec<u8>>, CliError> {
    if !command.stdin_kept {
        return Ok(None);
    }
    let Some(kept) = store.payload(view.run.no, outlast_core::words::id::Seq(0), Role::Stdin)? else {
        return Ok(Some(Vec::new()));
    };
    let bytes = kept.decode().map_err(|e| outlast_core::store::Error::Corrupt {
        what: format!("the kept standard input of {}: {e}", view.run.id),
    })?;
    Ok(Some(bytes.to_vec()))
}
