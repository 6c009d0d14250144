//! Session of the writer: a connection, the runtime that drives it, and the beginning of a transaction.

use std::{cell::Cell, fmt::Display, future::Future};

use futures_util::future::join;
use outlast_core::{
    store::{Error, load::Key},
    words::id::{InstanceNo, Micros},
};
use tokio::{
    runtime::{Builder, Runtime},
    task::yield_now,
};
use tokio_postgres::SimpleQueryMessage;

use super::{
    acknowledged::Witness, address::Address, connect::ConnectError, epoch::Epoch, error::chain, known::Known,
    load, locks::Locks, named::Named, time::NOW,
};

/// Longest time that a transaction stands still before the database ends it.
///
/// A server that is frozen within a group (a stopped process, a suspended machine) keeps the others waiting no longer
/// than this. Usually a transaction stands still for the milliseconds that a group's decisions take.
#[derive(Clone, Copy)]
pub enum Standstill {
    Short,
    /// For a transaction that is repeated because the database ended it for standing still: on a slow machine it then
    /// succeeds.
    Long,
}

impl Standstill {
    fn sql(self) -> &'static str {
        match self {
            Standstill::Short => "800ms",
            Standstill::Long => "15s",
        }
    }
}

/// A connection and the runtime that drives it, on the writer's thread.
pub struct Session {
    // Declared first to be dropped first: the connection ends with its client.
    pub client: Named,
    runtime: Runtime,
    /// Epoch of the server, read when the session began. Behind a pooler the server may have changed since.
    pub epoch: Epoch,
    /// Whether a transaction of this session has found all commits that this process was acknowledged.
    is_proven: Cell<bool>,
}

/// Wishes for a transaction.
pub struct Terms<'a> {
    pub locks: &'a Locks,
    /// Whether its commit is on disk before it is acknowledged.
    pub synced: bool,
    pub standstill: Standstill,
    /// Instance of this process, whose row is read at the begin; `None` reads no row.
    pub witness: Option<InstanceNo>,
}

/// Answers of the database to a BEGIN.
pub struct Told {
    pub now: Micros,
    /// Row of the instance [`Terms::witness`]: the outer `None` if none was asked for, the inner one if there
    /// is no such row.
    pub witness: Option<Option<Witness>>,
}

/// Outcome of a BEGIN.
pub enum Begun {
    /// A transaction is open. An error means that reading failed in it.
    In(Told, Result<(), Error>),
    Failed(tokio_postgres::Error),
    /// The transaction was begun on a server's connection that holds another session's token, and has no effect.
    Elsewhere,
}

impl Session {
    /// Connects to the database. `named`: whether statements may be prepared under names.
    pub fn connect(address: &Address, named: bool) -> Result<Session, ConnectError> {
        let no = |what: &str, e: &dyn Display| ConnectError {
            why: format!("{what}: {e}"),
            may_pass: true,
            is_gone: false,
        };
        let runtime = Builder::new_current_thread().enable_all().build().map_err(|e| no("no runtime", &e))?;
        let client = runtime.block_on(address.connect())?;
        let mut token = None;
        if named {
            let mut random = [0; 16];
            getrandom::fill(&mut random).map_err(|e| no("no random token", &e))?;
            let text = format!("{:032x}", u128::from_le_bytes(random));
            let sql = format!("SELECT set_config('outlast_session.token', '{text}', false)");
            runtime.block_on(client.batch_execute(&sql)).map_err(|e| no("no session", &chain(&e)))?;
            token = Some(text);
        }
        let epoch = runtime.block_on(Epoch::read(&client));
        let client = Named::new(client, token);
        Ok(Session { client, runtime, epoch, is_proven: Cell::new(false) })
    }

    pub fn run<F: Future>(&self, future: F) -> F::Output {
        self.runtime.block_on(future)
    }

    /// Returns whether the session is known to have ended. Sends nothing to the database.
    pub fn is_cut(&self) -> bool {
        self.run(async {
            // The connection is driven once, with whatever has arrived for it.
            yield_now().await;
            yield_now().await;
        });
        self.client.client.is_closed()
    }

