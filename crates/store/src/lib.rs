//! Storage backends: SQLite (the embedded default) and PostgreSQL, both behind the `Store` trait.
//!
//! Unsafe code: the callbacks of SQLite's file interface (`sqlite/log`), and what a fork must not copy (`gate`, `process`).
#![cfg_attr(test, allow(clippy::unwrap_used))]
// What both databases share is not all of SQLite's.
#![cfg_attr(not(feature = "postgres"), allow(dead_code))]

pub mod backend;
mod ballast;
mod gate;
pub mod group;
mod load;
mod migration;
#[cfg(feature = "postgres")]
pub mod postgres;
pub mod process;
mod query;
mod rows;
pub mod sqlite;
mod state;
mod tables;

use std::{sync::Arc, time::Duration};

use outlast_core::{
    reads::forked::Forked,
    store::{Error, Store},
    words::{Clock, Entropy},
};

pub use migration::{FORMAT, OLDEST};

/// Failures after which an acknowledged operation is still in the store.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Durability {
    /// Power loss of the machine.
    #[default]
    Full,
    /// Death of every process, but not a loss of power.
    Process,
}

/// Options for opening a store. The caller provides the clock and the source of entropy.
#[derive(Clone)]
pub struct Options {
    pub durability: Durability,
    /// Source of `now` for SQLite. PostgreSQL uses the database's clock.
    pub clock: Arc<dyn Clock>,
    pub entropy: Arc<dyn Entropy>,
    /// Creates the store if it is missing. Otherwise a missing store is an error.
    pub create: bool,
    /// Longest time for which operations wait for a database that went away, and for the outcome of a cut commit.
    pub store_wait: Duration,
}

/// Default of `store_wait`: longer than a database server needs to restart, or to notice that this client is gone.
pub const STORE_WAIT: Duration = Duration::from_secs(60);

/// Opens the store at `place`: a file path, or a `postgres://` or `postgresql://` URL.
///
/// The time taken does not depend on how much the store holds. Errors: `Open`, `Newer`, `Older`, `Corrupt`, and
/// `OpenAtFork` for a file that an ancestor had open when it forked.
pub fn open(place: &str, options: Options) -> Result<Arc<dyn Store>, Error> {
    let store: Arc<dyn Store> = if place.starts_with("postgres://") || place.starts_with("postgresql://") {
        open_postgres(place, options)?
    } else {
        Arc::new(sqlite::SqliteStore::open(std::path::Path::new(place), options)?)
    };
    Ok(Arc::new(Forked::new(store)))
}

#[cfg(feature = "postgres")]
fn open_postgres(place: &str, options: Options) -> Result<Arc<dyn Store>, Error> {
    Ok(Arc::new(postgres::PostgresStore::open(place, options)?))
}

#[cfg(not(feature = "postgres"))]
fn open_postgres(place: &str, _: Options) -> Result<Arc<dyn Store>, Error> {
    let why = "this program is a demonstration's, which was built without PostgreSQL: see `make help`";
    Err(Error::Open { place: place.into(), why: why.into() })
}
