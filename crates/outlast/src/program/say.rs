//! What the supervisor says to the person, apart from the agent's own output: on standard error, and to those
//! who watch the run.

use std::sync::{
    Arc, OnceLock,
    atomic::{AtomicBool, Ordering},
};

use crate::program::log;
use outlast_process::attach::stage::Stage;

static STAGE: OnceLock<Arc<Stage>> = OnceLock::new();

/// Standard error is somebody else's: a client says it there.
static BY_CLIENT: AtomicBool = AtomicBool::new(false);

/// One line.
pub fn say(text: &str) {
    line(&format!("outlast: {text}"));
}

/// As [`say`], without our name before it.
pub fn line(text: &str) {
    if let Some(stage) = STAGE.get() {
        stage.say(text);
    }
    if !BY_CLIENT.load(Ordering::Relaxed) {
        log::line(text);
    }
}

/// Who watches on this stage is told too. `by_client`: one who watches says it on standard error.
pub fn on_stage(stage: Arc<Stage>, by_client: bool) {
    let _ = STAGE.set(stage);
    BY_CLIENT.store(by_client, Ordering::Relaxed);
}

/// Standard error is ours again.
pub fn on_stderr() {
    BY_CLIENT.store(false, Ordering::Relaxed);
}

/// The process ends with this exit code: those who watch are told, and nothing that was said is lost.
pub fn over(code: u8) {
    if let Some(stage) = STAGE.get() {
        stage.over(code);
    }
    log::flush();
}
