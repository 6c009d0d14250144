//! `outlast attach RUN`: connects this terminal to a run that goes on in the background.

use outlast_process::attach::{
    client::{self, End, Who},
    stage,
};

use super::prelude::*;

/// Watch a run's agent on this terminal, and type to it
///
/// The last 64 KiB that it printed are shown first. Ctrl-\ d leaves it, and the run goes on; several can be
/// there at once. Ctrl-C and Ctrl-Z are the agent's. A run whose agent has no terminal of its own can only be
/// watched.
#[derive(Args, Clone, Debug)]
#[command(after_help = "Examples:\n  outlast run -d --name desk -- claude\n  outlast attach desk")]
pub struct AttachArgs {
    /// The run: its id, its name, or the start of its id
    pub run: String,
}

/// Attaches the terminal to a run. Returns the run's exit code if the run ended while attached, `OK` if the person
/// detached, and `INTERRUPTED` if the run's supervisor was lost.
pub fn attach(args: AttachArgs, context: Context) -> Result<u8> {
    let store = context.open(false, Default::default())?;
    strays::look_after(&*store, &context);
    let view = find::run_to(&*store, &args.run, Verb::Attach)?;
    let (id, status) = (called(&view), view.run.status);
    let directory = RunDirectory::of(&context.place, &view.run.id, &context.around)?;
    let socket = stage::connect(directory.path()).map_err(|why| CommandError::NotAttachable {
        run: id.clone(),
        status,
        has_command: view.spec.command.is_some(),
        why,
    })?;
    match client::attend(socket, Who::Watcher)? {
        End::Over(code) => Ok(code),
        End::Lost => {
            say(&format!("the supervisor of {id} has gone; `outlast resume {id}` goes on"));
            Ok(exit_code::INTERRUPTED)
        }
        End::Detached | End::Begun { .. } => {
            say(&format!("detached: {id} goes on"));
            Ok(exit_code::OK)
        }
    }
}
