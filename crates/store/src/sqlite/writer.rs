//! Writer thread's backend for SQLite.

use std::sync::Arc;

use outlast_core::{
    engine::{Loaded, Need, loaded::Key},
    store::{Error, load::Fetch},
    words::{Clock, InstanceNo, Micros},
};
use rusqlite::Connection;

use super::{
    apply, failure,
    file::{StoreFile, holder},
    load::Finder,
    log,
    pending::{Cache, Pending},
};
use crate::{
    Durability,
    backend::{Backend, CommitFailed, DataVersion},
    ballast::Ballast,
    gate::{self, Inside},
    migration::unchanged,
};

pub struct SqliteWriter {
    conn: Connection,
    file: Arc<StoreFile>,
    clock: Arc<dyn Clock>,
    durability: Durability,
    ballast: Ballast,
    cache: Cache,
    pending: Pending,
    /// Number of writes and rollbacks so far: see `DataVersion`.
    writes: u64,
    /// Current setting of `synchronous`: FULL if true, NORMAL if false.
    synced: bool,
    /// Keeps the process from forking while the connection is closed: fields are dropped in order. `None`
    /// before that.
    closing: Option<Inside>,
}

impl SqliteWriter {
    pub fn new(
        conn: Connection,
        file: Arc<StoreFile>,
        clock: Arc<dyn Clock>,
        durability: Durability,
        ballast: Ballast,
    ) -> Self {
        let (cache, pending) = (Cache::default(), Pending::default());
        let (writes, synced, closing) = (0, true, None);
        Self { conn, file, clock, durability, ballast, cache, pending, writes, synced, closing }
    }

    /// Looks at what other connections have committed since, and returns `now`. Errors: `Newer` and `Older` if the store
    /// has another format by now.
    fn began(&mut self) -> Result<Micros, Error> {
        self.notice_others().inspect_err(|_| self.rollback())?;
        Ok(self.clock.now())
    }

    /// Clears the cache if another connection has committed since. Read inside the transaction, so that no commit can
    /// come between.
    fn notice_others(&mut self) -> Result<(), Error> {
        let version = self.pragma("PRAGMA data_version")?;
        if version != self.cache.version {
            unchanged(self.pragma("PRAGMA user_version")?, &self.file.path().display().to_string())?;
        }
        self.cache.check(version);
        Ok(())
    }

    fn pragma(&self, sql: &str) -> Result<i64, Error> {
        self.conn.prepare_cached(sql).and_then(|mut s| s.query_row([], |r| r.get(0))).map_err(failure)
    }

    fn write_pending(&mut self) -> Result<(), Error> {
        self.pending.write(&self.conn, &self.cache).map_err(failure)
    }

    fn batch(&self, sql: &str) -> Result<(), Error> {
        self.conn.prepare_cached(sql).and_then(|mut s| s.execute([])).map(drop).map_err(failure)
    }
}

impl Fetch for SqliteWriter {
    fn fetch(&mut self, keys: &[Key<'_>], into: &mut Loaded) -> Result<(), Error> {
        if keys.iter().any(|key| self.pending.is_in_the_way_of(key)) {
            self.write_pending()?;
        }
        let mut finder = Finder { conn: &self.conn, cache: &mut self.cache, pending: &self.pending };
        keys.iter().try_for_each(|key| finder.find(key, into))
    }
}

impl Drop for SqliteWriter {
    fn drop(&mut self) {
        self.closing = Some(gate::enter());
    }
}

impl Backend for SqliteWriter {
    fn enter(&self) -> Option<Inside> {
        Some(gate::enter())
    }

    fn begin(&mut self, synced: bool, _group: &[Vec<Need>]) -> Result<Micros, Error> {
        self.file.check_lately()?;
        // A NORMAL commit in WAL mode is in the file's WAL and not yet synced; the next FULL commit
        // syncs the WAL, and with it everything before.
        let synced = synced && self.durability == Durability::Full;
        if synced != self.synced {
            let level = if synced { "FULL" } else { "NORMAL" };
            self.conn.pragma_update(None, "synchronous", level).map_err(failure)?;
            self.synced = synced;
        }
        self.batch("BEGIN IMMEDIATE").map_err(|e| match (e, holder(self.file.path())) {
            (Error::Unavailable { .. }, Some(why)) => Error::Unavailable { why },
            (e, _) => e,
        })?;
        self.began()
    }

    fn begin_read(&mut self, _group: &[Vec<Need>]) -> Result<Option<Micros>, Error> {
        self.file.check_lately()?;
        self.batch("BEGIN")?;
        self.began().map(Some)
    }

    fn ground(&self) -> Option<DataVersion> {
        Some(DataVersion { version: self.cache.version, writes: self.writes })
    }

    fn apply(&mut self, mut loaded: Box<Loaded>) -> Result<(), Error> {
        self.writes += 1;
        if self.pending.takes(&loaded, &self.cache) {
            self.pending.add(&mut loaded, &mut self.cache);
            return Ok(());
        }
        self.write_pending()?;
        apply::apply(&self.conn, &self.cache, &loaded).map_err(failure)?;
        self.cache.remember(&mut loaded);
        if !loaded.forgotten.is_empty() {
            self.cache.forget();
        }
        Ok(())
    }

    fn count(&mut self, _instance: InstanceNo, _counter: i64) -> Result<(), Error> {
        // The counter is not stored: `is_committed` cannot use it here, and it would cost each commit one more page.
        Ok(())
    }

    fn commit(&mut self) -> Result<(), CommitFailed> {
        if let Err(e) = self.write_pending() {
            self.rollback();
            return Err(CommitFailed::RolledBack(e));
        }
        let commit = || self.batch("COMMIT");
        let done = if self.synced { log::in_one_write(commit) } else { commit() };
        let Err(e) = done else {
            // What was committed to files that are gone is not acknowledged.
            return self.file.check().map_err(CommitFailed::Unclear);
        };
        let full = matches!(e, Error::Full { .. });
        self.rollback();
        // A full disk fails before the commit record is written. After any other error the record may be in the WAL:
        // only reopening the file can tell.
        Err(if full { CommitFailed::RolledBack(e) } else { CommitFailed::Unclear(e) })
    }

    fn rollback(&mut self) {
        self.writes += 1;
        self.cache.forget();
        self.pending.clear();
        self.release();
    }

    fn release(&mut self) {
        if !self.conn.is_autocommit() {
            // If even this fails, the next BEGIN fails too and says why.
            let _ = self.batch("ROLLBACK");
        }
    }

    fn is_committed(&mut self, _instance: InstanceNo, _counter: i64) -> Option<bool> {
        // Our own connection has just failed; after EIO even a fresh one may read stale pages.
        None
    }

    fn free_ballast(&mut self) -> bool {
        self.ballast.release()
    }

    fn is_short_of_room(&mut self) -> bool {
        self.ballast.is_released()
    }
}
