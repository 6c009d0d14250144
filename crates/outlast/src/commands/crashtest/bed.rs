//! Bed of a crash test: a private directory with the copies, a store, and the processes that live in it, one life at a time.

use std::{
    fs::{self, DirBuilder, File},
    io,
    net::SocketAddr,
    os::unix::{
        fs::DirBuilderExt as _,
        process::{CommandExt as _, ExitStatusExt as _},
    },
    path::PathBuf,
    process::{Child, Command, Stdio},
    sync::Arc,
    time::{Duration, Instant},
};

use outlast_process::{
    signals::{Signals, die_by},
    wait::poll,
};
use outlast_server::dialect::Upstream;
use rustix::{
    event::{PollFd, PollFlags},
    process::{Pid, PidfdFlags, pidfd_open},
};

use super::super::resolve;
use super::{
    copy,
    death::Below,
    recording::Recording,
    stage::{Scene, Stage},
};
use crate::{
    cli::{
        crashtest::{Death, Kind},
        values::Limit,
    },
    program::{context::Context, error::CliError, exit_code, find, told},
    settings::{
        keys::{self, Keys},
        store_address::StoreAddress,
    },
    supervisor::strays,
};

/// Id of the run in each store.
const RUN: &str = "crashtest";

/// Key that processes get where their recording had one.
const KEY: &str = "sk-crashtest";

/// Option that allows one restart: one death is brought, and the next life has to end well.
const RESTARTS: &str = "--restarts=1";

/// Most bytes of what a run printed that an error shows.
const SHOWN: usize = 2000;

/// Private directory with what a crash test needs. Dropping it kills what lives in it, and removes it.
pub struct Bed {
    root: PathBuf,
    below: Below,
    context: Context,
    command: Vec<String>,
}

/// End of the lives in a fresh copy.
pub struct End {
    /// Exit code of the last process, as a shell gives it; `None` if it was given up.
    pub code: Option<i32>,
    /// Standard output of all lives.
    pub stdout: Vec<u8>,
    /// Messages of Outlast, and standard error of the command.
    pub stderr: String,
}

impl Bed {
    /// Makes the directory, and copies the working directory into it. Errors: the working directory is the home, or has the
    /// private one in it.
    pub fn make(context: &Context, command: &[String], below: Below) -> Result<Bed, CliError> {
        let mut random = [0; 8];
        context.entropy.fill(&mut random);
        let name = format!("outlast-crashtest-{:016x}", u64::from_le_bytes(random));
        let (root, here) = (std::env::temp_dir().join(name), context.around.directory());
        if root.starts_with(here) || context.around.home().is_some_and(|home| home == here) {
            let message = format!("{} is too much to be copied for a crash test", here.display());
            return Err(CliError::usage(
                message,
                Some("type it in the directory of your agent, or set TMPDIR elsewhere"),
            ));
        }
        DirBuilder::new().mode(0o700).create(&root)?;
        let bed = Bed { root, below, context: context.clone(), command: command.to_vec() };
        copy::mirror(here, &bed.path("origin"))?;
        Ok(bed)
    }

    /// Waits for a signal that asks for the end of the test: the processes below this one are killed, the directory is
    /// removed, and this process ends by the signal. Returns only where no signal can be waited for.
    pub fn end_by_signal(&self, signals: Signals) -> impl Future<Output = ()> + Send + use<> {
        let (root, below) = (self.root.clone(), self.below.clone());
        async move {
            let Ok(came) = signals.next().await else { return };
            let _for_good = below.hold();
            // What cannot be removed must not keep this process from its end.
            let _ = below.strike(Kind::Machine, 0);
            let _ = copy::remove(&root);
            let _ = came.into_iter().try_for_each(|signal| die_by(signal.as_raw()));
        }
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.root.join(name)
    }

    /// Directory in which the command works. All lives have the same, as its path may stand in prompts.
    pub fn work(&self) -> PathBuf {
        self.path("work")
    }

    pub fn socket(&self) -> PathBuf {
        self.path("stops")
    }

    fn store(&self) -> PathBuf {
        self.path("state/runs.db")
    }

    /// Ends what is left of the last lives, and makes the copy and the store fresh.
    fn refresh(&self) -> io::Result<()> {
        let _held = self.below.hold();
        self.below.sweep()?;
        copy::remove(&self.path("state"))?;
        DirBuilder::new().mode(0o700).create(self.path("state"))?;
        copy::mirror(&self.path("origin"), &self.work())
    }

