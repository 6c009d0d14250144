//! Stage of one life after another: where the processes are, the recorded answers that they get, and the death that one of
//! these boundaries brings.
//!
//! Boundaries of calls at the provider are exact, because this process is the provider. All others are exact, because the
//! process that commits one waits for this one (`program::stops`).

use std::{
    collections::HashMap,
    io::{self, BufRead as _, BufReader, Write as _},
    os::unix::net::{UnixListener, UnixStream},
    path::Path,
    sync::Arc,
    thread,
};

use outlast_mock::recorded::{Asked, Said, Tape};
use parking_lot::{Mutex, MutexGuard, RwLock, RwLockReadGuard};

use super::{
    death::Below,
    live::Live,
    recording::{Found, Recording},
};
use crate::{
    cli::crashtest::{Boundary, Death, Kind},
    program::stops::{Moment, Stop},
};

/// Stage, shared by the connections of the processes on it.
pub struct Stage {
    /// Recording, to which live answers are added.
    recording: RwLock<Recording>,
    /// `None`: a request that is not in the recording has no answer.
    live: Option<Live>,
    below: Below,
    scene: Mutex<Scene>,
}

/// Events since the last fresh copy.
#[derive(Debug, Default)]
pub struct Scene {
    /// Process at the top of the lives: `outlast run`, or a bare command.
    pub top: u32,
    /// Death that is to come; `None` once it has come, and in clean runs.
    pub due: Option<Death>,
    pub died: bool,
    /// Boundaries in their order, each with the name of its step, tool or item.
    pub passed: Vec<(Boundary, String)>,
    counts: HashMap<Moment, u32>,
    /// Number of calls that the provider was asked for.
    pub bought: u32,
    /// Number of them that no recorded call answers.
    pub beyond: u32,
    /// Number of calls that were open when the death came. Each may be bought again.
    pub in_flight: u32,
    /// Number of requests to which each recorded call was the answer.
    served: HashMap<usize, u32>,
    /// Whether a request had a note to the model of a resumed agent.
    pub noted: bool,
    /// Whether no recording has what a model says to such a note: it tells of tool calls, or of an answer that was kept in part.
    pub told: bool,
    /// Requests that are not in the recording, in words.
    pub diverged: Vec<String>,
    /// Error of the death itself.
    pub failed: Option<io::Error>,
}

impl Stage {
    pub fn new(recording: Recording, live: Option<Live>, below: Below) -> Arc<Stage> {
        Arc::new(Stage { recording: RwLock::new(recording), live, below, scene: Mutex::default() })
    }

    pub fn recording(&self) -> RwLockReadGuard<'_, Recording> {
        self.recording.read()
    }

    /// Asks the real provider what the recording does not have, and adds the answer to it. Errors: why there is none.
    fn answered_live(&self, asked: &Asked) -> Result<usize, String> {
        let live = self.live.as_ref().ok_or_else(String::new)?;
        let answer = live.answer(asked).map_err(|why| format!("; live: {why}"))?;
        let mut recording = self.recording.write();
        Ok(recording.add(&asked.body, answer))
    }

    pub fn scene(&self) -> MutexGuard<'_, Scene> {
        self.scene.lock()
    }

    /// Listens at a socket for processes that stop at boundaries. Each connection has a thread, until its process ends.
    pub fn listen(self: &Arc<Stage>, socket: &Path) -> io::Result<()> {
        let listener = UnixListener::bind(socket)?;
        let stage = self.clone();
        thread::Builder::new().name("crashtest".into()).spawn(move || {
            for stream in listener.incoming().map_while(Result::ok) {
                let stage = stage.clone();
                thread::spawn(move || stage.hear(stream));
            }
        })?;
        Ok(())
    }

    fn hear(&self, stream: UnixStream) {
        let mut stream = BufReader::new(stream);
        let mut line = String::new();
        while stream.read_line(&mut line).is_ok_and(|read| read > 0) {
            if let Ok(stop) = serde_json::from_str::<Stop>(&line) {
                self.scene().reached(stop.moment, stop.what, &self.below);
            }
            // Whoever was killed meanwhile hears no answer.
            let _ = stream.get_mut().write_all(b"\n");
            line.clear();
        }
    }
}

impl Scene {
    /// Returns the scene of a life to which `death` comes.
    pub fn with(death: Option<Death>) -> Scene {
        Scene { due: death, ..Scene::default() }
    }

    /// Returns whether a death has come from which there is a way on.
    pub fn may_go_on(&self) -> bool {
        self.died && self.diverged.is_empty() && !self.told
    }

    /// Counts a boundary, and brings the death that is due there. Whoever else stands at a boundary waits for it.
    fn reached(&mut self, moment: Moment, what: String, below: &Below) {
        let number = self.counts.entry(moment).or_default();
        *number += 1;
        let at = Boundary { moment, number: *number };
        if !self.died {
            self.passed.push((at, what));
        }
        if let Some(death) = self.due.filter(|due| due.at == at) {
            self.due = None;
            self.died = true;
            self.in_flight = self.count(Moment::CallReserved).saturating_sub(self.count(Moment::CallStored));
            self.failed = below.strike(death.kind, self.top).err();
        }
    }

    fn count(&self, moment: Moment) -> u32 {
        self.counts.get(&moment).copied().unwrap_or_default()
    }
}

impl Tape for Stage {
    fn answer(&self, asked: &Asked) -> Said {
        let mut scene = self.scene();
        let refused = |status: u16, why: &str| {
            Said {
            call: None,
            status,
            media_type: "application/json",
            body: serde_json::json!({"error": {"message": why, "type": "invalid_request_error", "code": "not_recorded"}})
                .to_string()
                .into(),
        }
        };
        if !asked.is_post {
            return refused(404, "a crash test has the recorded calls alone");
        }
        scene.bought += 1;
        let call = scene.bought;
        scene.reached(Moment::CallLeft, String::new(), &self.below);
        let Found { index, is_noted, is_told } =
            self.recording().find(&asked.body, |index| scene.served.get(&index).copied().unwrap_or(0));
        scene.noted |= is_noted;
        scene.told |= is_told && self.live.is_none();
        if scene.told {
            scene.failed = self.below.strike(Kind::Machine, 0).err();
            return refused(400, "no recording has what a model says to this note of a resumption");
        }
        let found = match index {
            Some(index) => Ok(index),
            None => {
                scene.beyond += 1;
                // An answer takes its time, in which others of the scene go on.
                drop(scene);
                let answered = self.answered_live(asked);
                scene = self.scene();
                answered
            }
        };
        let index = match found {
            Ok(index) => index,
            Err(why) => {
                scene.diverged.push(self.recording().divergence(call, &asked.body) + &why);
                // Whatever comes of an answer that nobody has is no finding.
                scene.failed = self.below.strike(Kind::Machine, 0).err();
                return refused(400, "this request is not in the recording of the crash test");
            }
        };
        *scene.served.entry(index).or_default() += 1;
        let recording = self.recording();
        let recorded = &recording.calls[index];
        Said {
            call: Some(call),
            status: 200,
            media_type: recorded.media_type(),
            body: recorded.answer.clone().into(),
        }
    }

    fn half_sent(&self, _: u32) {
        self.scene().reached(Moment::CallHalf, String::new(), &self.below);
    }
}
