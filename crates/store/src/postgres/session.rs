//! Session of the writer: a connection, the runtime that drives it, and the beginning of a transaction.

use std::{cell::Cell, fmt::Display, future::Future};

use futures_util::future::join4;
use tokio::{
    runtime::{Builder, Runtime},
    task::yield_now,
};

use super::{
    acknowledged::{Epoch, Witness},
    address::Address,
    connect::ConnectError,
    load,
    locks::Locks,
    memory::{Memory, NUMBER},
    statement::{Ask as _, chain, params},
    time::NOW,
    write::Wordings,
};
use crate::postgres::prelude::*;

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

/// Beginning of a transaction, with the token of the server's connection that it is on.
const BEGIN: &str = "BEGIN ISOLATION LEVEL READ COMMITTED READ WRITE; \
    SELECT coalesce(current_setting('outlast_session.token', true), '')";

/// Setting that holds the token of a server's connection.
const TOKEN: &str = "outlast_session.token";

/// Settings that the connection of a session begins with, so that a statement which is a transaction by itself has them:
/// those of [`SETTINGS`], and what each BEGIN says.
///
/// A pooler that lends its connections to one after the other refuses or drops settings that it does not know.
const OF_SESSION: &str = "-c lock_timeout=30s -c enable_seqscan=off -c enable_hashjoin=off -c enable_mergejoin=off \
    -c join_collapse_limit=1 -c jit=off -c plan_cache_mode=force_generic_plan \
    -c default_transaction_isolation=read\\ committed -c default_transaction_read_only=off";

/// Settings of a transaction, as arguments of a function. Their parameters are the longest standstill and whether the
/// commit is synced.
///
/// An unsynced commit becomes durable with the next synced one, as its record precedes that one's. `off` as the
/// database's default must not make a synced group unsynced.
const SETTINGS: &str = "set_config('lock_timeout', '30s', true), \
    set_config('idle_in_transaction_session_timeout', $1, true), set_config('enable_seqscan', 'off', true), \
    set_config('enable_hashjoin', 'off', true), set_config('enable_mergejoin', 'off', true), \
    set_config('join_collapse_limit', '1', true), set_config('jit', 'off', true), \
    CASE WHEN current_setting('server_version_num')::int >= 120000 \
    THEN set_config('plan_cache_mode', 'force_generic_plan', true) END, \
    CASE WHEN NOT $2 THEN set_config('synchronous_commit', 'off', true) \
    WHEN current_setting('synchronous_commit') = 'off' THEN set_config('synchronous_commit', 'on', true) END";

/// A connection and the runtime that drives it, on the writer's thread.
pub struct Session {
    // Declared first to be dropped first: the connection ends with its client.
    pub client: Named,
    /// Whether its server's connection is of this session alone: it began with the settings of [`OF_SESSION`], which no
    /// pooler passes on.
    pub is_alone: bool,
    runtime: Runtime,
    /// Epoch of the server, read when the session began. Behind a pooler the server may have changed since.
    pub epoch: Epoch,
    /// Whether a transaction of this session has found all commits that this process was acknowledged.
    is_proven: Cell<bool>,
    /// Rows of the runs that this process drives, as this session's commits left them.
    pub memory: Memory,
    pub wordings: Wordings,
}

/// Wishes for a transaction.
pub struct Terms<'a> {
    /// Locks to take; `None` for a transaction that only reads, and is rolled back in the same round trip.
    pub locks: Option<&'a Locks>,
    /// Whether its commit is on disk before it is acknowledged.
    pub synced: bool,
    pub standstill: Standstill,
    /// Instance of this process, whose row is read at the begin; `None` reads no row.
    pub witness: Option<InstanceNo>,
}

/// Answers of the database to a BEGIN.
pub struct BeginReply {
    pub now: Micros,
    /// Number of the transaction, which is the version of what it writes; 0 if it only reads.
    pub number: i64,
    /// Row of the instance [`Terms::witness`]: the outer `None` if none was asked for, the inner one if there
    /// is no such row.
    pub witness: Option<Option<Witness>>,
}

/// Outcome of a BEGIN.
pub enum Begun {
    /// A transaction is open. An error means that reading failed in it.
    In(BeginReply, Result<(), Error>),
    Failed(tokio_postgres::Error),
    /// The transaction was begun on a server's connection that holds another session's token, and has no effect.
    Elsewhere,
}

