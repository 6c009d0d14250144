//! Writer thread's backend for PostgreSQL.

use std::{
    cell::RefCell,
    mem::take,
    sync::Arc,
    thread::sleep,
    time::{Duration, Instant},
};

use outlast_core::{
    engine::{self, Loaded, Need, loaded::Key},
    run::{Instance, Run},
    store::{
        Error, News,
        load::{Edges, Fetch, Together},
    },
    words::{Clock, InstanceNo, Micros, Touch},
};
use tokio_postgres::error::SqlState;

use super::{
    acknowledged::{Acknowledged, Commit, Epoch},
    address::Address,
    apply::{self, write_failure},
    hints::{self, Hints},
    known::Known,
    load,
    locks::{Locks, run_of},
    memory::{self, Basis, is_worth_remembering},
    recalled::AtOnce,
    same::Same,
    session::{BeginReply, Begun, Session, Standstill, Terms},
    statement::{failure, many, params, rolled_back},
    time::Time,
    write::{self, Failed, Request},
};
use crate::{
    Durability, Options,
    backend::{Backend, CommitFailed},
};

/// Pause between attempts to reach the database. It is short because a process that returns late may be
/// declared dead.
const PAUSE: Duration = Duration::from_millis(100);

/// Time after `store_wait` in which operations are refused at once, so that a queue of 512 does not wait for each.
const COOL_DOWN: Duration = Duration::from_secs(1);

/// Writer with one transaction per group, in one session that is replaced when it is lost.
///
/// A usual group takes two round trips: BEGIN with all that its operations load, and all that they changed with COMMIT.
pub struct PostgresWriter {
    address: Address,
    same: Arc<Same>,
    durability: Durability,
    time: Time,
    clock: Arc<dyn Clock>,
    store_wait: Duration,
    session: Option<Session>,
    away: Option<Away>,
    /// Whether a statement of this transaction failed. PostgreSQL would then answer COMMIT with a ROLLBACK and call
    /// that a success.
    failed: bool,
    /// Instances that this transaction registers. Until it commits, their numbers may be given to others.
    registering: Vec<Instance>,
    edges: Edges,
    /// Locks that this transaction has taken, or the next one is to take.
    locks: Locks,
    /// Whether rows are read ahead of a transaction, by one that has ended.
    is_looking: bool,
    /// Versions of the rows that were recalled for this group, whose transaction has not begun; `None` if it has.
    recalled: Option<Basis>,
    /// Whether this transaction's rows are worth remembering, those too that it only reads.
    is_remembered: bool,
    /// Number of this transaction, as the rows that it writes have it.
    number: i64,
    /// Time of this transaction's decisions, once what they need was found to be locked.
    decides_at: Option<Micros>,
    /// Rows of this transaction, as its operations left them.
    known: Known,
    /// This process's instance and the number of the group's last operation, to be written with the commit;
    /// `None` if there is none.
    count: Option<(InstanceNo, i64)>,
    /// Longest time for which the next transaction may stand idle.
    standstill: Standstill,
    /// Whether a pooler spreads a session's transactions over several connections, so that no statement may
    /// have a name.
    is_pooled: bool,
    acknowledged: Acknowledged,
    hints: Arc<Hints>,
    /// Effects of this transaction that another process may wait for, so that it is sent a hint.
    news: News,
    /// Commit of this transaction while its outcome is not known.
    pending: Option<Commit>,
    /// Time at which this transaction began, by the database's clock, and whether its commit is to be on disk.
    begun: (Micros, bool),
}

/// Failure to reach the database, kept for as long as it lasts.
struct Away {
    since: Instant,
    /// Time and error of the newest attempt to connect.
    last: (Instant, Error),
}

