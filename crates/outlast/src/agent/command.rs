//! `outlast agent -- CMD`: an agent with a session of its own, started by a script of a run.
//!
//! An agent is identified by its directory below the run's, its words, and a count of equal starts in its script. A restarted
//! script's first start resumes the first equal agent that was begun and not finished. Finished agents are
//! not repeated: if all have finished, a new one begins. A script that must not repeat a finished turn makes
//! it a step.

use std::{collections::BTreeMap, ffi::OsString};

use outlast_core::{
    engine::Tool,
    store::{Ask as _, Durability},
    words::Digest,
};

use outlast_server::dialect::conversation::ToolCall;

use super::{
    Choice,
    conduct::{AgentCommand, Conduct, Launch},
    inside::Inside,
    open_calls::{AGENT, SearchScope},
    truth::{self, Outcome},
};
use crate::{
    cli::AgentArgs,
    program::{
        context::Context,
        error::{CliError, InsideError, RunError},
        exit_code, host,
        say::say,
    },
};
use outlast_process::{
    exit::Exit,
    signals::Signals,
    spawn::{Command, Limits, Output, Spawner, Stdin},
};

/// Largest number of equal agents in one run. More come from a script that never ends.
const MOST: u32 = 100_000;

/// Runs the agent of `outlast agent` to its end. Returns its exit code. Errors: the process runs in no run.
pub fn agent(args: AgentArgs, context: Context) -> Result<u8, CliError> {
    let Some(inside) = Inside::of(&context)? else {
        return Err(InsideError::NotInARun.into());
    };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(AgentStart { args, context, inside }.run())
}

struct AgentStart {
    args: AgentArgs,
    context: Context,
    inside: Inside,
}

impl AgentStart {
    async fn run(self) -> Result<u8, CliError> {
        let (store, actor) = (self.inside.store.as_ref(), self.inside.actor);
        let directory = self.context.around.directory();
        let (name, opening) = self.begin().await?;
        let place = AgentCommand { name: Some(name), argv: &self.args.command, directory };
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
            // Remaining processes belong to the run, whose supervisor ends them.
            conduct.ended(store, actor, (exit, &[]), true, None).await?;
        }
        // Any other end is resumed: a death, a limit, an error of the provider.
        if exit == Exit::code(0) {
            let outcome = Outcome::Finished { code: Some(0) };
            store.ask(truth::end(opening, &outcome), Durability::Synced).await?;
        }
        Ok(u8::try_from(exit.shell_code()).unwrap_or(exit_code::FAILED))
    }

    /// Takes the first agent of its kind that is new, or that an earlier attempt left unfinished.
    async fn begin(&self) -> Result<(String, outlast_core::journal::Opening), CliError> {
        let store = self.inside.store.as_ref();
        let (here, command) = (self.context.around.directory(), &self.inside.view.spec.command);
        let below = command.as_ref().and_then(|command| here.strip_prefix(&command.directory).ok());
        let mut text = below.unwrap_or(here).to_string_lossy().into_owned();
        for word in &self.args.command {
            text.push('\0');
            text.push_str(word);
        }
        let kind = &Digest::of(text.as_bytes()).to_string()[..16];
        for n in 0..MOST {
            let name = format!("{kind}.{n}");
            let (id, input) = (format!("{AGENT}{name}"), self.args.command.join(" "));
            let call = ToolCall { id, name: "agent".into(), input };
            let actor = self.inside.actor;
            let of = SearchScope::new(actor.run, actor.attempt, None);
            let begin = truth::begin(actor, &of, &call);
            match store.ask(begin, Durability::Synced).await? {
                Tool::Begun(opening) | Tool::Again(opening) => return Ok((name, opening)),
                Tool::Taken(_) | Tool::Ended { .. } => {}
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
            umask: host::current_umask()?,
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
                    // The agent's own end follows, and shows how it reacted.
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
