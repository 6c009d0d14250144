//! The process's heartbeat: one renewal a second for all attempts it drives, and what it learns by it.

use std::{
    collections::HashMap,
    os::unix::fs::MetadataExt as _,
    path::{Path, PathBuf},
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
};

use outlast_core::{
    engine::{
        self,
        run::renew::{Active, Pulse},
    },
    store::Error,
    words::id::{AttemptNo, InstanceNo, RunNo},
};
use outlast_server::node::{HEARTBEAT, Node};

/// The attempts this process has open.
pub struct Beat {
    open: Mutex<HashMap<(RunNo, AttemptNo), Open>>,
    /// The store's file, and which one it was.
    file: Option<(PathBuf, Option<FileId>)>,
    vanished: AtomicBool,
}

/// Device and inode.
type FileId = (u64, u64);

struct Open {
    instance: InstanceNo,
    /// Up to when its time is posted, by our monotonic clock. None: its supervisor posts it.
    posted_ms: Option<u64>,
    pulse: Option<Pulse>,
    lost: bool,
}

/// What an attempt is told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Word {
    GoOn,
    /// A person asked the run to stop.
    Stop,
    /// This process was declared dead, and another may drive the run.
    Lost,
    /// The store's file was removed or replaced: what is written to it is lost with this process.
    Vanished,
}

impl Beat {
    /// The heart of a store's only, or one of the file `file`.
    pub fn new(file: Option<PathBuf>) -> Beat {
        let file = file.map(|path| {
            let id = id_of(&path);
            (path, id)
        });
        Beat { open: Mutex::default(), file, vanished: AtomicBool::new(false) }
    }

    /// An attempt is open from now on.
    pub fn open(&self, node: &Node, run: RunNo, attempt: AttemptNo, instance: InstanceNo, driven: bool) {
        let posted_ms = driven.then(|| node.clock().monotonic_ms());
        self.attempts().insert((run, attempt), Open { instance, posted_ms, pulse: None, lost: false });
    }

    /// It is over: the milliseconds that were not posted yet.
    pub fn close(&self, node: &Node, run: RunNo, attempt: AttemptNo) -> i64 {
        let now = node.clock().monotonic_ms();
        let open = self.attempts().remove(&(run, attempt));
        let since = open.and_then(|o| o.posted_ms).map_or(0, |posted| now.saturating_sub(posted));
        i64::try_from(since).unwrap_or(0)
    }

    pub fn word(&self, run: RunNo, attempt: AttemptNo) -> Word {
        if self.vanished.load(Ordering::Relaxed) {
            return Word::Vanished;
        }
        match self.attempts().get(&(run, attempt)) {
            Some(open) if open.lost => Word::Lost,
            Some(Open { pulse: Some(pulse), .. }) if pulse.stop_requested => Word::Stop,
            _ => Word::GoOn,
        }
    }

    /// Beats until the runtime ends.
    pub async fn go_on(self: Arc<Self>, node: Arc<Node>) {
        let mut sweeps = 0u32;
        loop {
            tokio::time::sleep(HEARTBEAT).await;
            self.now(&node).await;
            sweeps = sweeps.wrapping_add(1);
            if sweeps.is_multiple_of(5) {
                let node = node.clone();
                if let Ok(Err(e)) = tokio::task::spawn_blocking(move || node.sweep()).await {
                    tracing::warn!(error = %e, "sweep failed");
                }
            }
        }
    }

    /// Whether the store's file still is the one that was opened. What once vanished stays so.
    pub fn is_there(&self) -> bool {
        // An open file outlives its name: SQLite alone would write on, to nobody's use.
        if let Some((path, id)) = &self.file
            && id_of(path) != *id
        {
            self.vanished.store(true, Ordering::Relaxed);
        }
        !self.vanished.load(Ordering::Relaxed)
    }

    async fn now(&self, node: &Node) {
        self.is_there();
        let now = node.clock().monotonic_ms();
        let me = node.instance();
        let active: Vec<Active> = self
            .attempts()
            .iter_mut()
            .filter_map(|((run, attempt), open)| {
                // A proxy in this process may have learnt of the verdict first, and registered anew.
                open.lost |= open.instance != me;
                let ms = i64::try_from(now.saturating_sub(open.posted_ms?)).unwrap_or(0);
                open.posted_ms = Some(now);
                (!open.lost).then_some(Active { run: *run, attempt: *attempt, ms })
            })
            .collect();
        match node.renew(active).await {
            Ok(pulses) => {
                let mut attempts = self.attempts();
                for pulse in pulses {
                    for ((run, _), open) in attempts.iter_mut() {
                        if *run == pulse.run {
                            open.pulse = Some(pulse.clone());
                        }
                    }
                }
            }
            Err(Error::Engine(engine::Error::InstanceDead)) => {
                self.attempts().values_mut().for_each(|open| open.lost = true);
            }
            // The next one may succeed; nobody is judged by one missing beat.
            Err(e) => tracing::warn!(error = %e, "heartbeat not renewed"),
        }
    }

    fn attempts(&self) -> std::sync::MutexGuard<'_, HashMap<(RunNo, AttemptNo), Open>> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn id_of(path: &Path) -> Option<FileId> {
    std::fs::metadata(path).ok().map(|meta| (meta.dev(), meta.ino()))
}