impl PostgresWriter {
    /// Creates the writer. The connection is made with the first group, on the writer's thread, because the caller's
    /// thread may already be inside a runtime.
    pub fn new(
        address: Address,
        same: Arc<Same>,
        options: &Options,
        time: Time,
        acknowledged: Acknowledged,
        hints: Arc<Hints>,
    ) -> Self {
        Self {
            address,
            same,
            durability: options.durability,
            time,
            clock: options.clock.clone(),
            store_wait: options.store_wait,
            session: None,
            away: None,
            failed: false,
            registering: Vec::new(),
            edges: Edges::default(),
            locks: Locks::Whole,
            is_looking: false,
            recalled: None,
            is_remembered: false,
            number: 0,
            decides_at: None,
            known: Known::default(),
            count: None,
            standstill: Standstill::Short,
            is_pooled: false,
            acknowledged,
            hints,
            news: News::default(),
            pending: None,
            begun: (Micros(0), false),
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
            match Session::connect(&self.address, !self.is_pooled) {
                Ok(session) => {
                    self.away = None;
                    session.run(self.same.compare(&session.client.client))?;
                    return Ok(session);
                }
                Err(e) => {
                    let error = self.same.unreachable(&e, self.address.unreachable(&e.why));
                    let error = self.missed(error);
                    if !e.may_pass || self.has_waited() {
                        return Err(error);
                    }
                    sleep(PAUSE);
                }
            }
        }
    }

    /// Records that the database could not be reached, and returns `error`.
    fn missed(&mut self, error: Error) -> Error {
        let now = Instant::now();
        let since = self.away.as_ref().map_or(now, |away| away.since);
        self.away = Some(Away { since, last: (now, error.clone()) });
        error
    }

    /// Returns whether the database has been unreachable for `store_wait`.
    fn has_waited(&self) -> bool {
        self.away.as_ref().is_some_and(|away| away.since.elapsed() >= self.store_wait)
    }

    /// Runs statements in the transaction's session.
    fn within<T>(&mut self, run: impl FnOnce(&Session, &mut Known) -> Result<T, Error>) -> Result<T, Error> {
        let Some(session) = &self.session else {
            return Err(Error::Unavailable { why: "there is no transaction".into() });
        };
        let out = run(session, &mut self.known);
        self.failed |= out.is_err();
        out.map_err(|e| self.same.look(e))
    }

    /// Forgets the group before this one.
    fn forget_group(&mut self, synced: bool) {
        self.failed = false;
        self.recalled = None;
        self.registering.clear();
        self.count = None;
        self.decides_at = None;
        self.pending = None;
        self.news = News::default();
        self.begun.1 = synced;
    }

