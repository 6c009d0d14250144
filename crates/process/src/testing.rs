//! Shared helpers for tests with real processes.

use std::{
    collections::BTreeMap,
    fs::File,
    io::{Read, Seek, SeekFrom, Write},
    os::fd::AsFd,
    path::{Path, PathBuf},
    process::Stdio,
    thread,
    time::{Duration, Instant},
};

use rustix::event::{PollFd, PollFlags};

use crate::spawn::{Command, Limits, Output, Stdin};

/// Longest wait of a test. Nothing here takes a second, but on a loaded machine it may.
const PATIENCE: Duration = Duration::from_secs(60);
const INNER: &str = "OUTLAST_TEST_INNER";

/// `sh -c script` with this process's PATH and nothing else.
pub fn sh(script: &str) -> Command {
    let path = std::env::var_os("PATH").unwrap();
    Command {
        argv: ["sh", "-c", script].map(std::ffi::OsString::from).to_vec(),
        cwd: std::env::temp_dir(),
        umask: 0o022,
        env: BTreeMap::from([("PATH".into(), path)]),
        stdin: Stdin::Null,
        stdout: Output::Inherit,
        stderr: Output::Inherit,
        terminal: None,
        limits: Limits::default(),
    }
}

/// Polls `ask` until it returns a value. Panics after a minute; `what` names the awaited fact.
#[track_caller]
pub fn until<T>(what: &str, mut ask: impl FnMut() -> Option<T>) -> T {
    let started = Instant::now();
    loop {
        if let Some(answer) = ask() {
            return answer;
        }
        assert!(started.elapsed() < PATIENCE, "waited {PATIENCE:?} in vain until {what}");
        thread::park_timeout(Duration::from_millis(2));
    }
}

/// Waits for the process behind a pidfd to end. Panics after a minute.
#[track_caller]
pub fn until_ended(pidfd: &impl AsFd) {
    let patience = rustix::event::Timespec { tv_sec: PATIENCE.as_secs() as i64, tv_nsec: 0 };
    let ended = rustix::event::poll(&mut [PollFd::new(pidfd, PollFlags::IN)], Some(&patience)).unwrap();
    assert_eq!(ended, 1, "the process did not end in {PATIENCE:?}");
}

/// Creates an unlinked file with `text`, whose position is at the end.
pub fn file_with(text: &str) -> File {
    let mut file = tempfile::tempfile().unwrap();
    file.write_all(text.as_bytes()).unwrap();
    assert_ne!(file.stream_position().unwrap(), 0);
    file
}

/// Writes a file that other processes wait for, in one step, so that none sees it half written.
pub fn publish(file: &Path, text: &str) {
    let unfinished = file.with_extension("unfinished");
    std::fs::write(&unfinished, text).unwrap();
    std::fs::rename(unfinished, file).unwrap();
}

/// Runs a test's body in a process of its own, which can be subreaper, catch signals or end all its descendants
/// without touching the tests beside it. `test` is the test's full path.
#[track_caller]
pub fn in_own_process(test: &str, body: impl FnOnce()) {
    if inner_file().is_some() {
        return body();
    }
    run(test, inner(test, Path::new("-")));
}

/// Runs a test's body as [`in_own_process`] does, in a process that `sh` starts at the end of `script`.
#[track_caller]
pub fn in_process_under(test: &str, script: &str, body: impl FnOnce()) {
    if inner_file().is_some() {
        return body();
    }
    let direct = inner(test, Path::new("-"));
    let mut command = std::process::Command::new("sh");
    command.args(["-c", &format!("{script}; exec \"$@\""), "sh"]);
    command.arg(direct.get_program()).args(direct.get_args()).env(INNER, "-");
    run(test, command);
}

#[track_caller]
fn run(test: &str, mut command: std::process::Command) {
    // A file, not a pipe: a process left over from a failed test would hold a pipe open.
    let mut output = tempfile::tempfile().unwrap();
    command.stdin(Stdio::null()).stdout(output.try_clone().unwrap()).stderr(output.try_clone().unwrap());
    let status = command.status().unwrap();
    let mut text = String::new();
    output.seek(SeekFrom::Start(0)).unwrap();
    output.read_to_string(&mut text).unwrap();
    assert!(
        status.success() && text.contains("1 passed"),
        "{test} failed in its own process ({status}):\n{text}"
    );
}

/// Starts the test `test` once more, as a process that is to be killed. In it, `inner_file` returns `file`.
pub fn start_inner(test: &str, file: &Path) -> std::process::Child {
    inner(test, file).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap()
}

/// Returns the file that a test's inner process was started with; `None` in the test's first process.
pub fn inner_file() -> Option<PathBuf> {
    std::env::var_os(INNER).map(PathBuf::from)
}

fn inner(test: &str, file: &Path) -> std::process::Command {
    let (_crate, name) = test.split_once("::").unwrap();
    let mut command = std::process::Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", name, "--nocapture"]).env(INNER, file);
    command
}

/// Generator of scripts that start one another in all the ways by which a process can get away from its parent.
pub struct Forest<'a> {
    state: u64,
    dir: &'a Path,
    /// Number of scripts written so far.
    pub planted: usize,
}

impl Forest<'_> {
    pub fn new(seed: u64, dir: &Path) -> Forest<'_> {
        Forest { state: seed, dir, planted: 0 }
    }

    /// Returns a pseudo-random number below `bound`, by splitmix64.
    pub fn below(&mut self, bound: usize) -> usize {
        self.state = self.state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.state;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((z ^ (z >> 31)) % bound as u64) as usize
    }

    /// Writes a script and the scripts that it starts; each adds its pid to the file `up` when it runs. Returns the
    /// script's path.
    pub fn plant(&mut self, depth: usize) -> String {
        let file = self.dir.join(format!("{}.sh", self.planted));
        self.planted += 1;
        let mut script = ["", "trap '' TERM\n", "trap 'sleep 300 & exit 1' TERM\n"][self.below(3)].to_owned();
        for _ in 0..[1, 2, 3, 0][self.below(4)] {
            if depth == 3 || self.planted >= 12 {
                break;
            }
            let child = self.plant(depth + 1);
            let start = [
                "sh CHILD &",
                "setsid sh CHILD &",
                "(sh CHILD &)",
                "(setsid sh CHILD &)",
                "env -i PATH=\"$PATH\" sh CHILD &",
                "(env -i PATH=\"$PATH\" setsid sh CHILD &)",
            ][self.below(6)];
            script += &(start.replace("CHILD", &child) + "\n");
        }
        script += &format!("echo $$ >> {}/up\n", self.dir.display());
        script += ["exec sleep 300", "sleep 300 & wait", "kill -STOP $$; sleep 300", "exit 1"][self.below(4)];
        std::fs::write(&file, script).unwrap();
        file.display().to_string()
    }
}
