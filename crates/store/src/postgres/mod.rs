//! PostgreSQL store: several servers share one store, each with one writer. Groups that share nothing commit side by
//! side (`locks`).
//!
//! All tables are in one schema, usually `outlast`, and always named in full (`schema`). The database holds no
//! logic.

mod acknowledged;
mod address;
mod apply;
mod connect;
mod hints;
mod known;
mod load;
mod locks;
mod lookup;
mod memory;
mod objects;
mod prelude;
mod read;
mod readers;
mod recalled;
mod rows;
mod same;
mod schema;
mod session;
mod statement;
mod time;
mod tls;
mod write;
mod writer;

use std::sync::Arc;

use outlast_core::{
    store::Error,
    words::{Clock, clock::random},
};

use crate::{Options, group::Writer};
use acknowledged::{Acknowledged, Found};
use address::Address;
use connect::Link;
use hints::Hints;
use readers::Readers;
use same::Same;
use time::Time;

/// A store in a PostgreSQL database.
pub struct PostgresStore {
    address: Address,
    same: Arc<Same>,
    readers: Readers,
    time: Time,
    losses: Found,
    hints: Arc<Hints>,
    writer: Writer,
}

impl PostgresStore {
    /// Opens the store in the database at `url`, or creates it there. O(1) in the size of the store.
    ///
    /// The database provides the clock. May be called within a tokio runtime; blocks for a bounded time. No error holds
    /// the URL's password.
    /// Errors: `Open` (a bad URL, no connection, the server's version or encoding, no store), `Newer`, `Older`,
    /// `Corrupt`.
    pub fn open(url: &str, options: Options) -> Result<PostgresStore, Error> {
        PostgresStore::open_on(url, options, Time(None))
    }

    /// Opens the store as [`PostgresStore::open`] does, but takes the time from `clock`.
    ///
    /// For tests only: servers with different clocks would disagree about what has expired.
    pub fn open_under(clock: Arc<dyn Clock>, url: &str, options: Options) -> Result<PostgresStore, Error> {
        PostgresStore::open_on(url, options, Time(Some(clock)))
    }

    fn open_on(url: &str, options: Options, time: Time) -> Result<PostgresStore, Error> {
        let address = Address::parse(url, &|name| std::env::var(name).ok())?;
        let open_error = |why: String| Error::Open { place: address.place().into(), why };
        let same = Arc::new(Same::new(address.place()));
        let readers = Readers::start(address.clone(), same.clone())
            .map_err(|e| open_error(format!("cannot start the readers' thread: {e}")))?;
        let secret: [u8; 32] = random(options.entropy.as_ref());
        let place = address.place().to_owned();
        let found = same.clone();
        let migrated = readers.run(async move |c: &Link| {
            let meta = vec![("token_key_1".into(), secret.to_vec())];
            schema::make(c, &place, options.create, meta).await?;
            found.compare(c).await
        });
        migrated.map_err(|e| match e {
            // A failure to open is not a refusal of work, so it is reported as `Open`.
            Error::Unavailable { why } | Error::Io { why } => open_error(why),
            e => e,
        })?;
        // Of the system: two processes with equal names would not hear each other.
        let mut sender = [0; 16];
        getrandom::fill(&mut sender).map_err(|e| open_error(format!("no random name: {e}")))?;
        let hints = Arc::new(Hints::new(&address.schema, sender));
        let losses = Found::default();
        let acknowledged = Acknowledged::new(losses.clone());
        let heard = hints.clone();
        let backend = writer::PostgresWriter::new(
            address.clone(),
            same.clone(),
            &options,
            time.clone(),
            acknowledged,
            heard,
        );
        let writer =
            Writer::start(backend).map_err(|e| open_error(format!("cannot start the writer thread: {e}")))?;
        Ok(PostgresStore { address, same, readers, time, losses, hints, writer })
    }
}
