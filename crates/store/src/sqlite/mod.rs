//! SQLite store: one writer thread, WAL, group commit, a few readers. Several processes may share a file.

mod apply;
mod connect;
mod file;
mod load;
mod log;
pub(crate) mod payloads;
mod pending;
mod read;
mod rows;
pub(crate) mod schema;
mod writer;

use std::{
    path::Path,
    sync::{Arc, Mutex, PoisonError},
};

use outlast_core::{
    engine::Op,
    store::{Durability, Error, Ticket},
    words::{Clock, clock::random},
};
use rusqlite::Connection;

use crate::{
    Options,
    ballast::Ballast,
    gate,
    group::{Hands, Writer},
    migration::FORMAT,
};
use file::StoreFile;

pub use connect::{MIN_SQLITE, sqlite_version};
#[cfg(fuzzing)]
pub use log::Frames;
pub use log::{KeptPart, Repaired, SyncMode, repair};

/// A store in one SQLite file.
pub struct SqliteStore {
    clock: Arc<dyn Clock>,
    writer: Writer,
    /// Idle read connections. A new one is opened when all are busy.
    readers: Mutex<Vec<Connection>>,
    file: Arc<StoreFile>,
}

impl SqliteStore {
    /// Opens the file, or creates it (mode 0600, in a directory of mode 0700). O(1) in the size of the store.
    ///
    /// Errors: `Open` (place, permissions, a network file system), `Newer`, `Older`, `Corrupt`, `Shorter`, `OpenAtFork`.
    pub fn open(path: &Path, options: Options) -> Result<SqliteStore, Error> {
        let place = path.display().to_string();
        let inside = gate::enter();
        let (file, mut conn) = connect::writer(path, options.create)?;
        let entropy = options.entropy.clone();
        let format = schema::make(&mut conn, &place, || {
            let secret: [u8; 32] = random(entropy.as_ref());
            vec![("token_key_1".into(), secret.to_vec())]
        })?;
        if format != FORMAT {
            schema::migrate(&mut conn, path, options.clock.now())?;
        }
        file.opened()?;
        let file = Arc::new(file);
        drop(inside);
        let (clock, ballast) = (options.clock.clone(), Ballast::make(&log::place_of(&conn)));
        let backend = writer::SqliteWriter::new(conn, file.clone(), clock, options.durability, ballast);
        let writer = Writer::start(backend)
            .map_err(|e| Error::Open { place, why: format!("cannot start the writer thread: {e}") })?;
        Ok(SqliteStore { clock: options.clock, writer, readers: Mutex::default(), file })
    }

    /// Runs `read` on an idle read connection. Errors: also `Vanished`, `OpenAtFork`.
    fn with_reader<T>(&self, read: impl FnOnce(&Connection) -> Result<T, Error>) -> Result<T, Error> {
        self.file.check()?;
        let _inside = gate::enter();
        let idle = self.readers.lock().unwrap_or_else(PoisonError::into_inner).pop();
        let conn = match idle {
            Some(conn) => conn,
            None => {
                let conn = connect::reader(self.file.path())?;
                // Opened by its name, so it may be another file by now.
                self.file.check()?;
                conn
            }
        };
        let out = read(&conn);
        let mut idle = self.readers.lock().unwrap_or_else(PoisonError::into_inner);
        if idle.len() < 4 {
            idle.push(conn);
        }
        out
    }

    fn queue(&self, op: Op, durability: Durability, hands: Hands) -> Ticket {
        match self.file.refuse_forked() {
            Ok(()) => self.writer.submit(op, durability, hands),
            Err(e) => Ticket::ready(Err(e)),
        }
    }
}

impl Drop for SqliteStore {
    fn drop(&mut self) {
        let Ok(readers) = self.readers.get_mut() else { return };
        let readers = std::mem::take(readers);
        if self.file.is_forked() {
            // SQLite's connections cannot be carried across a fork, not even to be closed.
            return readers.into_iter().for_each(std::mem::forget);
        }
        let _inside = gate::enter();
        drop(readers);
    }
}

/// Maps an SQLite error to the store's error.
fn failure(e: rusqlite::Error) -> Error {
    use rusqlite::{Error as E, ErrorCode as C};
    match &e {
        E::SqliteFailure(f, _) => match f.code {
            C::DiskFull => Error::Full { why: e.to_string() },
            C::NotADatabase | C::DatabaseCorrupt => Error::Corrupt { what: e.to_string() },
            C::DatabaseBusy | C::DatabaseLocked => {
                Error::Unavailable { why: "another process holds the store's lock for too long".into() }
            }
            _ => Error::Io { why: e.to_string() },
        },
        // A value of the wrong type, or a missing row: not data that Outlast wrote.
        E::FromSqlConversionFailure(..) | E::InvalidColumnType(..) | E::IntegralValueOutOfRange(..) => {
            Error::Corrupt { what: e.to_string() }
        }
        _ => Error::Io { why: e.to_string() },
    }
}
