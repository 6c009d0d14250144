//! Messages of the supervisor to the person, apart from the agent's own output: on standard error, and to
//! attached viewers.

use std::sync::{
    Arc, OnceLock,
    atomic::{AtomicBool, Ordering},
};

use crate::program::log;
use outlast_process::attach::stage::Stage;

static STAGE: OnceLock<Arc<Stage>> = OnceLock::new();

/// Whether a client prints the messages on standard error instead of this process.
static BY_CLIENT: AtomicBool = AtomicBool::new(false);

/// Prints one line for the person, with the prefix `outlast: `, on standard error and to attached viewers.
pub fn say(text: &str) {
    line(&format!("outlast: {text}"));
}

/// Prints a line as [`say`] does, without the prefix.
pub fn line(text: &str) {
    if let Some(stage) = STAGE.get() {
        stage.say(text);
    }
    if !BY_CLIENT.load(Ordering::Relaxed) {
        log::line(text);
    }
}

/// Sends messages to the viewers of this stage too. `by_client`: a client prints them on its standard error instead of
/// this process.
pub fn on_stage(stage: Arc<Stage>, by_client: bool) {
    let _ = STAGE.set(stage);
    BY_CLIENT.store(by_client, Ordering::Relaxed);
}

/// Makes this process print messages on standard error itself again.
pub fn on_stderr() {
    BY_CLIENT.store(false, Ordering::Relaxed);
}

/// Tells viewers that the process ends with this exit code, and flushes all messages.
pub fn over(code: u8) {
    if let Some(stage) = STAGE.get() {
        stage.over(code);
    }
    log::flush();
}
