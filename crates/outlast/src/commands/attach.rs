//! `outlast attach RUN`: connects this terminal to a run that goes on in the background.

use outlast_core::store::Store;

use crate::{
    cli::AttachArgs,
    program::{
        context::Context,
        error::{CliError, CommandError},
        exit_code,
        find::{self, Verb},
        run_directory::RunDirectory,
        say::say,
    },
};
use outlast_process::attach::{
    client::{self, End, Who},
    listen,
};

/// Attaches the terminal to a run. Returns the run's exit code if the run ended while attached, `OK` if the person
/// detached, and `INTERRUPTED` if the run's supervisor was lost.
pub fn attach(store: &dyn Store, context: &Context, args: &AttachArgs) -> Result<u8, CliError> {
    let view = find::run_to(store, &args.run, Verb::Attach)?;
    let (id, status) = (&view.run.id, view.run.status);
    let directory = RunDirectory::of(&context.place, id, &context.around)?;
    let socket = listen::connect(directory.path()).map_err(|why| CommandError::NotAttachable {
        run: id.to_string(),
        status,
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
