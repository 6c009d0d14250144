//! Takes snapshots while a run goes on: for a supervisor on a thread of its own, for a program at the ends of its steps.

use std::{
    fs,
    sync::{
        Arc,
        atomic::{AtomicI64, Ordering},
        mpsc,
    },
    thread,
};

use outlast_core::{
    engine::{Actor, Checkpoint, checkpoint::Name},
    journal::Payload,
    store::{Ask as _, Durability, Store},
    words::{Seq, Slot},
};
use outlast_files::{Change, Error, Id, Known, diff};
use outlast_server::door::Seen;
use tokio::sync::oneshot;

use super::{
    Asked, Files, Kept, Moment,
    history::{Effect, History},
};
use crate::{
    program::{error::FilesError, say::say},
    render::amount::some,
};

/// Most paths that a snapshot's entry names.
const MOST_PATHS: usize = 20;

/// Sender to the thread that takes a run's snapshots. The thread ends with the last clone.
#[derive(Clone)]
pub struct Keeper {
    orders: mpsc::Sender<Order>,
    /// Newest call that has its answer.
    answered: Arc<AtomicI64>,
}

enum Order {
    /// An attempt begins: its actor writes the entries from now on.
    Begin {
        actor: Actor,
        restore: Option<Target>,
        done: oneshot::Sender<Result<Vec<Effect>, FilesError>>,
    },
    Call(Seq),
    End {
        done: oneshot::Sender<()>,
    },
}

/// Files with which a run goes on, when they are not left as its last attempt left them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Target {
    /// Snapshot that is restored.
    pub snapshot: Id,
    /// Files as they are known before this resumption.
    pub known: Option<Known>,
    pub force: Vec<String>,
    /// Tool calls after the snapshot.
    pub undone: Vec<Effect>,
    /// Whether the newest snapshot was taken on another machine: what is here is not the run's.
    pub is_elsewhere: bool,
}

/// Occasion of a snapshot: a moment, with its call, or with the key of its step or item.
#[derive(Clone, Debug)]
pub struct Occasion {
    pub moment: Moment,
    pub call: Option<Seq>,
    pub key: Option<String>,
}

impl From<Moment> for Occasion {
    fn from(moment: Moment) -> Occasion {
        Occasion { moment, call: None, key: None }
    }
}

/// Taker of one run's snapshots.
pub struct Taker {
    answered: Arc<AtomicI64>,
    files: Files,
    store: Arc<dyn Store>,
    /// Writer of the entries, and the slot of the run in which it writes.
    actor: Option<(Actor, Slot)>,
    /// Newest snapshot, the object of its tree, and whether it is what an attempt that died left.
    last: Option<(Id, Id, bool)>,
    /// Message of the last failure, which is said once.
    failed: Option<String>,
    /// Whether the limit of bytes was met: nothing more is taken.
    is_full: bool,
    said_passed: bool,
}

impl Keeper {
    /// Starts the thread.
    pub fn start(files: Files, store: Arc<dyn Store>, history: &History) -> std::io::Result<Keeper> {
        let (sender, orders) = mpsc::channel();
        let answered = Arc::new(AtomicI64::new(0));
        let mut taker = Taker::new(files, store, history);
        taker.answered = answered.clone();
        thread::Builder::new().name("files".into()).spawn(move || taker.run(&orders))?;
        Ok(Keeper { orders: sender, answered })
    }

    /// Notes a new call: the tree is taken beside it. Never waits.
    pub fn saw(&self, seen: &Seen) {
        match seen {
            Seen::Opened { seq } => {
                // The thread has ended when the supervisor ends.
                let _ = self.orders.send(Order::Call(*seq));
            }
            Seen::Settled { seq, .. } => {
                self.answered.fetch_max(seq.0, Ordering::Relaxed);
            }
            _ => {}
        }
    }

    /// Takes the tree before an attempt's agent starts, and restores another where that was asked. Returns the tool calls
    /// whose files were taken away by that.
    ///
    /// Errors: nothing was restored, or not everything. A snapshot that fails is only said.
    pub async fn begin(&self, actor: Actor, restore: Option<Target>) -> Result<Vec<Effect>, FilesError> {
        let (done, taken) = oneshot::channel();
        let _ = self.orders.send(Order::Begin { actor, restore, done });
        taken.await.unwrap_or_else(|_| Err(std::io::Error::other("the taker of snapshots has ended").into()))
    }

    /// Takes the tree at an attempt's end. Call it while the attempt is open.
    pub async fn end(&self) {
        let (done, taken) = oneshot::channel();
        let _ = self.orders.send(Order::End { done });
        let _ = taken.await;
    }
}

impl Taker {
    pub fn new(mut files: Files, store: Arc<dyn Store>, history: &History) -> Taker {
        let last = history.newest().and_then(|step| {
            let id = step.kept.snapshot;
            Some((id, files.objects.snapshot(&id).ok()?.tree, history.is_left()))
        });
        let (answered, actor) = (Arc::default(), None);
        Taker { answered, files, store, actor, last, failed: None, is_full: false, said_passed: false }
    }

    /// Lets an actor write the entries from now on, in a slot of the run.
    pub fn join(&mut self, actor: Actor, slot: Slot) {
        self.actor = Some((actor, slot));
    }

