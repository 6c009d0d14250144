//! Writer thread's backend for PostgreSQL.

use std::{
    future::Future,
    thread::sleep,
    time::{Duration, Instant},
};

use outlast_core::{
    engine::loaded::Loaded,
    run::instance::Instance,
    store::{
        Error,
        load::{Edges, Fetch, Key},
    },
    words::{
        id::{InstanceNo, Micros},
        row::Touch,
    },
};
use tokio::runtime::{Builder, Runtime};
use tokio_postgres::{Client, SimpleQueryMessage, error::SqlState};

use super::{
    address::Address,
    apply,
    connect::ConnectError,
    error::{failure, rolled_back},
    load,
    schema::LOCK,
    statement::{one, params, write_one},
    time::{NOW, Time},
};
use crate::{
    Durability, Options,
    backend::{Backend, CommitFailed},
};

/// Pause between attempts to reach the database. Short: a process that comes back late may be taken for dead.
const PAUSE: Duration = Duration::from_millis(100);

/// Time after `store_wait` in which operations are refused at once, so that a queue of 512 does not wait for each.
const COOL_DOWN: Duration = Duration::from_secs(1);

/// Writer with one transaction per group, in one session that is replaced when it is lost.
pub struct PostgresWriter {
    address: Address,
    durability: Durability,
    time: Time,
    store_wait: Duration,
    session: Option<Session>,
    away: Option<Away>,
    /// Whether a statement of this transaction failed. PostgreSQL would then answer COMMIT with a ROLLBACK and call
    /// that a success.
    failed: bool,
    /// Instances that this transaction registers. Until it commits, their numbers may be given to others.
    registering: Vec<Instance>,
    edges: Edges,
}

/// Database that cannot be reached.
struct Away {
    since: Instant,
    /// Time and reason of the newest failure.
    last: (Instant, Error),
}

impl PostgresWriter {
    /// Creates the writer. It connects with the first group: a runtime must not be entered on the caller's thread.
    pub fn new(address: Address, options: &Options, time: Time) -> Self {
        Self {
            address,
            durability: options.durability,
            time,
            store_wait: options.store_wait,
            session: None,
            away: None,
            failed: false,
            registering: Vec::new(),
            edges: Edges::default(),
        }
    }

    /// Returns a session. Waits for a database that is away until `store_wait` after it was first missed, and asks
    /// once from then on.
    fn reach(&mut self) -> Result<Session, Error> {
        if let Some(Away { since, last: (at, error) }) = &self.away
            && at.elapsed() < COOL_DOWN
            && since.elapsed() >= self.store_wait
        {
            return Err(error.clone());
        }
        loop {
            match Session::connect(&self.address) {
                Ok(session) => {
                    self.away = None;
                    return Ok(session);
                }
                Err(e) => {
                    let error = self.missed(self.address.unreachable(&e.why));
                    if !e.may_pass || self.has_waited() {
                        return Err(error);
                    }
                    sleep(PAUSE);
                }
            }
        }
    }

    /// Notes that the database could not be had.
    fn missed(&mut self, error: Error) -> Error {
        let now = Instant::now();
        let since = self.away.as_ref().map_or(now, |away| away.since);
        self.away = Some(Away { since, last: (now, error.clone()) });
        error
    }

    /// Returns whether the database has been away for `store_wait`.
    fn has_waited(&self) -> bool {
        self.away.as_ref().is_some_and(|away| away.since.elapsed() >= self.store_wait)
    }

    /// Runs statements in the transaction's session.
    fn within<T>(&mut self, run: impl FnOnce(&Session) -> Result<T, Error>) -> Result<T, Error> {
        let Some(session) = &self.session else {
            return Err(Error::Unavailable { why: "there is no transaction".into() });
        };
        let out = run(session);
        self.failed |= out.is_err();
        out
    }

    /// Asks once, in a new session, whether the group is committed. `None` if the database could not be asked.
    fn ask(&mut self, instance: InstanceNo, counter: i64) -> Option<bool> {
        let session = Session::connect(&self.address).ok()?;
        session.begin(true).ok()?;
        let found = session.run(one(&session.client, "WHERE no = $1", params![instance.0]));
        let _ = session.run(session.client.batch_execute("ROLLBACK"));
        let found: Option<Instance> = found.ok()?;
        self.session = Some(session);
        let ours = |i: &Instance| {
            self.registering
                .iter()
                .filter(|r| r.no == i.no)
                .all(|r| r.identity == i.identity && r.registered_at == i.registered_at)
        };
        Some(found.is_some_and(|i| i.op_counter >= counter && ours(&i)))
    }
}

