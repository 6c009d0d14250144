//! The supervisor's heartbeat: one renewal a second for everything it holds, and what it learns by it.

use std::{
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use outlast_core::{
    engine::{self, renew::Active},
    id::{AttemptNo, RunNo},
    op::Pulse,
    store::Error,
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
    /// The open attempt, and up to when its time is posted.
    open: Mutex<Option<(AttemptNo, u64)>>,
    word: watch::Sender<Word>,
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

    /// An attempt is open from now on.
    pub fn open(&self, attempt: AttemptNo) {
        let now = self.node.clock().monotonic_ms();
        *self.attempt() = Some((attempt, now));
        self.word.send_replace(Word::default());
    }

    /// It is over: the time that was not posted yet.
    pub fn close(&self) -> i64 {
        let now = self.node.clock().monotonic_ms();
        self.attempt().take().map_or(0, |(_, since)| i64::try_from(now.saturating_sub(since)).unwrap_or(0))
    }

    /// Renews now: after a refusal, to learn at once whether the run is halted.
    pub async fn now(&self) {
        let active: Vec<Active> = {
            let now = self.node.clock().monotonic_ms();
            let mut open = self.attempt();
            open.iter_mut()
                .map(|(attempt, since)| {
                    let ms = i64::try_from(now.saturating_sub(*since)).unwrap_or(0);
                    *since = now;
                    Active { run: self.run, attempt: *attempt, ms }
                })
                .collect()
        };
        let was_open = !active.is_empty();
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
            Err(Error::Engine(engine::Error::InstanceDead)) if was_open => {
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

    fn attempt(&self) -> std::sync::MutexGuard<'_, Option<(AttemptNo, u64)>> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Waits until the word says something that ends an attempt.
pub async fn ending(word: &mut watch::Receiver<Word>) -> Word {
    loop {
        {
            let now = word.borrow_and_update();
            let stops = now.pulse.as_ref().is_some_and(|p| {
                p.stop_requested || p.status != outlast_core::status::Status::Running && !waits(p.status)
            });
            if now.dead || stops {
                return now.clone();
            }
        }
        if word.changed().await.is_err() {
            std::future::pending::<()>().await;
        }
    }
}

fn waits(status: outlast_core::status::Status) -> bool {
    matches!(status, outlast_core::status::Status::Waiting | outlast_core::status::Status::Sleeping)
}

/// How long an agent has to end by itself after a halt: its next call is refused anyway.
pub const HALT_GRACE: Duration = Duration::from_secs(5);