    /// Returns whether the server of this session may have lost commits that it acknowledged to this process.
    ///
    /// A direct connection is cut by every event that loses commits: once one transaction of the session
    /// found all of them, the session is above suspicion. A session without a token is behind a pooler, which
    /// may give each transaction another connection: each of its transactions is suspect.
    pub fn is_suspect(&self) -> bool {
        self.client.token.is_none() || !self.is_proven.get()
    }

    /// Notes that this session's server has all commits that were acknowledged, or that the missing ones were
    /// reported.
    pub fn is_compared(&self) {
        self.is_proven.set(true);
    }

    /// Begins a transaction, takes the locks, reads the clock, the own row and then what `keys` name, in one round trip.
    ///
    /// All waits are bounded: ours for another server's lock, and another server's for ours if this process or its
    /// machine stops within a transaction. A statement with a name is planned once, whatever its parameters (from
    /// PostgreSQL 12 on), and for indexes: its plan may have been made for a table that was still small.
    pub fn begin(&self, terms: &Terms<'_>, keys: &[Key<'_>], known: &mut Known) -> Begun {
        // An unsynced commit becomes durable with the next synced one, as its record precedes that one's. The level is
        // always set: `off` as the database's default must not make a synced group unsynced.
        let level = if terms.synced {
            "SELECT set_config('synchronous_commit', 'on', true) \
             WHERE current_setting('synchronous_commit') = 'off'"
        } else {
            "SET LOCAL synchronous_commit = off"
        };
        let witness = match terms.witness {
            Some(InstanceNo(no)) => {
                format!("(SELECT op_counter || ' ' || registered_at FROM outlast.instances WHERE no = {no})")
            }
            None => "NULL".to_owned(),
        };
        let locks = terms.locks.statements(&self.client.client.schema);
        let sql = format!(
            "BEGIN ISOLATION LEVEL READ COMMITTED READ WRITE; SET LOCAL lock_timeout = '30s'; \
             SET LOCAL idle_in_transaction_session_timeout = '{}'; SET LOCAL enable_seqscan = off; \
             SET LOCAL enable_hashjoin = off; SET LOCAL enable_mergejoin = off; SET LOCAL jit = off; \
             SELECT set_config('plan_cache_mode', 'force_generic_plan', true) \
             WHERE current_setting('server_version_num')::int >= 120000; {locks}; {level}; \
             SELECT {NOW}, coalesce(current_setting('outlast_session.token', true), ''), {witness}",
            terms.standstill.sql()
        );
        let (begun, loaded) = self.run(async {
            let begun = self.client.client.simple_query(&sql);
            join(begun, load::fetch(&self.client, keys, known)).await
        });
        let messages = match begun {
            Ok(messages) => messages,
            Err(e) => return Begun::Failed(e),
        };
        let told = messages.iter().rev().find_map(|m| match m {
            SimpleQueryMessage::Row(row) => {
                let told = Told {
                    now: Micros(row.get(0)?.parse().ok()?),
                    witness: terms.witness.map(|_| row.get(2).and_then(witnessed)),
                };
                Some((told, row.get(1)?))
            }
            _ => None,
        });
        let untold = || Error::Unavailable { why: "the database did not tell its time".into() };
        let Some((told, token)) = told else {
            return Begun::In(Told { now: Micros(0), witness: None }, Err(untold()));
        };
        if self.client.token.as_ref().is_some_and(|ours| ours != token) {
            // The session is dropped with the transaction.
            return Begun::Elsewhere;
        }
        Begun::In(told, loaded)
    }
}

/// Parses the text in which the database returns this process's own row.
fn witnessed(text: &str) -> Option<Witness> {
    let (counter, registered_at) = text.split_once(' ')?;
    Some(Witness { counter: counter.parse().ok()?, registered_at: Micros(registered_at.parse().ok()?) })
}
