//! SQLite (the embedded default) and PostgreSQL behind the one store trait.
#![cfg_attr(test, allow(clippy::unwrap_used))]

mod backend;
mod ballast;
mod format;
mod group;
pub mod postgres;
pub mod process;
mod rows;
pub mod sqlite;
mod tables;

use std::sync::Arc;

use outlast_core::{
    reads::forked::Forked,
    store::{Error, Store},
    words::clock::{Clock, Entropy},
};

pub use format::{FORMAT, OLDEST};

/// What an acknowledged operation survives.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Durability {
    /// Power loss.
    #[default]
    Full,
    /// The death of every process, not of the machine.
    Process,
}

/// How to open a store. Clock and entropy are the caller's.
#[derive(Clone)]
pub struct Options {
    pub durability: Durability,
    /// SQLite's `now`; PostgreSQL has its own.
    pub clock: Arc<dyn Clock>,
    pub entropy: Arc<dyn Entropy>,
    /// Make it if it is not there. Otherwise a missing store is an error.
    pub create: bool,
}

/// Opens the store at `place`: a file's path, or a `postgres://` or `postgresql://` URL.
///
/// Does not depend on how much the store holds. Errors: `Open`, `Newer`, `Older`, `Corrupt`.
pub fn open(place: &str, options: Options) -> Result<Arc<dyn Store>, Error> {
    let store: Arc<dyn Store> = if place.starts_with("postgres://") || place.starts_with("postgresql://") {
        Arc::new(postgres::PostgresStore::open(place, options)?)
    } else {
        Arc::new(sqlite::SqliteStore::open(std::path::Path::new(place), options)?)
    };
    Ok(Arc::new(Forked::new(store)))
}
