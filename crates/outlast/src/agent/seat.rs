//! `outlast agent -- CMD`: an agent that a script of a run starts, with a session of its own.
//!
//! It is known by its directory and its words, and by how many of the same its script has begun. The restarted
//! script's first one goes on with the first that was begun and not finished; those that finished are not
//! repeated for it: it begins a new one then. A script that must not do a finished turn again makes it a step.

use std::{collections::BTreeMap, ffi::OsString};

use outlast_core::{
    engine::step::tool::Tool,
    store::{Ask as _, Durability},
    words::digest::Digest,
};

use super::{
    Choice,
    conduct::{Conduct, Launch, Place},
    inside::Inside,
    truth::{self, Outcome},
};
use crate::{
    cli::AgentArgs,
    program::{
        context::Context,
        error::{CliError, InsideError, RunError},
        exit_code,
        say::say,
    },
};
use outlast_process::{
    exit::Exit,
    signals::Signals,
    spawn::{Command, Limits, Output, Spawner, Stdin},
};

/// More of the same in one run is a script that never comes to an end.
const MOST: u32 = 100_000;

/// Runs the agent to its end. Returns its exit code.
pub fn agent(args: AgentArgs, context: Context) -> Result<u8, CliError> {
    let Some(inside) = Inside::of(&context)? else {
        return Err(InsideError::NotInARun.into());
    };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(Seat { args, context, inside }.run())
}

struct Seat {
    args: AgentArgs,
    context: Context,
    inside: Inside,
}

impl Seat {
    async fn run(self) -> Result<u8, CliError> {
        let (store, actor) = (self.inside.store.as_ref(), self.inside.actor);
        let directory = self.context.around.directory();
        let (name, seq) = self.begin().await?;
        let place = Place { name: Some(name), argv: &self.args.command, directory };
        let conduct =
            Conduct::of(&self.inside.view, &Choice::read(&self.args.agent), place, None, &self.context)?;
        let mut env: BTreeMap<OsString, OsString> = self.context.around.variables().collect();
        let (mut conduct, launch) = match conduct {
            Some(mut conduct) => {
                let launch = conduct.launch(store, actor, &mut env, &[], &self.context).await?;
                (Some(conduct), launch)
            }
            None => {
                say(&format!(
                    "{} is no agent that is known: it is started as it is",
                    self.args.command.join(" ")
                ));
                (None, Launch { argv: self.args.command.clone(), ..Launch::default() })
            }
        };
        let exit = self.drive(launch, env).await?;
        if let Some(conduct) = &mut conduct {
            // What is left of it belongs to the run, whose supervisor ends it.
            conduct.ended(store, actor, exit, &[], true).await?;
        }
        // Any other end is gone on with: a death, a limit, an error of the provider.
        if exit == Exit::code(0) {
            let outcome = Outcome::Finished { code: Some(0) };
            store.ask(truth::end(actor, seq, &outcome), Durability::Synced).await?;
        }
        Ok(u8::try_from(exit.shell_code()).unwrap_or(exit_code::FAILED))
    }

    /// Takes the first place of its kind that is new, or that an attempt before has left unfinished.
    async fn begin(&self) -> Result<(String, outlast_core::words::id::Seq), CliError> {
        let store = self.inside.store.as_ref();
        let mut text = self.context.around.directory().to_string_lossy().into_owned();
        for word in &self.args.command {
            text.push('\0');
            text.push_str(word);
        }
        let kind = &Digest::of(text.as_bytes()).to_string()[..16];
        for n in 0..MOST {
            let name = format!("{kind}.{n}");
            let begin = truth::begin(
                self.inside.actor,
                &format!("agent:{name}"),
                "agent",
                &self.args.command.join(" "),
            );
            match store.ask(begin, Durability::Synced).await? {
                Tool::Begun { seq } | Tool::Again { seq } => return Ok((name, seq)),
                Tool::Taken { .. } | Tool::Ended { .. } => {}
            }
        }
        Err(RunError::TooManyAgents { count: MOST }.into())
    }

    async fn drive(&self, launch: Launch, env: BTreeMap<OsString, OsString>) -> Result<Exit, CliError> {
        let spawner = Spawner::start()?;
        let signals = Signals::install()?;
        let stdin = if launch.resumes && launch.headless { Stdin::Null } else { Stdin::Inherit };
        let command = Command {
            argv: launch.argv.iter().map(OsString::from).collect(),
            cwd: self.context.around.directory().to_owned(),
            umask: crate::supervisor::current_umask()?,
            env,
            stdin,
            stdout: Output::Inherit,
            stderr: Output::Inherit,
            terminal: None,
            limits: Limits::default(),
        };
        let child = spawner.spawn(command).map_err(RunError::NotStarted)?;
        loop {
            tokio::select! {
                exit = child.exited() => return Ok(exit?),
                came = signals.next() => {
                    // Its own end follows, and tells how it took it.
                    for signal in came? {
                        if signal != rustix::process::Signal::CHILD && child.leads_own_group() {
                            child.signal(signal)?;
                        }
                    }
                }
            }
        }
    }
}
