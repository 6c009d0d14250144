//! Commands over a server (`--server`): which of them it carries, and how it is reached.

use std::sync::Arc;

use outlast_core::store::Store;
use outlast_server::{
    door::Key,
    remote::{Address, Remote},
};

use crate::{
    cli::Command,
    program::{context::Context, error::CliError},
    serve::{proxy_setup, token::read_token},
    settings::surroundings::Surroundings,
};

/// Variable that holds the server's API token, and the one that names a file with it. Neither is a flag: command lines
/// are seen by every process of the machine.
const TOKEN: &str = "OUTLAST_API_TOKEN";
const TOKEN_FILE: &str = "OUTLAST_API_TOKEN_FILE";

/// Server that a command was given, with the token for it.
#[derive(Clone, Debug)]
pub struct Server {
    pub address: Address,
    token: Option<Key>,
}

impl Server {
    /// Reads the address, and the token from the variables. Errors: `usage`; `bad_api_token_file`.
    pub fn read(address: &str, around: &Surroundings) -> Result<Server, CliError> {
        let address = Address::parse(address).map_err(|e| {
            CliError::usage(
                format!("--server {address:?}: {e}"),
                Some("from afar: ssh -L 7077:127.0.0.1:7077 HOST, and --server http://127.0.0.1:7077"),
            )
        })?;
        let token = match (around.var(TOKEN), around.var(TOKEN_FILE)) {
            (Some(token), _) => Some(token.to_string_lossy().trim().to_owned()),
            (None, Some(file)) => Some(read_token(&around.directory().join(file))?),
            (None, None) => None,
        };
        Ok(Server { address, token: token.map(Key::new) })
    }
}

/// Whether and how a command works with a server in place of a local store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Over {
    /// The command does the same, on the server's store.
    Server,
    /// The command is about this machine. `--server` is refused, and a variable or setting does not concern it.
    ThisMachine,
    /// The server has no route for what the command reads or changes; the text names what is missing.
    Missing(&'static str),
}

/// Returns the relation of a command to a server. A new command does not compile until this match names it.
pub fn over(command: &Command) -> Over {
    use Over::{Missing, ThisMachine};
    match command {
        Command::Ls(_)
        | Command::Show(_)
        | Command::Journal(_)
        | Command::Watch(_)
        | Command::Budget(_)
        | Command::Stop(_)
        | Command::Wake(_)
        | Command::Cancel(_)
        | Command::Approvals(_)
        | Command::Approve(_)
        | Command::Spend(_)
        | Command::Budgets(_)
        | Command::Jobs(_)
        | Command::Inspect(_)
        | Command::Retry(_)
        | Command::Fork(_) => Over::Server,
        Command::Logs(_) => Missing("logs are files of its machine, and no route reads them"),
        Command::Attach(_) => Missing("no route has a run's terminal"),
        Command::Resume(_) => Missing("no route starts a run's supervisor; type it on its machine"),
        Command::Snapshot(_) => Missing("no route names a snapshot; type it on its machine"),
        Command::Resolve(_) => {
            Missing("no route resolves a step or a tool call in doubt; type it on its machine")
        }
        Command::Export(_) => Missing("no route writes a run's results; type it on its machine"),
        Command::Rm(_) | Command::Gc(_) => Missing("no route removes runs; type it on its machine"),
        Command::State(_) => Missing("use the routes below /v1/state, or outlast.Statehouse"),
        Command::Verify(_) | Command::Repair(_) => Missing("no route checks a store"),
        Command::Migrate(_) => Missing("a server opened its store as it began"),
        Command::Notify(_) => Missing("endpoints are in the settings of its machine"),
        Command::Run(_)
        | Command::Agent(_)
        | Command::Hook(_)
        | Command::Confined(_)
        | Command::Mcp(_)
        | Command::Serve(_)
        | Command::Ui(_)
        | Command::Prices(_)
        | Command::Ctx(_)
        | Command::ShellInit(_)
        | Command::ShellLoop(_)
        | Command::Service(_)
        | Command::Doctor(_)
        | Command::Trust(_)
        | Command::Completions(_)
        | Command::Mock(_) => ThisMachine,
    }
}

/// Refuses a command that does not work with a server. `word` is the command's name.
pub fn check(command: &Command, word: &str, server: &str) -> Result<(), CliError> {
    let message = |why: &str| format!("`outlast {word}` does not work over a server: {why}");
    let usage = |message: String, hint: &str| Err(CliError::usage(message, Some(hint)));
    match over(command) {
        Over::Server => Ok(()),
        Over::ThisMachine => usage(message("it is about this machine"), "leave --server out"),
        Over::Missing(why) => {
            let hint = format!("for the store of this machine: --server '' (now it is {server})");
            usage(message(why), &hint)
        }
    }
}

impl Context {
    /// Returns the store that a command looks at: the server's where one is named, else the one of this machine.
    ///
    /// Errors: `server_unreachable`, `server_denied`, `server_differs`; those of [`Context::open`].
    pub fn reach(&self) -> Result<Arc<dyn Store>, CliError> {
        match &self.server {
            None => self.open(false, Default::default()),
            Some(server) => {
                let network = proxy_setup::network(&self.around)?;
                let reached = Remote::reach(server.address.clone(), server.token.as_ref(), &network)?;
                Ok(Arc::new(reached))
            }
        }
    }
}