impl Session {
    /// Connects to the database. `named`: whether statements may be prepared under names.
    pub fn connect(address: &Address, named: bool) -> Result<Session, ConnectError> {
        let no = |what: &str, e: &dyn Display| ConnectError::passing(format!("{what}: {e}"));
        let runtime = Builder::new_current_thread().enable_all().build().map_err(|e| no("no runtime", &e))?;
        let mut random = [0; 16];
        getrandom::fill(&mut random).map_err(|e| no("no random token", &e))?;
        let token = named.then(|| format!("{:032x}", u128::from_le_bytes(random)));
        let (client, is_alone) = runtime.block_on(async {
            let Some(token) = &token else { return Ok((address.connect().await?, false)) };
            let client = address.connect_set(&format!("-c {TOKEN}={token} {OF_SESSION}")).await?;
            let sql = format!(
                "SELECT CASE WHEN current_setting('{TOKEN}', true) = '{token}' THEN 'alone' \
                 ELSE set_config('{TOKEN}', '{token}', false) END"
            );
            let told = client.word(&sql).await.map_err(|e| no("no session", &chain(&e)))?;
            Ok((client, told.as_deref() == Some("alone")))
        })?;
        let epoch = runtime.block_on(Epoch::read(&client));
        let client = Named::new(client, token);
        let (is_proven, memory, wordings) = (Cell::new(false), Memory::default(), Wordings::default());
        Ok(Session { client, is_alone, runtime, epoch, is_proven, memory, wordings })
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
        let witness = match terms.witness {
            Some(InstanceNo(no)) => {
                format!("(SELECT op_counter || ' ' || registered_at FROM outlast.instances WHERE no = {no})")
            }
            None => "NULL::text".to_owned(),
        };
        let number = if terms.locks.is_some() { NUMBER } else { "0::bigint" };
        let first = First::of(terms, &self.client.client.schema, &format!("{witness}, {number}"));
        let end = async {
            match terms.locks {
                Some(_) => Ok(()),
                None => self.client.client.batch_execute("ROLLBACK").await,
            }
        };
        // Sent in this order, in one go.
        let (begun, told, loaded, ended) = self.run(async {
            let begin = self.client.client.word(BEGIN);
            let params = first.params();
            let told = self.client.query(&first.sql, &params);
            join4(begin, told, load::fetch(&self.client, keys, known), end).await
        });
        let token = match begun {
            Ok(token) => token,
            Err(e) => return Begun::Failed(e),
        };
        if self.client.token.is_some() && self.client.token != token {
            // The session is dropped with the transaction. Elsewhere a statement's name may mean another, or nothing.
            return Begun::Elsewhere;
        }
        let rows = match ended.and(told) {
            Ok(rows) => rows,
            Err(e) => return Begun::Failed(e),
        };
        let told = rows.first().and_then(|row| {
            let witness = |_| row.try_get(1).ok().flatten().and_then(witnessed);
            let (now, number) = (Micros(row.try_get(0).ok()?), row.try_get(2).ok()?);
            Some(BeginReply { now, number, witness: terms.witness.map(witness) })
        });
        let untold = || Error::Unavailable { why: "the database did not tell its time".into() };
        let Some(told) = told else {
            return Begun::In(BeginReply { now: Micros(0), number: 0, witness: None }, Err(untold()));
        };
        Begun::In(told, loaded)
    }
}

/// First statement of a transaction: its settings, its locks, and then the clock.
pub struct First {
    pub sql: String,
    standstill: &'static str,
    synced: bool,
    /// Two halves of the keys of the locked parts.
    parts: (Vec<i32>, Vec<i32>),
}

impl First {
    /// Builds the statement. `columns` are read beside the clock.
    ///
    /// A CASE takes its conditions in order: each wait for a lock is bounded, and the clock is read under all locks.
    pub fn of(terms: &Terms<'_>, schema: &SchemaName, columns: &str) -> First {
        let none = || ("true".to_owned(), Default::default());
        let (locked, parts) = terms.locks.map_or_else(none, |locks| locks.taken(schema));
        let sql = format!(
            "SELECT CASE WHEN num_nulls({SETTINGS}) >= 0 THEN CASE WHEN {locked} THEN {NOW} END END, {columns}"
        );
        First { sql, standstill: terms.standstill.sql(), synced: terms.synced, parts }
    }

    pub fn params(&self) -> Vec<Param<'_>> {
        let (classes, parts) = &self.parts;
        let mut params = params![self.standstill, self.synced].to_vec();
        if !parts.is_empty() {
            params.extend_from_slice(params![*classes, *parts]);
        }
        params
    }
}

/// Parses the text in which the database returns this process's own row.
fn witnessed(text: &str) -> Option<Witness> {
    let (counter, registered_at) = text.split_once(' ')?;
    Some(Witness { counter: counter.parse().ok()?, registered_at: Micros(registered_at.parse().ok()?) })
}
