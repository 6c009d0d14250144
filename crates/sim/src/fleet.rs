//! Servers of a scene without a desk: each has its own handle of the one store, and operations under way. They are
//! killed, cut off from the store, or left with a commit in doubt, and begin anew.

use std::sync::Arc;

use outlast_core::{
    call::membership::verdict,
    engine::Register,
    run::Identity,
    store::{Ask as _, Store as _, Ticket},
};
use outlast_store::group::Step;

use crate::{FaultStore, Scene, draw_fault, prelude::*, resolved};

/// One life of a server. `T`: what its operations are for.
pub struct Server<T> {
    index: usize,
    pub life: u64,
    pub is_up: bool,
    /// Instance of this life; `None` before it is registered.
    pub instance: Option<InstanceNo>,
    pub store: FaultStore,
    /// Operations under way, each with what it is for; `None` for a registration.
    pending: Vec<(Ticket, Option<T>)>,
}

/// Event of a server. Those with a life are dropped in a later one.
#[derive(Clone, Copy, Debug)]
pub enum ServerEvent {
    Start(usize),
    Commit(usize, u64),
    Reopen(usize, u64),
    Back(usize, u64),
    Kill(usize),
    /// The server cannot reach the store for so many milliseconds.
    StoreAway(usize, u64),
    DeclareDead(InstanceNo),
}

impl<T> Server<T> {
    pub fn new(index: usize, life: u64, disk: Arc<MemoryStore>) -> Server<T> {
        let store = FaultStore::new(disk, None);
        Server { index, life, is_up: false, instance: None, store, pending: Vec::new() }
    }

    pub fn queue(
        &mut self,
        op: impl Into<Op>,
        durability: Durability,
        then: impl Into<Option<T>>,
        now_ms: u64,
    ) {
        let ticket = self.store.submit(op.into(), durability, now_ms);
        self.pending.push((ticket, then.into()));
    }

    pub fn register(&mut self, now_ms: u64) {
        (self.is_up, self.instance) = (true, None);
        let (pid, start_time) = (self.index as u32, self.life);
        let identity = Identity { host: "sim".into(), pid, start_time, ..Identity::default() };
        self.queue(Register { identity }, Durability::Synced, None::<T>, now_ms);
    }

    pub fn has_pending(&self) -> bool {
        !self.pending.is_empty()
    }
}

/// Scene with servers.
pub trait Fleet: Scene<Event: From<ServerEvent>> {
    /// Purpose of an operation.
    type Then;
    /// Time without a heartbeat after which a server is declared dead, in milliseconds.
    const LEASE_MS: u64;
    /// Name of what the servers share, in the marks of a story.
    const NAME: &'static str;

    fn servers(&mut self) -> &mut Vec<Server<Self::Then>>;

    /// Handles the outcome of an operation.
    fn did(&mut self, server: usize, then: Self::Then, result: Result<Outcome, Error>);

    /// Handles that the server is registered.
    fn registered(&mut self, server: usize);

    /// Handles that the server has begun anew, without what was not written. `is_dead`: in another life.
    fn began_anew(&mut self, server: usize, is_dead: bool);

    /// Notes that something goes wrong until this time, in simulated milliseconds.
    fn troubled(&mut self, until_ms: u64);

    fn on_server(&mut self, event: ServerEvent) {
        let now_ms = self.engine().now_ms();
        match event {
            ServerEvent::Start(no) => self.server(no).register(now_ms),
            ServerEvent::Kill(no) => self.kill(no),
            ServerEvent::StoreAway(no, ms) => {
                self.engine().say(|| format!("server {no} cannot reach the store for {ms} ms"));
                self.troubled(now_ms + ms);
                let server = self.server(no);
                server.store.line.lock().away = true;
                let life = server.life;
                self.engine().after(ms, ServerEvent::Back(no, life));
            }
            ServerEvent::DeclareDead(instance) => self.declare_dead(instance, false),
            ServerEvent::Commit(no, life) | ServerEvent::Reopen(no, life) | ServerEvent::Back(no, life)
                if self.server(no).life != life => {}
            ServerEvent::Commit(no, _) => self.commit(no),
            ServerEvent::Back(no, _) => self.server(no).store.line.lock().away = false,
            ServerEvent::Reopen(no, _) => {
                self.gives_up(no, Self::LEASE_MS);
                let server = self.server(no);
                server.store.reopen();
                let lost = std::mem::take(&mut server.pending);
                server.register(now_ms);
                lost.into_iter()
                    .filter_map(|(_, then)| then)
                    .for_each(|then| self.did(no, then, Err(Error::Closed)));
                self.began_anew(no, false);
            }
        }
        if let ServerEvent::Start(no) | ServerEvent::Reopen(no, _) = event {
            self.commit_soon(no);
        }
    }