    /// Keeps what the clean run left.
    pub fn keep_clean(&self) -> io::Result<()> {
        let _held = self.below.hold();
        copy::mirror(&self.work(), &self.path("clean"))
    }

    /// Runs the command once under `outlast run`, and returns what it asked and was answered. `provider`: a fake one in
    /// place of the real ones.
    ///
    /// Errors: it does not exit with 0; those of [`Recording::of_run`].
    pub fn record(&self, provider: Option<SocketAddr>, usd: Option<Limit>) -> Result<Recording, CliError> {
        self.refresh()?;
        let mut command = self.outlast("run", provider)?;
        command.args(["--run", RUN, "--record=all", "--restarts=0", "--files=off"]);
        command.args(usd.map(|usd| match usd {
            Limit::None => "--usd=none".to_owned(),
            Limit::At(nano) => format!("--usd={}.{:09}", nano / 1_000_000_000, nano % 1_000_000_000),
        }));
        let keys = if provider.is_some() { Keys::default() } else { self.context.keys()? };
        let named = Upstream::ALL.into_iter().filter(|u| provider.is_some() || keys.of(*u).is_some());
        let names: Vec<String> = named.map(|upstream| upstream.name().to_owned()).collect();
        if provider.is_some() {
            give_keys(&mut command, &names);
        }
        let mut child = {
            let _held = self.below.hold();
            command.arg("--").args(&self.command).spawn()?
        };
        let code = shells(child.wait()?);
        drop(self.below.hold());
        if code != i32::from(exit_code::OK) {
            return Err(self.not_testable("recorded", Some(code)));
        }
        let store = self.private().open(false, Default::default())?;
        Recording::of_run(store.as_ref(), &find::run(store.as_ref(), RUN)?, names)
    }

    /// Returns whether a step or tool call of the last lives may have been done, and is not done again by itself.
    pub fn is_in_doubt(&self) -> Result<bool, CliError> {
        let context = self.private();
        let store = context.open(false, Default::default())?;
        strays::look_after(store.as_ref(), &context);
        let view = find::run(store.as_ref(), RUN)?;
        Ok(!resolve::all_in_doubt(store.as_ref(), view.run.no)?.is_empty())
    }

    /// Returns the context of the private store.
    fn private(&self) -> Context {
        Context { place: StoreAddress::File(self.store()), ..self.context.clone() }
    }

    /// Lives in a fresh copy until the command has ended: `outlast run`, and `outlast resume` after a death of it. Bare, the
    /// command alone, begun again after its death.
    pub fn live(
        &self,
        stage: &Arc<Stage>,
        provider: SocketAddr,
        death: Option<Death>,
        is_bare: bool,
        longest: Duration,
    ) -> Result<End, CliError> {
        self.refresh()?;
        *stage.scene() = Scene::with(death);
        let is_started_again =
            is_bare || death.is_some_and(|death| matches!(death.kind, Kind::Supervisor | Kind::Machine));
        let keys = &stage.recording().keys.clone();
        let mut code = self.life(stage, self.first(provider, is_bare, keys)?, longest)?;
        if stage.scene().may_go_on() && is_started_again && code.is_some() {
            self.below.sweep()?;
            let again = match is_bare {
                true => self.first(provider, true, keys)?,
                false => {
                    let mut command = self.outlast("resume", Some(provider))?;
                    give_keys(&mut command, keys);
                    command.arg(RUN);
                    command
                }
            };
            code = self.life(stage, again, longest)?;
        }
        self.below.sweep()?;
        let stderr = String::from_utf8_lossy(&fs::read(self.path("state/stderr"))?).into_owned();
        Ok(End { code, stdout: fs::read(self.path("state/stdout"))?, stderr })
    }

    /// Returns the command of the first life.
    fn first(&self, provider: SocketAddr, is_bare: bool, keys: &[String]) -> Result<Command, CliError> {
        let mut command = match is_bare {
            true => {
                let mut command = self.in_place(Command::new(&self.command[0]))?;
                for upstream in Upstream::ALL {
                    command.env(upstream.row().url_variable, url(provider, upstream));
                }
                command.args(&self.command[1..]);
                command
            }
            false => {
                let mut command = self.outlast("run", Some(provider))?;
                command.env(told::CRASHTEST, self.socket());
                command.args(["--run", RUN, "--usd=none", "--record=all", "--files=off"]);
                command.args([RESTARTS, "--env", told::CRASHTEST]);
                command.arg("--").args(&self.command);
                command
            }
        };
        give_keys(&mut command, keys);
        Ok(command)
    }

