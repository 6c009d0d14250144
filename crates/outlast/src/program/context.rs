//! Context that every command works with.

use std::{
    ffi::OsString, fs::DirBuilder, io::IsTerminal as _, os::unix::fs::DirBuilderExt as _, path::Path,
    sync::Arc, time::Duration,
};

use outlast_core::{
    store::{self, Store},
    words::{Clock, Entropy},
};
use outlast_store::{Options, STORE_WAIT};

use crate::{
    program::{
        error::{CliError, InputError, InsideError, Result},
        host::{OsEntropy, SystemClock},
        jsonl,
        server::Server,
        told,
    },
    render::look::Look,
    settings::{
        env_file,
        keys::Keys,
        store_address::{Durability, StoreAddress},
        surroundings::Surroundings,
    },
};

/// Context of one command: environment, store and output.
#[derive(Clone)]
pub struct Context {
    pub around: Surroundings,
    /// Command line that this process was started with, program first; empty if nothing was typed.
    pub typed: Arc<[OsString]>,
    pub place: StoreAddress,
    /// Server whose store the command looks at, in place of `place`.
    pub server: Option<Server>,
    /// Look of standard output: colours, and whether it is JSON.
    pub look: Look,
    /// Whether standard output is a terminal.
    pub is_on_terminal: bool,
    /// Longest time for which operations wait for a database that is away.
    pub store_wait: Duration,
    pub clock: Arc<dyn Clock>,
    pub entropy: Arc<dyn Entropy>,
}

impl Context {
    /// Builds the context. Errors: an address that names no store, or no server.
    pub fn new(
        store: Option<&str>,
        server: Option<&str>,
        look: Look,
        around: Surroundings,
    ) -> Result<Context> {
        let server = server.filter(|address| !address.is_empty());
        Ok(Context {
            place: StoreAddress::decide(store, &around)?,
            server: server.map(|address| Server::read(address, &around)).transpose()?,
            look,
            is_on_terminal: std::io::stdout().is_terminal(),
            around,
            typed: Arc::default(),
            store_wait: STORE_WAIT,
            clock: Arc::new(SystemClock::new()),
            entropy: Arc::new(OsEntropy),
        })
    }

    /// Returns the same context with another `--store-wait`, in milliseconds.
    pub fn waiting(self, store_wait_ms: i64) -> Context {
        Context { store_wait: Duration::from_millis(u64::try_from(store_wait_ms).unwrap_or(0)), ..self }
    }

    /// Returns the same context with the variables of a file added in front of its own; unchanged without a file.
    /// Errors: `EnvFile`.
    pub fn with_variables(self, file: Option<&Path>) -> Result<Context> {
        let Some(file) = file else { return Ok(self) };
        let file = self.around.directory().join(file);
        let variables = env_file::read(&file).map_err(InputError::from)?;
        Ok(Context { around: self.around.with(variables), ..self })
    }

    /// Returns the same context with the store that stands beside a JSONL file of results and holds the
    /// record of its jobs.
    pub fn beside(&self, results: &Path) -> Context {
        Context { place: StoreAddress::File(jsonl::record(results)), ..self.clone() }
    }

    /// Opens the store; `create` makes it if it does not exist.
    ///
    /// Errors: `Confined` in a process from which the store is hidden; `NoStore` if it does not exist and `create` is
    /// false; `Store`.
    pub fn open(&self, create: bool, durability: Durability) -> Result<Arc<dyn Store>> {
        let ours = self.around.var(told::STORE).and_then(|store| store.to_str());
        if self.around.is_set(told::CONFINED) && ours == self.place.without_secret().as_deref() {
            return Err(InsideError::Confined.into());
        }
        if !create && self.has_no_file() {
            return Err(CliError::NoStore { place: self.place.to_string() });
        }
        if create {
            self.make_own_directory()?;
        }
        let (clock, entropy) = (self.clock.clone(), self.entropy.clone());
        let options = Options { durability, clock, entropy, create, store_wait: self.store_wait };
        match outlast_store::open(&self.place.address(), options) {
            // SQLite's message about a damaged file does not name the file.
            Err(store::Error::Corrupt { what }) if !what.contains(&self.place.to_string()) => {
                Err(store::Error::Corrupt { what: format!("{}: {what}", self.place) }.into())
            }
            opened => Ok(self.stopping(opened?)),
        }
    }

    /// Creates the directory of the default store. Any other directory must exist: a missing one is often a
    /// wrong name.
    pub fn make_own_directory(&self) -> Result {
        let own = self.around.state_directory();
        match &self.place {
            StoreAddress::File(path)
                if path.parent().is_some_and(|parent| own.as_deref() == Some(parent)) =>
            {
                let made =
                    DirBuilder::new().recursive(true).mode(0o700).create(path.parent().unwrap_or(path));
                let why = |e: std::io::Error| format!("its directory cannot be made: {e}");
                Ok(made.map_err(|e| store::Error::Open { place: self.place.to_string(), why: why(e) })?)
            }
            _ => Ok(()),
        }
    }

    /// Returns whether the store is to be a file, and that file does not exist yet.
    pub fn has_no_file(&self) -> bool {
        // A file that cannot be examined counts as present: opening it reports what is wrong.
        matches!(&self.place, StoreAddress::File(path) if matches!(path.try_exists(), Ok(false)))
    }

    /// Loads the providers' keys. Errors: a file of keys that cannot be read, or that others can read.
    pub fn keys(&self) -> Result<Keys> {
        Ok(Keys::load(&self.around)?)
    }
}