    /// Begins a transaction and reads what `keys` name, in a session that is open, or in another.
    fn open(&mut self, synced: bool, keys: &[Key<'_>]) -> Result<Micros, Error> {
        self.forget_group(synced);
        if let Some(session) = self.session.take() {
            match self.begin_in(&session, synced, keys) {
                Begun::In(told, loaded) => return self.opened(session, told, loaded),
                Begun::Failed(e) if e.code() == Some(&SqlState::LOCK_NOT_AVAILABLE) => {
                    return Err(failure(e));
                }
                Begun::Elsewhere => self.is_pooled = true,
                // The session was cut while idle, or its server has become read-only. Nothing was begun, so another
                // session can be tried at no cost.
                Begun::Failed(_) => {}
            }
        }
        loop {
            let session = self.reach()?;
            match self.begin_in(&session, synced, keys) {
                Begun::In(told, loaded) => return self.opened(session, told, loaded),
                Begun::Failed(e) => return Err(failure(e)),
                // A session without a token begins wherever it is.
                Begun::Elsewhere => self.is_pooled = true,
            }
        }
    }

    /// Begins a transaction for which nothing has been read yet.
    fn begin_in(&mut self, session: &Session, synced: bool, keys: &[Key<'_>]) -> Begun {
        self.known = Known::default();
        let keys = self.known.unknown(keys);
        let witness = self.acknowledged.witness().filter(|_| session.is_suspect());
        let terms = Terms { locks: Some(&self.locks), synced, standstill: self.standstill, witness };
        session.begin(&terms, &keys, &mut self.known)
    }

    fn opened(
        &mut self,
        mut session: Session,
        told: BeginReply,
        loaded: Result<(), Error>,
    ) -> Result<Micros, Error> {
        let BeginReply { now, number, witness } = told;
        // A session in which reading failed is dropped: the server rolls back, and statements get their names anew.
        loaded.map_err(|e| self.same.look(e))?;
        if let Some(row) = witness {
            self.acknowledged.compare(row, now, &session.epoch);
        }
        session.is_compared();
        session.memory.tells_time(now);
        (self.begun.0, self.number) = (now, number);
        self.session = Some(session);
        self.time.now(Some(now))
    }

    /// Reads what the operations of a group need beyond the first round, each round of all of them at once.
    fn go_on(&mut self, mut together: Together<'_>, now: Micros) -> Result<(), Error> {
        loop {
            together.go_on(self, now)?;
            let keys = together.keys();
            if keys.is_empty() {
                return Ok(());
            }
            self.know(&keys)?;
        }
    }

    /// Reads the rows that `keys` name and that are not known yet, in one round trip.
    fn know(&mut self, keys: &[Key<'_>]) -> Result<(), Error> {
        if keys.iter().any(|key| self.known.is_in_the_way_of(key)) {
            self.write()?;
        }
        let keys = self.known.unknown(keys);
        if keys.is_empty() {
            return Ok(());
        }
        if self.is_looking || self.recalled.is_some() {
            return Err(not_locked("a row that is read in a second round trip"));
        }
        self.within(|s, known| s.run(load::fetch(&s.client, &keys, known)))?;
        match self.decides_at {
            Some(now) if !self.locks.cover(&self.known, now) => {
                Err(not_locked("the lock of a row that it reads"))
            }
            _ => Ok(()),
        }
    }

    /// Learns where the runs lead that this process has not seen, so that their group need not lock the whole store. A
    /// round trip without a transaction: what is read here only says what to lock.
    fn meet(&mut self, group: &[Vec<Need>]) {
        let runs = group.iter().flatten().filter_map(run_of);
        let unseen: Vec<i64> = runs.filter(|no| self.edges.run(*no).is_none()).map(|no| no.0).collect();
        let Some(session) = self.session.as_ref().filter(|_| !unseen.is_empty()) else { return };
        // A failure is told by the transaction, which locks the whole store then.
        let mut found = Loaded::default();
        let runs = session.run(many::<Run>(&session.client.client, "WHERE no = ANY($1)", params![unseen]));
        found.extend(runs.unwrap_or_default());
        self.edges.learn(&found, self.begun.0);
    }

    /// Decides on remembered rows, if all that the operations of a group need is remembered: no transaction is begun until
    /// their commit. Returns the store's `now`.
    fn recall(&mut self, group: &[Vec<Need>]) -> Option<Micros> {
        let session = self.session.as_ref().filter(|session| !session.is_suspect())?;
        let told = session.memory.now()?;
        let now = self.time.now(Some(told)).ok()?;
        self.known = Known::default();
        let (mut together, mut basis) = (Together::of(group, &self.edges), Basis::new());
        let runs = group.iter().flatten().filter_map(run_of).map(Key::Run);
        // The process's own row is checked whatever is decided: `ask` changes it to shut out what is still on its way.
        let own = Key::Instance(self.acknowledged.witness()?);
        let mut keys: Vec<Key<'_>> = runs.chain([own]).chain(together.keys()).collect();
        while !keys.is_empty() {
            let session = self.session.as_ref()?;
            if !session.memory.recall(&keys, self.clock.boottime_ms(), &mut self.known, &mut basis) {
                return None;
            }
            together.go_on(self, now).ok()?;
            keys = together.keys();
        }
        self.begun.0 = told;
        self.recalled = Some(basis);
        Some(now)
    }

    /// Begins a transaction that holds `self.locks`, and reads all that the operations of a group need.
    fn begin_under(&mut self, synced: bool, group: &[Vec<Need>]) -> Result<Micros, Error> {
        let together = Together::of(group, &self.edges);
        // Each run is read, whatever is needed of it: its row tells whether it was locked.
        let runs = group.iter().flatten().filter_map(run_of).map(Key::Run);
        let keys: Vec<Key<'_>> = together.keys().into_iter().chain(runs).collect();
        let now = self.open(synced, &keys)?;
        self.go_on(together, now).inspect_err(|_| self.rollback())?;
        Ok(now)
    }

    /// Writes all changes, before the commit does.
    fn write(&mut self) -> Result<(), Error> {
        self.within(|s, known| {
            let statements = apply::statements(known, &s.client.client.schema)?;
            s.run(write::run(&s.client, Vec::new(), &statements, "")).map_err(|failed| match failed {
                Failed::Unsent(e) | Failed::Statement(e) | Failed::Last(e) => write_failure(e),
            })
        })?;
        self.known.is_written();
        Ok(())
    }

    /// Records that the server of `epoch` has acknowledged this transaction's commit.
    fn is_acknowledged(&mut self, epoch: &Epoch) {
        if let Some(commit) = self.pending.take() {
            self.acknowledged.add(commit, epoch);
        }
    }

    /// Asks once, in a new session, whether the group is committed. `None` if the database could not be asked.
    fn ask(&mut self, instance: InstanceNo, counter: i64) -> Option<bool> {
        let session = Session::connect(&self.address, !self.is_pooled).ok()?;
        session.run(self.same.compare(&session.client.client)).ok()?;
        let mut known = Known::default();
        // Alone: a server may still be at work on what this process has sent it.
        let locks = Some(&Locks::Whole);
        let terms = Terms { locks, synced: true, standstill: Standstill::Long, witness: None };
        let Begun::In(_, loaded) = session.begin(&terms, &[Key::Instance(instance)], &mut known) else {
            return None;
        };
        loaded.ok()?;
        let found = known.instances.get(&instance).map(|row| &row.value);
        let ours = |i: &Instance| {
            let mut registering = self.registering.iter().filter(|r| r.no == i.no).peekable();
            match registering.peek() {
                None => self.acknowledged.is_own(i),
                Some(_) => {
                    registering.all(|r| r.identity == i.identity && r.registered_at == i.registered_at)
                }
            }
        };
        let is_committed = found.is_some_and(|i| i.op_counter >= counter && ours(i));
        let end = match is_committed {
            true => "ROLLBACK".to_owned(),
            // A group of one round trip may be on its way still: it checks this row, which is another one from here on.
            false => {
                let no = instance.0;
                format!("UPDATE outlast.instances SET op_counter = op_counter WHERE no = {no}; COMMIT")
            }
        };
        session.run(session.client.client.batch_execute(&end)).ok()?;
        self.session = Some(session);
        Some(is_committed)
    }
}

/// Failure of a decision that would go beyond its group's locks.
fn not_locked(what: &'static str) -> Error {
    Error::Engine(engine::Error::NotLoaded(what))
}

impl Fetch for PostgresWriter {
    fn fetch(&mut self, keys: &[Key<'_>], into: &mut Loaded) -> Result<(), Error> {
        self.know(keys)?;
        keys.iter().for_each(|key| self.known.answer(key, into));
        Ok(())
    }

    fn edges(&mut self) -> Option<&mut Edges> {
        Some(&mut self.edges)
    }
}

impl Backend for PostgresWriter {
    fn begin(&mut self, synced: bool, group: &[Vec<Need>]) -> Result<Micros, Error> {
        let synced = synced && self.durability == Durability::Full;
        self.meet(group);
        self.locks = Locks::of(group, &self.edges);
        self.is_remembered = is_worth_remembering(group);
        self.forget_group(synced);
        if let Some(now) = self.recall(group).filter(|_| self.locks != Locks::Whole) {
            if self.locks.cover(&self.known, now) {
                self.decides_at = Some(now);
                return Ok(now);
            }
            self.recalled = None;
        }
        let now = self.begin_under(synced, group)?;
        if self.locks.cover(&self.known, now) {
            self.decides_at = Some(now);
            return Ok(now);
        }
        self.rollback();
        self.locks = Locks::Whole;
        self.begin_under(synced, group)
    }

    /// Reads all at once, in a transaction that has ended when this returns. `None` also if the transaction fails: an
    /// operation that is submitted waits for the database.
    fn begin_read(&mut self, group: &[Vec<Need>]) -> Result<Option<Micros>, Error> {
        // Behind a runtime's back: a caller within one has to submit.
        if tokio::runtime::Handle::try_current().is_ok() || Locks::of(group, &self.edges) == Locks::Whole {
            return Ok(None);
        }
        if let Some(now) = self.recall(group) {
            self.recalled = None;
            self.is_looking = true;
            return Ok(Some(now));
        }
        let Some(session) = self.session.take_if(|session| !session.is_suspect()) else { return Ok(None) };
        let together = Together::of(group, &self.edges);
        self.known = Known::default();
        let keys = self.known.unknown(&together.keys());
        let terms = Terms { locks: None, synced: false, standstill: self.standstill, witness: None };
        let told = match session.begin(&terms, &keys, &mut self.known) {
            Begun::In(told, Ok(())) => told,
            Begun::In(_, Err(_)) | Begun::Failed(_) => return Ok(None),
            Begun::Elsewhere => {
                self.is_pooled = true;
                return Ok(None);
            }
        };
        self.session = Some(session);
        self.is_looking = true;
        self.time.now(Some(told.now)).map(Some)
    }

    fn release(&mut self) {
        if !take(&mut self.is_looking) {
            self.rollback();
        }
    }

    fn apply(&mut self, mut loaded: Box<Loaded>) -> Result<(), Error> {
        let inserted = loaded.instances.iter().filter(|r| r.touch == Touch::Insert);
        self.registering.extend(inserted.map(|r| r.value.clone()));
        if !self.locks.cover_changes(&self.known, &loaded) {
            return Err(not_locked("the lock of a row that it changes"));
        }
        let begins = loaded.runs.iter().any(|row| row.touch == Touch::Insert);
        if begins || loaded.budgets.iter().any(|row| row.touch != Touch::Read) {
            self.edges.learn(&loaded, self.begun.0);
        }
        self.news = self.news | hints::news(&self.known, &loaded);
        let forgotten = take(&mut loaded.forgotten);
        self.known.keep(*loaded);
        if forgotten.is_empty() {
            return Ok(());
        }
        // Whatever is known of these runs is to be written before they are deleted, and is then no longer so.
        self.write()?;
        self.known = Known::default();
        self.within(|s, _| {
            let forget = async |(run, envelope, namespace): &(_, _, String)| {
                apply::forget(&s.client.client, *run, *envelope, namespace).await
            };
            forgotten.iter().try_for_each(|one| s.run(forget(one))).map_err(failure)
        })
    }

    fn count(&mut self, instance: InstanceNo, counter: i64) -> Result<(), Error> {
        self.count = Some((instance, counter));
        let registered = self.registering.iter().rfind(|row| row.no == instance);
        let (at, synced) = self.begun;
        let registered_at = registered.map(|row| row.registered_at);
        self.pending = Some(Commit { instance, registered_at, counter, at, synced });
        Ok(())
    }

    fn commit(&mut self) -> Result<(), CommitFailed> {
        let why = || "a statement of the transaction had failed".to_owned();
        if self.failed {
            return Err(CommitFailed::RolledBack(Error::Unavailable { why: why() }));
        }
        let Some(mut session) = self.session.take() else {
            return Err(CommitFailed::RolledBack(Error::Unavailable { why: why() }));
        };
        if session.is_cut() {
            if self.recalled.is_some() {
                return Err(CommitFailed::Stale);
            }
            self.standstill = Standstill::Long;
            let why = "the database ended the transaction, which had stood still for too long".to_owned();
            return Err(CommitFailed::RolledBack(Error::Unavailable { why }));
        }
        let recalled = self.recalled.take();
        let (mut number, seen) = (self.number, RefCell::new(recalled.clone().unwrap_or_default()));
        let learnt = RefCell::new(None);
        let done = {
            let mut statements = match apply::statements(&self.known, &session.client.client.schema) {
                Ok(statements) => statements,
                Err(e) => {
                    self.session = Some(session);
                    self.rollback();
                    return Err(CommitFailed::RolledBack(e));
                }
            };
            let known = &self.known;
            statements
                .extend(self.count.map(|(instance, counter)| apply::counting(known, instance, counter)));
            statements.extend(self.news.is_any().then(|| self.hints.notifying(self.news)));
            match &recalled {
                Some(basis) => {
                    let (locks, standstill) = (Some(&self.locks), self.standstill);
                    let terms = Terms { locks, synced: self.begun.1, standstill, witness: None };
                    match session.commit_at_once(&terms, (basis, self.begun.0), &statements) {
                        Ok(told) => {
                            number = told;
                            Ok(())
                        }
                        Err(AtOnce::Failed(failed)) => Err(failed),
                        Err(AtOnce::Elsewhere) => {
                            self.is_pooled = true;
                            return Err(CommitFailed::Stale);
                        }
                        Err(AtOnce::Stale) => {
                            session.memory.clear();
                            self.session = Some(session);
                            return Err(CommitFailed::Stale);
                        }
                    }
                }
                None => {
                    let places = if self.is_remembered { memory::places(known) } else { Basis::new() };
                    let mut reading: Vec<Request<'_>> = Vec::new();
                    if !places.is_empty() {
                        reading.push(Box::pin(async {
                            *seen.borrow_mut() = memory::versions(&session.client, &places).await?;
                            Ok(())
                        }));
                    }
                    if let Some(run) = session.memory.wants_keys(known).filter(|_| self.is_remembered) {
                        let (client, learnt) = (&session.client, &learnt);
                        reading.push(Box::pin(async move {
                            *learnt.borrow_mut() = memory::keys_of(client, run).await?;
                            Ok(())
                        }));
                    }
                    session.run(write::run(&session.client, reading, &statements, "COMMIT"))
                }
            }
        };
        self.is_pooled |= session.client.is_refused();
        if let Err(Failed::Statement(e)) = &done
            && e.code() == Some(&SqlState::IDLE_IN_TRANSACTION_SESSION_TIMEOUT)
        {
            self.standstill = Standstill::Long;
        }
        match done {
            Ok(()) => {
                self.standstill = Standstill::Short;
                self.is_acknowledged(&session.epoch);
                let known = take(&mut self.known);
                match self.locks {
                    // A sweep or a budget changes rows beyond those that it names.
                    Locks::Whole => session.memory.clear(),
                    Locks::Parts(_) => {
                        if let Some(learnt) = learnt.into_inner() {
                            session.memory.learn(learnt);
                        }
                        let seen = seen.into_inner();
                        session.memory.keep(known, (number, &seen), self.count, self.clock.boottime_ms());
                    }
                }
                self.session = Some(session);
                Ok(())
            }
            // The session is dropped, and the server rolls back where it has not yet.
            Err(Failed::Unsent(e)) => Err(CommitFailed::RolledBack(self.same.look(write_failure(e)))),
            Err(Failed::Statement(e)) if rolled_back(&e) => {
                Err(CommitFailed::RolledBack(self.same.look(write_failure(e))))
            }
            Err(Failed::Last(e)) if rolled_back(&e) => Err(CommitFailed::RolledBack(failure(e))),
            Err(Failed::Statement(e) | Failed::Last(e)) => Err(CommitFailed::Unclear(failure(e))),
        }
    }

    fn rollback(&mut self) {
        if self.recalled.take().is_some() {
            // No transaction has begun.
            return;
        }
        // A session that failed, or cannot roll back, is dropped, and the server rolls back for it.
        let failed = self.failed;
        let rolls_back = |s: &Session| s.run(s.client.client.batch_execute("ROLLBACK")).is_ok();
        self.session = self.session.take().filter(|s| !failed && rolls_back(s));
    }

    fn is_committed(&mut self, instance: InstanceNo, counter: i64) -> Option<bool> {
        loop {
            let told = self.ask(instance, counter);
            if let Some(told) = told {
                self.away = None;
                if told && let Some(session) = self.session.take() {
                    self.is_acknowledged(&session.epoch);
                    self.session = Some(session);
                }
                return Some(told);
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