    fn server(&mut self, no: usize) -> &mut Server<Self::Then> {
        &mut self.servers()[no]
    }

    fn commit_soon(&mut self, no: usize) {
        if self.server(no).has_pending() {
            let (life, ms) = (self.server(no).life, self.engine().rng.between(1, 8));
            self.engine().after(ms, ServerEvent::Commit(no, life));
        }
    }

    /// Runs the server's next group. A crash in the middle ends the server.
    fn commit(&mut self, no: usize) {
        let Some(last) = self.server(no).pending.len().checked_sub(1) else { return };
        let engine = self.engine();
        let (now_ms, is_faulty) = (engine.now_ms(), engine.rng.chance(engine.faults));
        let at = engine.rng.between(0, last as u64) as usize;
        let faults = if is_faulty { draw_fault(&engine.rng, at) } else { Vec::new() };
        let server = self.server(no);
        server.store.line.lock().plan = faults;
        while server.store.step(now_ms).0 == Step::Ran {}
        let line = server.store.line.lock();
        let (has_failed, has_crashed) = (line.failed, line.crashed);
        drop(line);
        if has_failed {
            self.troubled(now_ms);
        }
        if has_crashed {
            return self.kill(no);
        }
        let mut is_in_doubt = false;
        for (mut ticket, then) in std::mem::take(&mut self.server(no).pending) {
            match (then, resolved(&mut ticket)) {
                (then, None) => self.server(no).pending.push((ticket, then)),
                (None, Some(Ok(Outcome::Registered(instance)))) => {
                    self.server(no).instance = Some(instance);
                    self.registered(no);
                }
                (None, Some(_)) => is_in_doubt = true,
                (Some(then), Some(result)) => {
                    is_in_doubt |= matches!(result, Err(Error::CommitUnknown { .. } | Error::Refused { .. }));
                    self.did(no, then, result);
                }
            }
        }
        let life = self.server(no).life;
        if is_in_doubt {
            self.troubled(now_ms);
            self.engine().saw(&format!("{} in doubt", Self::NAME));
            self.engine().after(2_000, ServerEvent::Reopen(no, life));
        }
        if self.server(no).has_pending() {
            self.engine().after(100, ServerEvent::Commit(no, life));
        }
    }

    /// Ends a server with all that it had in memory. It is started again later.
    fn kill(&mut self, no: usize) {
        if !self.server(no).is_up {
            return;
        }
        let now_ms = self.engine().now_ms();
        self.engine().say(|| format!("server {no} is dead"));
        self.troubled(now_ms);
        let noticed_ms = self.engine().rng.between(2_500, Self::LEASE_MS);
        self.gives_up(no, noticed_ms);
        let (life, disk) = (self.server(no).life + 1, self.engine().disk.clone());
        *self.server(no) = Server::new(no, life, disk);
        let down_ms = self.engine().rng.between(200, 12_000);
        self.engine().after(down_ms, ServerEvent::Start(no));
        self.began_anew(no, true);
    }

    /// Lets the server's instance be declared dead by one of the others, in so many milliseconds.
    fn gives_up(&mut self, no: usize, ms: u64) {
        if let Some(instance) = self.server(no).instance {
            self.engine().after(ms, ServerEvent::DeclareDead(instance));
        }
    }

    fn declare_dead(&mut self, instance: InstanceNo, left: bool) {
        let (now_ms, disk) = (self.engine().now_ms(), self.engine().disk.clone());
        let row = disk.instance(instance).ok().flatten();
        if let Some(verdict) = row.and_then(|row| verdict(&row, left)) {
            self.troubled(now_ms);
            let _ = disk.ask(verdict, Durability::Synced).wait();
        }
    }
}
