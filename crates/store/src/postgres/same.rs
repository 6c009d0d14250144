//! Whether the store in the database is still the one that was opened.
//!
//! A database can be dropped, renamed or restored under a server, and another store can come in its place. Recorded
//! calls would be paid again there. So each new connection compares the store's own key with the one that was found at
//! the opening, and a store whose tables are gone is told as vanished.

use std::sync::{Mutex, OnceLock, PoisonError};

use super::connect::ConnectError;
use crate::postgres::prelude::*;

/// Query for the hash of the key that each store makes when it is created.
const ID: &str = "SELECT sha256(value)::text FROM outlast.meta WHERE key = 'token_key_1'";

/// Identity of the store that was opened, and whether that store is known to be gone.
pub struct Same {
    /// Address without its password.
    place: String,
    id: OnceLock<String>,
    gone: Mutex<Option<Error>>,
}

impl Same {
    pub fn new(place: &str) -> Same {
        Same { place: place.to_owned(), id: OnceLock::new(), gone: Mutex::new(None) }
    }

    /// Compares the store that a new connection found with the one that was opened. The first store that is
    /// found counts as the opened one. Errors: `Vanished` if it is another store.
    pub async fn compare(&self, client: &Link) -> Result<(), Error> {
        let found = client.word(ID).await.map_err(failure).map_err(|e| self.look(e))?.unwrap_or_default();
        if *self.id.get_or_init(|| found.clone()) != found {
            return Err(self.is_gone("its database"));
        }
        *self.gone() = None;
        Ok(())
    }

    /// Returns whether the opened store is known, so that later connections are compared with it.
    pub fn is_known(&self) -> bool {
        self.id.get().is_some()
    }

    /// Checks that the store was still there when it was last used. Errors: `Vanished`.
    pub fn check(&self) -> Result<(), Error> {
        self.gone().clone().map_or(Ok(()), Err)
    }

    /// Returns `error`, and notes that the store is gone if it is `Vanished`. While the store is being opened,
    /// `Vanished` becomes `Corrupt`.
    pub fn look(&self, error: Error) -> Error {
        match error {
            Error::Vanished { file, .. } if self.is_known() => self.is_gone(&file),
            Error::Vanished { file, .. } => Error::Corrupt { what: format!("{file} is not complete") },
            error => error,
        }
    }

    /// Returns `Vanished` if the connection failed because the opened database is gone, else `otherwise`.
    pub fn unreachable(&self, error: &ConnectError, otherwise: Error) -> Error {
        if error.is_gone && self.is_known() { self.is_gone("its database") } else { otherwise }
    }

    fn is_gone(&self, what: &str) -> Error {
        let error = Error::Vanished { place: self.place.clone(), file: what.to_owned() };
        *self.gone() = Some(error.clone());
        error
    }

    fn gone(&self) -> std::sync::MutexGuard<'_, Option<Error>> {
        self.gone.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