    /// Starts a process and waits for its end; `None`: it took longer than `longest`, and was killed with all below it.
    fn life(&self, stage: &Stage, mut command: Command, longest: Duration) -> Result<Option<i32>, CliError> {
        let mut child = {
            // Its first boundary waits for the scene to know it.
            let (_held, mut scene) = (self.below.hold(), stage.scene());
            let child = command.spawn()?;
            scene.top = child.id();
            child
        };
        if !ends_within(&child, longest)? {
            self.below.strike(Kind::Machine, 0)?;
            child.wait()?;
            return Ok(None);
        }
        let status = child.wait()?;
        drop(self.below.hold());
        match stage.scene().failed.take() {
            Some(error) => Err(error.into()),
            None => Ok(Some(shells(status))),
        }
    }

    /// Returns `outlast VERB` with the private store; with the provider's address in place of all others.
    fn outlast(&self, verb: &str, provider: Option<SocketAddr>) -> Result<Command, CliError> {
        let mut command = self.in_place(Command::new(crate::program()?))?;
        command.arg(verb).env(told::CRASHTEST, self.socket());
        for upstream in provider.iter().flat_map(|_| Upstream::ALL) {
            let base = provider.map(|provider| url(provider, upstream)).unwrap_or_default();
            command.arg(format!("--{}-base-url={base}", upstream.name()));
        }
        command.arg("--pty=never");
        Ok(command)
    }

    /// Returns the command with its directory, and its output in files.
    fn in_place(&self, mut command: Command) -> Result<Command, CliError> {
        let open = |name: &str| File::options().append(true).create(true).open(self.path("state").join(name));
        command.current_dir(self.work()).env("PWD", self.work()).env(told::STORE, self.store());
        command.stdin(Stdio::null()).stdout(open("stdout")?).stderr(open("stderr")?);
        // Ctrl-C is this command's: it ends what is below it itself (`end_by_signal`).
        command.process_group(0);
        Ok(command)
    }

    /// Returns the error for a run without a death that did not end with 0, with what it said last.
    pub fn not_testable(&self, how: &str, code: Option<i32>) -> CliError {
        let said = fs::read_to_string(self.path("state/stderr")).unwrap_or_default();
        let mut from = said.len().saturating_sub(SHOWN);
        while !said.is_char_boundary(from) {
            from += 1;
        }
        let code =
            code.map_or_else(|| "did not end in time".to_owned(), |code| format!("exited with {code}"));
        let hint = "a crash test wants a command that exits with 0, in a copy of this directory";
        CliError::usage(
            format!("the command {code} when it was {how}:\n{}", said[from..].trim_end()),
            Some(hint),
        )
    }
}

impl Drop for Bed {
    fn drop(&mut self) {
        // Nobody can be told, and a temporary directory is cleaned by others too.
        let _ = self.below.sweep();
        let _ = copy::remove(&self.root);
    }
}

fn url(provider: SocketAddr, upstream: Upstream) -> String {
    format!("http://{provider}{}", upstream.row().url_path)
}

/// Gives a process keys of the providers that are named, which no provider takes.
fn give_keys(command: &mut Command, providers: &[String]) {
    for upstream in Upstream::ALL.into_iter().filter(|u| providers.iter().any(|name| name == u.name())) {
        command.env(keys::variable(upstream), KEY);
    }
}

/// Returns an exit code as a shell gives it.
fn shells(status: std::process::ExitStatus) -> i32 {
    status.code().unwrap_or_else(|| 128 + status.signal().unwrap_or_default())
}

/// Waits for the end of a child, without reaping it; false: it goes on after `longest`.
fn ends_within(child: &Child, longest: Duration) -> io::Result<bool> {
    let end = pidfd_open(Pid::from_child(child), PidfdFlags::empty())?;
    let until = Instant::now().checked_add(longest);
    loop {
        let left = until.map(|until| until.saturating_duration_since(Instant::now()));
        if poll(&mut [PollFd::new(&end, PollFlags::IN)], left)? > 0 {
            return Ok(true);
        }
        if left == Some(Duration::ZERO) {
            return Ok(false);
        }
    }
}
