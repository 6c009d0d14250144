//! What every command works with.

use std::sync::Arc;

use outlast_core::{
    clock::{Clock, Entropy},
    store::Store,
};

use crate::{
    cli::Globals,
    error::CliError,
    host::{OsEntropy, SystemClock},
    keys::Keys,
    place::{self, Durability, Opening, Place},
    render::look::Look,
    surroundings::Surroundings,
};

/// One command's context: where it runs, where runs are kept, and how it prints.
#[derive(Clone)]
pub struct Context {
    pub around: Surroundings,
    pub place: Place,
    /// Of standard output.
    pub look: Look,
    pub clock: Arc<dyn Clock>,
    pub entropy: Arc<dyn Entropy>,
}

impl Context {
    /// Errors: an address that names no store.
    pub fn new(globals: &Globals, around: Surroundings) -> Result<Context, CliError> {
        Ok(Context {
            place: Place::decide(globals.store.as_deref(), &around)?,
            look: Look::of_stdout(globals, &around),
            around,
            clock: Arc::new(SystemClock::new()),
            entropy: Arc::new(OsEntropy),
        })
    }

    /// Opens the store; `create` makes it when it is not there.
    pub fn open(&self, create: bool, durability: Durability) -> Result<Arc<dyn Store>, CliError> {
        let how = Opening { durability, clock: self.clock.clone(), entropy: self.entropy.clone(), create };
        Ok(place::open_store(&self.place, &how)?)
    }

    /// The providers' keys. Errors: a file of keys that is not private, or not readable.
    pub fn keys(&self) -> Result<Keys, CliError> {
        Ok(Keys::load(&self.around)?)
    }
}