    /// Takes the tree as an attempt begins, and restores another where that was asked. Returns the tool calls whose files were
    /// taken away by that.
    ///
    /// Errors: nothing was restored, or not everything. A snapshot that fails is only said.
    pub fn begin(&mut self, actor: Actor, restore: Option<Target>) -> Result<Vec<Effect>, FilesError> {
        self.join(actor, Slot::DRIVER);
        if !restore.as_ref().is_some_and(|target| target.is_elsewhere) {
            self.take(Moment::Begin);
        }
        restore.map_or(Ok(Vec::new()), |target| self.restore(target))
    }

    fn run(&mut self, orders: &mpsc::Receiver<Order>) {
        let mut next = orders.recv().ok();
        while let Some(order) = next.take() {
            match order {
                Order::Begin { actor, restore, done } => {
                    let _ = done.send(self.begin(actor, restore));
                }
                Order::Call(mut seq) => {
                    // Calls that came meanwhile share one snapshot, the newest one's.
                    while let Ok(order) = orders.try_recv() {
                        match order {
                            Order::Call(newer) => seq = newer,
                            other => {
                                next = Some(other);
                                break;
                            }
                        }
                    }
                    self.take(Occasion { moment: Moment::Call, call: Some(seq), key: None });
                }
                Order::End { done } => {
                    self.take(Moment::End);
                    let _ = done.send(());
                }
            }
            next = next.or_else(|| orders.recv().ok());
        }
    }

    /// Takes a snapshot; one that equals the last is not recorded. A failure is said, and the run goes on.
    pub fn take(&mut self, at: impl Into<Occasion>) {
        if self.is_full {
            return;
        }
        match self.try_take(at.into()) {
            Ok(()) => self.failed = None,
            Err(e) => {
                self.is_full = matches!(e, FilesError::Files(Error::OverLimit { .. }));
                let text = if self.is_full {
                    format!("{e}: no more snapshots are taken, and the run goes on")
                } else {
                    format!("a snapshot of the files could not be taken: {e}")
                };
                if self.failed.as_ref() != Some(&text) {
                    say(&text);
                }
                self.failed = Some(text);
            }
        }
    }

    fn try_take(&mut self, at: Occasion) -> Result<(), FilesError> {
        // Until the snapshot is in the journal, nothing else keeps its objects.
        let _held = self.files.objects.share()?;
        let taken = self.files.take()?;
        if !std::mem::replace(&mut self.said_passed, true) {
            for (why, (count, names)) in &taken.passed {
                let Some(why) = why.told() else { continue };
                let first = names.iter().take(3).cloned().collect::<Vec<_>>().join(", ");
                let more = if *count > 3 { ", …" } else { "" };
                say(&format!("{} not kept, as {why}: {first}{more}", some(*count as i64, "file")));
            }
        }
        // What a dead life left, and a step leaves as it is, is what the step left from then on.
        let is_same = |(_, tree, is_left): (Id, Id, bool)| {
            tree == taken.snapshot.tree && !(is_left && at.moment.is_an_end())
        };
        if self.last.is_some_and(is_same) {
            return Ok(());
        }
        self.record(taken.id, taken.snapshot.tree, at)
    }

    fn record(&mut self, snapshot: Id, tree: Id, at: Occasion) -> Result<(), FilesError> {
        let Some((actor, slot)) = self.actor else { return Ok(()) };
        let Occasion { moment, call, key } = at;
        let changes = match self.last {
            Some((last, ..)) => diff(&mut self.files.objects, &last, &snapshot)?,
            None => Vec::new(),
        };
        let changed = changes.len() as u64;
        let paths = changes.iter().take(MOST_PATHS).map(Change::shown).collect();
        let late = call.is_some_and(|seq| self.answered.load(Ordering::Relaxed) >= seq.0);
        let taken_in = self.files.own_name.clone();
        let kept =
            Kept { snapshot, moment, call: call.map(|seq| seq.0), key, changed, paths, late, taken_in };
        let value = Payload::encode(&serde_json::to_vec(&kept).unwrap_or_default());
        let checkpoint = Checkpoint { actor, slot, name: Name::files(), value };
        let store = self.store.as_ref();
        self.files.publish(store, &snapshot, || store.run_verb(checkpoint, Durability::Synced))?;
        let is_left = self.last.is_some() && !moment.is_an_end();
        self.last = Some((snapshot, tree, is_left));
        Ok(())
    }

    fn restore(&mut self, target: Target) -> Result<Vec<Effect>, FilesError> {
        self.files.bring(self.store.as_ref(), &[target.snapshot])?;
        if target.is_elsewhere {
            fs::create_dir_all(&self.files.root)?;
        }
        let asked =
            Asked { to: target.snapshot, known: target.known.as_ref(), only: &[], force: &target.force };
        let restored = self.files.restore(&asked)?;
        if restored.changed.is_empty() && restored.left.is_empty() && !target.is_elsewhere {
            return Ok(Vec::new());
        }
        let tree = self.files.objects.snapshot(&target.snapshot)?.tree;
        self.record(target.snapshot, tree, Moment::Restored.into())?;
        say(&format!(
            "{} restored; what was there before is kept as snapshot {}",
            some(restored.changed.len() as i64, "path"),
            &restored.saved.to_string()[..12]
        ));
        match restored.left.is_empty() {
            true => Ok(target.undone),
            false => Err(FilesError::Left { paths: restored.left }),
        }
    }
}
