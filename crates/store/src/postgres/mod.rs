//! PostgreSQL: several servers on one store, one writer each, one after the other.
//!
//! Everything lives in the schema `outlast` of the database, always named in full: nothing depends
//! on a `search_path`. No logic is kept in the database.

mod apply;
mod connect;
mod load;
mod read;
mod readers;
mod rows;
mod schema;
mod state;
mod statement;
mod time;
mod writer;

use std::sync::Arc;

use outlast_core::{
    store::Error,
    words::clock::{Clock, random},
};
use tokio_postgres::Client;

use crate::{Options, group::Writer};
use connect::Address;
use readers::Readers;
use time::Time;

/// A store in a PostgreSQL database.
pub struct PostgresStore {
    address: Address,
    readers: Readers,
    time: Time,
    writer: Writer,
}

impl PostgresStore {
    /// Opens the store of the database at `url`, or makes it there. O(1) in what it holds.
    ///
    /// The clock is the database's. May be called within a tokio runtime; blocks for a bounded time.
    /// Errors: `Open` (the URL, the way there, the server's version or encoding, no store), `Newer`, `Older`,
    /// `Corrupt`. None of them holds the URL's password.
    pub fn open(url: &str, options: Options) -> Result<PostgresStore, Error> {
        PostgresStore::open_on(url, options, Time(None))
    }

    /// Opens the store as [`PostgresStore::open`] does, under the caller's clock instead of the database's.
    ///
    /// For tests: servers whose clocks differ would disagree about what is over.
    pub fn open_under(clock: Arc<dyn Clock>, url: &str, options: Options) -> Result<PostgresStore, Error> {
        PostgresStore::open_on(url, options, Time(Some(clock)))
    }

    fn open_on(url: &str, options: Options, time: Time) -> Result<PostgresStore, Error> {
        let address = Address::parse(url)?;
        let open_error = |why: String| Error::Open { place: address.place().into(), why };
        let readers = Readers::start(address.clone())
            .map_err(|e| open_error(format!("cannot start the readers' thread: {e}")))?;
        let secret: [u8; 32] = random(options.entropy.as_ref());
        let place = address.place().to_owned();
        let migrated = readers.run(async move |c: &Client| {
            let meta = vec![("token_key_1".into(), secret.to_vec())];
            schema::make(c, &place, options.create, meta).await
        });
        migrated.map_err(|e| match e {
            // Before there is a store, what keeps it from being opened is no refusal of work.
            Error::Unavailable { why } | Error::Io { why } => open_error(why),
            e => e,
        })?;
        let backend = writer::PostgresWriter::new(address.clone(), options.durability, time.clone());
        let writer =
            Writer::start(backend).map_err(|e| open_error(format!("cannot start the writer thread: {e}")))?;
        Ok(PostgresStore { address, readers, time, writer })
    }
}