impl Fetch for PostgresWriter {
    fn fetch(&mut self, keys: &[Key<'_>], into: &mut Loaded) -> Result<(), Error> {
        self.within(|s| s.run(load::fetch(&s.client, keys, into)))
    }

    fn edges(&mut self) -> Option<&mut Edges> {
        Some(&mut self.edges)
    }
}

impl Backend for PostgresWriter {
    fn begin(&mut self, synced: bool) -> Result<Micros, Error> {
        self.failed = false;
        self.registering.clear();
        let synced = synced && self.durability == Durability::Full;
        if let Some(session) = self.session.take() {
            match session.begin(synced) {
                Ok(now) => {
                    self.session = Some(session);
                    return self.time.now(now);
                }
                Err(e) if e.code() == Some(&SqlState::LOCK_NOT_AVAILABLE) => return Err(failure(e)),
                // The session was cut while idle, or its server has become read-only. Nothing was begun, so another
                // session can be tried at no cost.
                Err(_) => {}
            }
        }
        let session = self.reach()?;
        let now = session.begin(synced).map_err(failure)?;
        self.session = Some(session);
        self.time.now(now)
    }

    fn begin_read(&mut self) -> Result<Micros, Error> {
        self.begin(false)
    }

    fn apply(&mut self, loaded: Loaded) -> Result<(), Error> {
        let inserted = loaded.instances.iter().filter(|r| r.touch == Touch::Insert);
        self.registering.extend(inserted.map(|r| r.value.clone()));
        self.within(|s| s.run(apply::apply(&s.client, &loaded)))
    }

    fn count(&mut self, instance: InstanceNo, counter: i64) -> Result<(), Error> {
        let sql = "UPDATE outlast.instances SET op_counter = $2 WHERE no = $1";
        self.within(|s| s.run(write_one(&s.client, sql, params![instance.0, counter])))
    }

    fn commit(&mut self) -> Result<(), CommitFailed> {
        let session = self.session.take().filter(|_| !self.failed);
        let Some(session) = session else {
            let why = "a statement of the transaction had failed".to_owned();
            return Err(CommitFailed::RolledBack(Error::Unavailable { why }));
        };
        match session.run(session.client.batch_execute("COMMIT")) {
            Ok(()) => {
                self.session = Some(session);
                Ok(())
            }
            Err(e) if rolled_back(&e) => Err(CommitFailed::RolledBack(failure(e))),
            Err(e) => Err(CommitFailed::Unclear(failure(e))),
        }
    }

    fn rollback(&mut self) {
        // A session that cannot roll back is dropped, and the server rolls back for it.
        self.session = self.session.take().filter(|s| s.run(s.client.batch_execute("ROLLBACK")).is_ok());
    }

    fn is_committed(&mut self, instance: InstanceNo, counter: i64) -> Option<bool> {
        loop {
            let told = self.ask(instance, counter);
            if told.is_some() {
                self.away = None;
                return told;
            }
            self.missed(Error::Unavailable { why: "the outcome of a commit cannot be learnt yet".into() });
            if self.has_waited() {
                return None;
            }
            sleep(PAUSE);
        }
    }

    fn tells_later(&self) -> bool {
        true
    }
}

/// A connection and the runtime that drives it, on the writer's thread.
struct Session {
    // Declared first to be dropped first: the connection ends with its client.
    client: Client,
    runtime: Runtime,
}

impl Session {
    fn connect(address: &Address) -> Result<Session, ConnectError> {
        let runtime = Builder::new_current_thread()
            .enable_all()
            .build()
            .map_err(|e| ConnectError { why: format!("no runtime: {e}"), may_pass: true })?;
        let client = runtime.block_on(address.connect())?;
        Ok(Session { client, runtime })
    }

    fn run<F: Future>(&self, future: F) -> F::Output {
        self.runtime.block_on(future)
    }

    /// Begins a transaction, takes the lock and reads the clock, in one round trip.
    ///
    /// All waits are bounded: ours for another server's lock, and another server's for ours if this process or its
    /// machine stops within a transaction.
    fn begin(&self, synced: bool) -> Result<Option<Micros>, tokio_postgres::Error> {
        // An unsynced commit becomes durable with the next synced one, as its record precedes that one's. The level is
        // always set: `off` as the database's default must not make a synced group unsynced.
        let level = if synced {
            "SELECT set_config('synchronous_commit', 'on', true) \
             WHERE current_setting('synchronous_commit') = 'off'"
        } else {
            "SET LOCAL synchronous_commit = off"
        };
        let sql = format!(
            "BEGIN ISOLATION LEVEL READ COMMITTED READ WRITE; SET LOCAL lock_timeout = '30s'; \
             SET LOCAL idle_in_transaction_session_timeout = '15s'; {LOCK}; {level}; {NOW}"
        );
        let messages = self.run(self.client.simple_query(&sql))?;
        Ok(messages.iter().rev().find_map(|m| match m {
            SimpleQueryMessage::Row(row) => row.get(0)?.parse().ok().map(Micros),
            _ => None,
        }))
    }
}
