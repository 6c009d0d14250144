//! A test that plays a second part in a child process of its own.

use std::{
    io::Write as _,
    process::{Command, Stdio},
};

/// Names the part of a test that is played in the child.
const PART: &str = "OUTLAST_TEST_PART";

/// Returns the part of a test that this process is to play, if it is the child; `None` in the test itself.
pub fn part() -> Option<String> {
    std::env::var(PART).ok()
}

/// Command line of the child that runs the test `name` in its other part.
pub fn argv(name: &str) -> Vec<String> {
    let program = std::env::current_exe().unwrap().to_str().unwrap().to_owned();
    vec![program, name.into(), "--exact".into(), "--nocapture".into(), "--test-threads=1".into()]
}

/// A child to be started with `argv`, that plays `part`.
pub fn command(argv: &[String], part: &str) -> Command {
    let mut command = Command::new(&argv[0]);
    command.args(&argv[1..]).env(PART, part).stdin(Stdio::null());
    command
}

/// Says a line to the parent, past the harness that captures what tests print.
pub fn say(line: &str) {
    let mut out = std::io::stdout().lock();
    writeln!(out, "{line}").unwrap();
    out.flush().unwrap();
}
