//! Commands over a server (`--server`): which of them it carries, and how it is reached.

use std::{ffi::OsStr, path::Path, sync::Arc};

use outlast_core::store::Store;
use outlast_server::{
    door::{ApiTokens, Key, Network},
    remote::{Address, Remote},
};

use crate::{
    program::{
        context::Context,
        error::{CliError, InputError, Result},
    },
    settings::{
        keys::{Readers, read_private},
        surroundings::Surroundings,
    },
};

/// Variable that holds the server's API token, and the one that names a file with it. Neither is a flag: command lines
/// are seen by every process of the machine.
const TOKEN: &str = "OUTLAST_API_TOKEN";
const TOKEN_FILE: &str = "OUTLAST_API_TOKEN_FILE";

/// Returns the network that the person's variables describe. Errors: a proxy that cannot be used.
pub fn network(around: &Surroundings) -> Result<Network> {
    Network::of(&|name| around.var(name).map(OsStr::to_owned)).map_err(|e| {
        CliError::usage(e.to_string(), Some("set it to http://HOST:PORT, or unset it for this command"))
    })
}

/// Server that a command was given, with the token for it.
#[derive(Clone, Debug)]
pub struct Server {
    pub address: Address,
    token: Option<Key>,
}

impl Server {
    /// Reads the address, and the token from the variables. Errors: `usage`; `bad_api_token_file`.
    pub fn read(address: &str, around: &Surroundings) -> Result<Server> {
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
    /// The server has no route that does this, and the command is typed on the server's machine.
    NoRoute(&'static str),
    /// The server has no route for what the command reads or changes; the text names what is missing.
    Missing(&'static str),
}

/// Refuses a command that does not work with a server.
pub fn check(verb: &str, over: Over, server: &str) -> Result {
    let message = |why: &str| format!("`outlast {verb}` does not work over a server: {why}");
    let usage = |message: String, hint: &str| Err(CliError::usage(message, Some(hint)));
    let why = match over {
        Over::Server => return Ok(()),
        Over::ThisMachine => return usage(message("it is about this machine"), "leave --server out"),
        Over::NoRoute(what) => format!("no route {what}; type it on its machine"),
        Over::Missing(why) => why.to_owned(),
    };
    let hint = format!("for the store of this machine: --server '' (now it is {server})");
    usage(message(&why), &hint)
}

impl Context {
    /// Returns the store that a command looks at: the server's where one is named, else the one of this machine.
    ///
    /// Errors: `server_unreachable`, `server_denied`, `server_differs`; those of [`Context::open`].
    pub fn reach(&self) -> Result<Arc<dyn Store>> {
        match &self.server {
            None => self.open(false, Default::default()),
            Some(server) => {
                let network = network(&self.around)?;
                let reached = Remote::reach(server.address.clone(), server.token.as_ref(), &network)?;
                Ok(Arc::new(reached))
            }
        }
    }
}

/// Reads the one API token of a file, as a client shows it. Errors: those of [`read_tokens`]; several tokens.
fn read_token(path: &Path) -> Result<String> {
    let several = || InputError::ApiToken { path: path.to_owned(), why: "wanted one token in it".into() };
    Ok(read_tokens(path)?.only().ok_or_else(several)?.to_owned())
}

/// Reads the API tokens of a file: one in each line, with its bearer's name before it or without. Errors: a token of fewer
/// than 16 characters, a line that is none; those of [`read_private`].
pub fn read_tokens(path: &Path) -> Result<ApiTokens> {
    let bad = |why: String| InputError::ApiToken { path: path.to_owned(), why };
    let text = read_private(path, Readers::OwnGroup)?;
    let text = text.ok_or_else(|| bad("there is no such file".into()))?;
    Ok(ApiTokens::parse(&text).map_err(|e| bad(e.to_string()))?)
}
