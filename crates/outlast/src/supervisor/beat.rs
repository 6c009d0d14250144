//! The supervisor's heartbeat: one renewal a second for everything it holds, and what it learns by it.

use std::{
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
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
use tokio::sync::watch;

/// What the last renewal said.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Word {
    pub pulse: Option<Pulse>,
    /// We were declared dead meanwhile: the run has to be claimed again.
    pub dead: bool,
}

/// The beating heart.
pub struct Beat {
    node: Arc<Node>,
    run: RunNo,
    open: Mutex<Option<Open>>,
    word: watch::Sender<Word>,
}

/// The open attempt.
#[derive(Clone, Copy)]
struct Open {
    attempt: AttemptNo,
    /// Whose it is: we are another one after we were declared dead.
    instance: InstanceNo,
    /// Up to when its time is posted, by our monotonic clock.
    posted_ms: u64,
}

impl Beat {
    /// Beats until the runtime ends.
    pub fn start(node: Arc<Node>, run: RunNo) -> Arc<Beat> {
        let beat = Arc::new(Beat { node, run, open: Mutex::default(), word: watch::Sender::default() });
        tokio::spawn(beat.clone().go_on());
        beat
    }

    pub fn word(&self) -> watch::Receiver<Word> {
        self.word.subscribe()
    }

    /// An attempt of `instance` is open from now on.
    pub fn open(&self, attempt: AttemptNo, instance: InstanceNo) {
        let posted_ms = self.node.clock().monotonic_ms();
        *self.attempt() = Some(Open { attempt, instance, posted_ms });
        self.word.send_replace(Word::default());
    }

    /// It is over: the time that was not posted yet.
    pub fn close(&self) -> i64 {
        let now = self.node.clock().monotonic_ms();
        let open = self.attempt().take();
        open.map_or(0, |o| i64::try_from(now.saturating_sub(o.posted_ms)).unwrap_or(0))
    }

    /// Renews now: after a refusal, to learn at once whether the run is halted.
    pub async fn now(&self) {
        let open = {
            let now = self.node.clock().monotonic_ms();
            let mut open = self.attempt();
            let before = *open;
            if let Some(o) = open.as_mut() {
                o.posted_ms = now;
            }
            before.map(|o| (o, i64::try_from(now.saturating_sub(o.posted_ms)).unwrap_or(0)))
        };
        // The proxy may have learnt of the verdict before us, and have registered anew.
        if open.is_some_and(|(o, _)| o.instance != self.node.instance()) {
            self.word.send_modify(|word| word.dead = true);
        }
        let active: Vec<Active> =
            open.iter().map(|(o, ms)| Active { run: self.run, attempt: o.attempt, ms: *ms }).collect();
        match self.node.renew(active).await {
            Ok(pulses) => {
                if let Some(pulse) = pulses.into_iter().next() {
                    self.word.send_if_modified(|word| {
                        let new = Word { pulse: Some(pulse), dead: word.dead };
                        let changed = *word != new;
                        *word = new;
                        changed
                    });
                }
            }
            Err(Error::Engine(engine::Error::InstanceDead)) => {
                self.word.send_modify(|word| word.dead = true);
            }
            // The next one may succeed; nobody is judged by one missing beat.
            Err(e) => tracing::warn!(error = %e, "heartbeat not renewed"),
        }
    }

    async fn go_on(self: Arc<Self>) {
        let mut sweeps = 0u32;
        loop {
            tokio::time::sleep(HEARTBEAT).await;
            self.now().await;
            sweeps += 1;
            // Others' deaths concern this run little: now and then is enough.
            if sweeps.is_multiple_of(5) {
                let node = self.node.clone();
                if let Ok(Err(e)) = tokio::task::spawn_blocking(move || node.sweep()).await {
                    tracing::warn!(error = %e, "sweep failed");
                }
            }
        }
    }

    fn attempt(&self) -> std::sync::MutexGuard<'_, Option<Open>> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Word {
    /// Whether it ends an attempt.
    pub fn ends(&self) -> bool {
        let stops = |p: &Pulse| {
            p.stop_requested || p.status != outlast_core::run::status::Status::Running && !waits(p.status)
        };
        self.dead || self.pulse.as_ref().is_some_and(stops)
    }
}

/// Waits until the word says something that ends an attempt.
pub async fn ending(word: &mut watch::Receiver<Word>) -> Word {
    loop {
        {
            let now = word.borrow_and_update();
            if now.ends() {
                return now.clone();
            }
        }
        if word.changed().await.is_err() {
            std::future::pending::<()>().await;
        }
    }
}

fn waits(status: outlast_core::run::status::Status) -> bool {
    matches!(status, outlast_core::run::status::Status::Waiting | outlast_core::run::status::Status::Sleeping)
}

/// How long an agent has to end by itself after a halt: its next call is refused anyway.
pub const HALT_GRACE: Duration = Duration::from_secs(5);
