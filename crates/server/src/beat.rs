//! Heartbeat of an instance that drives attempts: one renewal a second for all of them, and the orders that it learns by
//! that.

use std::{collections::HashMap, sync::Arc};

use outlast_core::{
    engine::{self, Active, ActiveTime, Pulse},
    store::Error,
    words::{AttemptNo, InstanceNo, RunNo},
};
use parking_lot::Mutex;

use crate::node::{HEARTBEAT, Node};

/// Attempts that are open under one instance, all of which its heartbeat renews.
#[derive(Default)]
pub struct Beat {
    open: Mutex<HashMap<(RunNo, AttemptNo), Open>>,
}

struct Open {
    instance: InstanceNo,
    /// Measure of the attempt's active time; `None` if a supervisor posts that time.
    active: Option<ActiveTime>,
    pulse: Option<Pulse>,
    lost: bool,
}

/// Order to an attempt, according to the last heartbeat.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Word {
    GoOn,
    /// A person asked the run to stop.
    Stop,
    /// This process was declared dead. Another one may drive the run.
    Lost,
    /// This process could not send a heartbeat for a whole lease. Others may have declared it dead.
    Away,
}

impl Word {
    /// Returns the order's name, as the client of a session reads it.
    pub fn name(self) -> &'static str {
        match self {
            Word::GoOn => "go_on",
            Word::Stop => "stop",
            Word::Lost => "lost",
            Word::Away => "away",
        }
    }
}

impl Beat {
    /// Adds an open attempt to the heartbeat. `driven`: this process counts its active time, and no supervisor does.
    pub fn open(&self, node: &Node, run: RunNo, attempt: AttemptNo, instance: InstanceNo, driven: bool) {
        let active = driven.then(|| ActiveTime::begin(node.clock().monotonic_ms()));
        self.open.lock().insert((run, attempt), Open { instance, active, pulse: None, lost: false });
    }

    /// Removes an attempt from the heartbeat. Returns its active time in milliseconds that was not posted yet.
    pub fn close(&self, node: &Node, run: RunNo, attempt: AttemptNo) -> i64 {
        let now = node.clock().monotonic_ms();
        let open = self.open.lock().remove(&(run, attempt));
        open.and_then(|open| open.active).map_or(0, |mut active| active.take(now))
    }

    pub fn word(&self, node: &Node, run: RunNo, attempt: AttemptNo) -> Word {
        match self.open.lock().get(&(run, attempt)) {
            Some(open) if open.lost => Word::Lost,
            Some(Open { pulse: Some(pulse), .. }) if pulse.stop_requested => Word::Stop,
            _ if !node.may_open() => Word::Away,
            _ => Word::GoOn,
        }
    }

    /// Sends heartbeats until the runtime ends.
    pub async fn go_on(self: Arc<Self>, node: Arc<Node>) {
        let mut sweeps = 0u32;
        loop {
            tokio::time::sleep(HEARTBEAT).await;
            // The next one may succeed: one missed heartbeat decides nothing.
            let _ = self.now(&node).await;
            sweeps = sweeps.wrapping_add(1);
            if sweeps.is_multiple_of(5) {
                let node = node.clone();
                // A failed one is logged, and the next one may succeed.
                let _ = tokio::task::spawn_blocking(move || node.sweep()).await;
            }
        }
    }

    /// Sends a heartbeat, which posts the attempts' active time. Returns what the store says of their runs.
    pub async fn now(&self, node: &Node) -> Result<Vec<Pulse>, Error> {
        let now = node.clock().monotonic_ms();
        let me = node.instance();
        let active: Vec<Active> = self
            .open
            .lock()
            .iter_mut()
            .filter_map(|((run, attempt), open)| {
                // A proxy in this process may have learnt of the verdict first, and registered a new instance.
                open.lost |= open.instance != me;
                let ms = open.active.as_mut()?.take(now);
                (!open.lost).then_some(Active { run: *run, attempt: *attempt, ms })
            })
            .collect();
        let renewed = node.renew(active.clone()).await;
        match &renewed {
            Ok(pulses) => {
                let mut attempts = self.open.lock();
                for pulse in pulses {
                    for ((run, _), open) in attempts.iter_mut() {
                        if *run == pulse.run {
                            open.pulse = Some(pulse.clone());
                        }
                    }
                }
            }
            Err(Error::Engine(engine::Error::InstanceDead)) => {
                self.open.lock().values_mut().for_each(|open| open.lost = true);
            }
            // What is in doubt may have been posted.
            Err(Error::CommitUnknown { .. }) => {}
            Err(_) => self.give_back(&active),
        }
        renewed
    }

    fn give_back(&self, unposted: &[Active]) {
        let mut attempts = self.open.lock();
        for Active { run, attempt, ms } in unposted {
            let open = attempts.get_mut(&(*run, *attempt)).and_then(|open| open.active.as_mut());
            open.into_iter().for_each(|active| active.give_back(*ms));
        }
    }
}
