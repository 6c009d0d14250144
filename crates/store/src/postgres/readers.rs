//! A small pool of read connections, driven by its own thread.
//!
//! Callers block on a channel, never on the runtime, since they may be inside a runtime themselves.

use std::{
    cell::RefCell,
    pin::Pin,
    rc::Rc,
    sync::{Arc, Mutex, PoisonError, mpsc},
    thread::{Builder, JoinHandle},
};

use outlast_core::store::Error;
use tokio::{
    sync::{
        Semaphore,
        mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel},
    },
    task::{LocalSet, spawn_local},
};

use super::{address::Address, connect::Link, hints::Hints, same::Same};
use crate::process::Maker;

/// Largest number of connections. A server has about a hundred for all its clients.
const MOST: usize = 4;

type Job = Box<dyn FnOnce(&Rc<Pool>) + Send>;

/// Read of any result, so that tasks and channels are compiled once and not for each query.
trait Read: Send {
    fn on<'a>(&'a self, link: &'a Link) -> Pin<Box<dyn Future<Output = Result<(), Error>> + 'a>>;
}

/// Read whose result stands in `result` once it is done.
struct Kept<T, F> {
    read: F,
    result: Arc<Mutex<Option<T>>>,
}

impl<T: Send, F: AsyncFn(&Link) -> Result<T, Error> + Send> Read for Kept<T, F> {
    fn on<'a>(&'a self, link: &'a Link) -> Pin<Box<dyn Future<Output = Result<(), Error>> + 'a>> {
        Box::pin(async move {
            let result = (self.read)(link).await?;
            *self.result.lock().unwrap_or_else(PoisonError::into_inner) = Some(result);
            Ok(())
        })
    }
}

/// Handle of the readers' thread. Dropping it closes the connections.
pub struct Readers {
    jobs: Option<UnboundedSender<Job>>,
    thread: Option<JoinHandle<()>>,
    /// The database's address without its password, for messages.
    place: String,
    /// Process that started the thread, and whose connections these are.
    maker: Maker,
}

impl Readers {
    pub fn start(address: Address, same: Arc<Same>) -> std::io::Result<Readers> {
        let (jobs, queue) = unbounded_channel::<Job>();
        let place = address.place().to_owned();
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let thread = Builder::new().name("outlast-readers".into()).spawn(move || {
            let pool = Rc::new(Pool { address, same, idle: RefCell::default(), room: Semaphore::new(MOST) });
            LocalSet::new().block_on(&runtime, serve(queue, &pool));
        })?;
        Ok(Readers { jobs: Some(jobs), thread: Some(thread), place, maker: Maker::here() })
    }

    /// Returns whether a fork carried the handle into another process.
    pub fn is_forked(&self) -> bool {
        self.maker.is_forked()
    }

    /// Refuses the handle in a forked process. Errors: `OpenAtFork`.
    pub fn refuse_forked(&self) -> Result<(), Error> {
        self.maker.refuse_forked(|| self.place.clone())
    }

    /// Runs `read` on an idle connection and waits for the result.
    ///
    /// May call `read` twice: a connection that was cut while idle reports it only when it is used.
    /// Errors: also `OpenAtFork`.
    pub fn run<T: Send + 'static>(
        &self,
        read: impl AsyncFn(&Link) -> Result<T, Error> + Send + 'static,
    ) -> Result<T, Error> {
        let result = Arc::<Mutex<Option<T>>>::default();
        self.run_any(Box::new(Kept { read, result: Arc::clone(&result) }))?;
        let mut result = result.lock().unwrap_or_else(PoisonError::into_inner);
        result.take().ok_or(Error::Closed)
    }

    fn run_any(&self, read: Box<dyn Read>) -> Result<(), Error> {
        self.refuse_forked()?;
        let (answer, answered) = mpsc::sync_channel(1);
        let job: Job = Box::new(move |pool| {
            let pool = pool.clone();
            spawn_local(async move {
                // The caller is still waiting, so the channel is open.
                let _ = answer.send(pool.read(&*read).await);
            });
        });
        let sent = self.jobs.as_ref().map(|jobs| jobs.send(job));
        match sent {
            Some(Ok(())) => answered.recv().unwrap_or(Err(Error::Closed)),
            _ => Err(Error::Closed),
        }
    }

    /// Hears hints on a connection of its own, until the readers are dropped.
    pub fn hear(&self, hints: Arc<Hints>) {
        let job: Job = Box::new(move |pool| {
            let pool = pool.clone();
            spawn_local(async move { hints.listen(pool).await });
        });
        // A store that is closing hears nothing.
        let _ = self.jobs.as_ref().map(|jobs| jobs.send(job));
    }
}

impl Drop for Readers {
    fn drop(&mut self) {
        if self.maker.is_forked() {
            // The thread belongs to the other process, and so does what would wake it.
            std::mem::forget((self.jobs.take(), self.thread.take()));
        }
        self.jobs = None;
        if let Some(thread) = self.thread.take() {
            // A panic in the thread has already failed its reads.
            let _ = thread.join();
        }
    }
}

async fn serve(mut queue: UnboundedReceiver<Job>, pool: &Rc<Pool>) {
    while let Some(job) = queue.recv().await {
        job(pool);
    }
}

pub struct Pool {
    pub address: Address,
    same: Arc<Same>,
    idle: RefCell<Vec<Link>>,
    room: Semaphore,
}

impl Pool {
    async fn read(&self, read: &dyn Read) -> Result<(), Error> {
        let _room = self.room.acquire().await.map_err(|_| Error::Closed)?;
        let idle = self.idle.borrow_mut().pop();
        if let Some(client) = idle.filter(|c| !c.is_closed()) {
            match read.on(&client).await {
                // The connection may be at fault: the read is tried again on a fresh one.
                Err(Error::Unavailable { .. }) => {}
                out => return self.keep(client, out),
            }
        }
        let unreachable = |e| self.same.unreachable(&e, self.address.unreachable(&e.why));
        let client = self.address.connect().await.map_err(unreachable)?;
        if self.same.is_known() {
            self.same.compare(&client).await?;
        }
        let out = read.on(&client).await;
        self.keep(client, out)
    }

    fn keep(&self, client: Link, out: Result<(), Error>) -> Result<(), Error> {
        if !client.is_closed() {
            self.idle.borrow_mut().push(client);
        }
        out.map_err(|e| self.same.look(e))
    }
}
