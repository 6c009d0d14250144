//! Surroundings of every story: a directory with a store, a fake provider, and processes that end with the test.

use std::{
    fs::{self, File},
    io::{BufRead, BufReader},
    os::unix::{
        fs::PermissionsExt as _,
        process::{CommandExt, ExitStatusExt},
    },
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    sync::{
        Arc, Mutex, Once,
        atomic::{AtomicBool, AtomicU32, Ordering},
    },
    time::{Duration, Instant},
};

use rustix::event::{PollFd, PollFlags, Timespec};
use serde_json::Value;
use tempfile::TempDir;

/// The binary under test.
pub const OUTLAST: &str = env!("CARGO_BIN_EXE_outlast");

/// Longer than anything may take on a loaded machine.
pub const LONGEST: Duration = Duration::from_secs(300);

/// Keys of the providers: no byte of theirs may come to light.
pub const OPENAI_KEY: &str = "sk-crash-s3cret-openai";
pub const ANTHROPIC_KEY: &str = "sk-crash-s3cret-anthropic";

/// Waits until `what` is there. Panics after [`LONGEST`]. What takes a process to look at is looked at less often: whoever waits
/// does not take the time of what it waits for.
#[track_caller]
pub fn until<T>(what: &str, mut found: impl FnMut() -> Option<T>) -> T {
    let began = Instant::now();
    loop {
        let looked = Instant::now();
        if let Some(found) = found() {
            return found;
        }
        assert!(began.elapsed() < LONGEST, "waited for {} s in vain: {what}", LONGEST.as_secs());
        std::thread::sleep(
            (3 * looked.elapsed()).clamp(Duration::from_millis(5), Duration::from_millis(250)),
        );
    }
}

/// Runs `story` for each case, four at a time: they wait for processes more than they compute.
pub fn each<T: Send>(cases: Vec<T>, story: impl Fn(T) + Sync) {
    let queue = Mutex::new(cases.into_iter());
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                while let Some(case) = { queue.lock().unwrap().next() } {
                    story(case);
                }
            });
        }
    });
}

/// A shell's background job ignores SIGINT, and so would all that it starts: no shell could trap it then. Signals that
/// are handled here have their default action again in a program that is started.
fn hear_interrupts() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        let status = fs::read_to_string("/proc/self/status").unwrap();
        let ignored = status.lines().find_map(|line| line.strip_prefix("SigIgn:")).unwrap().trim();
        if u64::from_str_radix(ignored, 16).unwrap() & 0b10 != 0 {
            let ends = Arc::new(AtomicBool::new(true));
            signal_hook::flag::register_conditional_shutdown(signal_hook::consts::SIGINT, 130, ends).unwrap();
        }
    });
}

/// Beginning of a program that keeps its session as Claude Code does, below a directory that is named by the one it works in;
/// or as Copilot CLI does, by its own name. What `begins` says, and what its lines hold.
const AGENT: &str = r#"#!/usr/bin/env python3
import datetime, http.client, json, os, re, sys, urllib.parse
words = " ".join(sys.argv).replace("=", " ").split()
begins = "--session-id" in words
session = words[words.index("--session-id" if begins else "--resume") + 1]
kinds = {}
if sys.argv[0].endswith("copilot"):
    place = os.environ["HOME"] + "/.copilot/session-state/" + session + "/"
    path, below, kinds = place + "events.jsonl", place + "below/agent-a.jsonl", {"user": "user.message"}
else:
    place = os.environ["HOME"] + "/.claude/projects/" + re.sub("[^a-zA-Z0-9]", "-", os.getcwd()) + "/"
    path, below = place + session + ".jsonl", place + session + "/subagents/agent-a.jsonl"
os.makedirs(os.path.dirname(below), exist_ok=True)
def say(kind, text, at=path):
    now = datetime.datetime.now(datetime.timezone.utc).isoformat()
    line = {"type": kinds.get(kind, kind), "cwd": os.getcwd(), "sessionId": session, "timestamp": now, "text": text}
    with open(at, "a") as file:
        file.write(json.dumps(line, separators=(",", ":")) + "\n")
def ask(text):
    base = urllib.parse.urlsplit(os.environ["ANTHROPIC_BASE_URL"])
    connection = http.client.HTTPConnection(base.hostname, base.port, timeout=120)
    body = {"model": "claude-haiku-4-5", "max_tokens": 9, "messages": [{"role": "user", "content": text}]}
    headers = {"anthropic-version": "2023-06-01", "Content-Type": "application/json"}
    key = os.environ.get("ANTHROPIC_AUTH_TOKEN") or os.environ["ANTHROPIC_API_KEY"]
    headers["Authorization"] = "Bearer " + key
    connection.request("POST", base.path + "/v1/messages", json.dumps(body), headers)
    assert connection.getresponse().read()
def said(at=path):
    lines = [json.loads(line) for line in open(at)]
    assert all((line["cwd"], line["sessionId"]) == (os.getcwd(), session) for line in lines), lines
    return [line["text"] for line in lines]
"#;

/// A directory with everything in it.
pub struct Bed {
    dir: TempDir,
    mock: Option<(Proc, String)>,
    outputs: AtomicU32,
}

impl Bed {
    /// With a provider that answers at once.
    pub fn new() -> Bed {
        Bed::with_mock(&[])
    }

    pub fn with_mock(flags: &[&str]) -> Bed {
        let mut bed = Bed::without_mock();
        let mut mock = bed.outlast(&["mock", "--listen", "127.0.0.1:0", "--log"]);
        mock.arg(bed.path("paid.log")).args(flags).stdout(Stdio::piped());
        let mut mock = Proc::start(mock, bed.path("mock.err"));
        let mut url = String::new();
        BufReader::new(mock.child.stdout.take().unwrap()).read_line(&mut url).unwrap();
        bed.mock = Some((mock, url.trim().to_owned()));
        bed
    }

    pub fn without_mock() -> Bed {
        hear_interrupts();
        let dir = tempfile::Builder::new().prefix("outlast-crash-").tempdir().unwrap();
        let bed = Bed { dir, mock: None, outputs: AtomicU32::new(0) };
        fs::create_dir(bed.path("work")).unwrap();
        fs::create_dir(bed.store().parent().unwrap()).unwrap();
        bed
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    pub fn store(&self) -> PathBuf {
        self.path("state/runs.db")
    }

    pub fn text(&self, name: &str) -> String {
        fs::read_to_string(self.path(name)).unwrap_or_default()
    }

    pub fn write(&self, name: &str, text: &str) -> PathBuf {
        fs::write(self.path(name), text).unwrap();
        self.path(name)
    }

    /// Writes a program that keeps its session as Claude Code does, and does this, in Python.
    pub fn claude(&self, does: &str) -> PathBuf {
        self.agent("claude", does)
    }

    /// Writes a program of this name that keeps its session as the CLI agent of that name does.
    pub fn agent(&self, name: &str, does: &str) -> PathBuf {
        let program = self.write(name, &format!("{AGENT}{does}"));
        fs::set_permissions(&program, fs::Permissions::from_mode(0o700)).unwrap();
        program
    }

    /// Returns the files of sessions that the program above keeps, but for those of sub-agents.
    pub fn sessions(&self) -> Vec<PathBuf> {
        let projects = fs::read_dir(self.path(".claude/projects")).into_iter().flatten().flatten();
        let files = projects.flat_map(|project| fs::read_dir(project.path()).unwrap().flatten());
        files.map(|e| e.path()).filter(|path| path.extension().is_some_and(|e| e == "jsonl")).collect()
    }

    /// A gate that an agent waits at, by reading it, until it is written to.
    pub fn gate(&self, name: &str) {
        let mode = rustix::fs::Mode::RUSR | rustix::fs::Mode::WUSR;
        let kind = rustix::fs::FileType::Fifo;
        rustix::fs::mknodat(rustix::fs::CWD, self.path(name), kind, mode, 0).unwrap();
    }

    /// `outlast …` in the directory `work`, with keys, the provider, the store, and nothing else around it.
    pub fn outlast(&self, args: &[&str]) -> Command {
        let mut command = Command::new(OUTLAST);
        command.args(args).env_clear().current_dir(self.path("work")).stdin(Stdio::null());
        command.env("PATH", "/usr/local/bin:/usr/bin:/bin").env("HOME", self.dir.path());
        command.env("OUTLAST_STORE", self.store());
        command.env("OPENAI_API_KEY", OPENAI_KEY).env("ANTHROPIC_API_KEY", ANTHROPIC_KEY);
        if let Some((_, url)) = &self.mock {
            command.env("OPENAI_BASE_URL", format!("{url}/v1")).env("ANTHROPIC_BASE_URL", url);
        }
        command
    }

    /// Starts it, with its output in files.
    pub fn start(&self, command: Command) -> Proc {
        let n = self.outputs.fetch_add(1, Ordering::Relaxed);
        Proc::start(command, self.path(&format!("output-{n}")))
    }

    /// Runs it to its end.
    pub fn run(&self, command: Command) -> Done {
        self.start(command).done()
    }

    /// `outlast ARGS`, to its end.
    #[track_caller]
    pub fn does(&self, args: &[&str]) -> Done {
        self.run(self.outlast(args))
    }

    /// Returns the JSON that `outlast ARGS --json` prints.
    #[track_caller]
    pub fn json(&self, args: &[&str]) -> Value {
        let mut command = self.outlast(args);
        command.arg("--json").stdout(Stdio::piped()).stderr(Stdio::piped());
        let out = command.output().unwrap();
        assert!(out.status.success(), "{args:?}: {}", String::from_utf8_lossy(&out.stderr));
        serde_json::from_slice(&out.stdout).unwrap()
    }

    pub fn show(&self, run: &str) -> Value {
        self.json(&["show", run])
    }

    pub fn status(&self, run: &str) -> String {
        self.show(run)["status"].as_str().unwrap().to_owned()
    }

    /// The run's entries.
    pub fn journal(&self, run: &str) -> Vec<Value> {
        self.json(&["journal", run])["entries"].as_array().unwrap().clone()
    }

    /// Returns the amount of a unit that the run spent.
    pub fn spent(&self, run: &str, unit: &str) -> i64 {
        let shown = self.show(run);
        let line = shown["budget"].as_array().unwrap().iter().find(|l| l["unit"] == unit).unwrap().clone();
        line["spent"].as_i64().unwrap()
    }

    /// Returns the number of requests that the provider was paid for.
    pub fn paid(&self) -> usize {
        self.text("paid.log").lines().count()
    }

    /// Waits until an agent has written the file.
    #[track_caller]
    pub fn until_file(&self, name: &str) {
        until(name, || self.path(name).exists().then_some(()));
    }

    #[track_caller]
    pub fn until_lines(&self, name: &str, count: usize) -> Vec<String> {
        until(&format!("{count} lines in {name}"), || {
            let text = self.text(name);
            let whole = text.ends_with('\n') && text.lines().count() >= count;
            whole.then(|| text.lines().map(str::to_owned).collect())
        })
    }

    #[track_caller]
    pub fn until_status(&self, run: &str, wanted: &str) {
        until(&format!("{run} is {wanted}"), || (self.status(run) == wanted).then_some(()));
    }

    pub fn mock_url(&self) -> &str {
        &self.mock.as_ref().unwrap().1
    }
}

/// A process that does not outlive its test.
pub struct Proc {
    pub child: Child,
    output: PathBuf,
}

/// End of a process, with its output.
#[derive(Debug)]
pub struct Done {
    /// As a shell gives it: 128 + the signal.
    pub code: i32,
    /// The signal that ended it.
    pub signal: Option<i32>,
    /// Standard output and error together.
    pub text: String,
}

impl Proc {
    /// Standard output goes to the file too, unless it is asked for otherwise.
    fn start(mut command: Command, output: PathBuf) -> Proc {
        let file = File::create(&output).unwrap();
        if command.get_args().next().is_none_or(|verb| verb != "mock") {
            command.stdout(file.try_clone().unwrap());
        }
        command.stderr(file);
        // Where a shell's job control puts it; and the test's own group stays out of it.
        let child = command.process_group(0).spawn().unwrap();
        Proc { child, output }
    }

    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    pub fn output(&self) -> String {
        fs::read_to_string(&self.output).unwrap()
    }

    /// The supervisor, whose guardian this process may be.
    pub fn supervisor(&self) -> u32 {
        let is_guardian =
            fs::read_to_string(format!("/proc/{}/comm", self.pid())).unwrap() == "outlast-guard\n";
        match is_guardian {
            true => until("the guardian has its supervisor", || children(self.pid()).first().copied()),
            false => self.pid(),
        }
    }

    /// Sends a signal by its number. One that stops cannot be passed on by a guardian.
    pub fn signal(&self, signal: i32) {
        let to = if signal == 19 { self.supervisor() } else { self.pid() };
        assert!(kill(to, signal));
    }

    /// Kills the supervisor, and waits until everything that it left is gone.
    pub fn kill(&mut self) {
        assert!(kill(self.supervisor(), 9));
        self.child.wait().unwrap();
    }

    #[track_caller]
    pub fn done(self) -> Done {
        self.done_within(LONGEST)
    }

    /// Waits for its end, and fails if it takes longer.
    #[track_caller]
    pub fn done_within(mut self, longest: Duration) -> Done {
        // Not reaped yet, it is still who it was.
        let pid = rustix::process::Pid::from_child(&self.child);
        let end = rustix::process::pidfd_open(pid, rustix::process::PidfdFlags::empty()).unwrap();
        let longest = Timespec { tv_sec: longest.as_secs() as i64, tv_nsec: 0 };
        let ready = rustix::event::poll(&mut [PollFd::new(&end, PollFlags::IN)], Some(&longest));
        assert!(ready.unwrap() > 0, "it does not end: {}", self.output());
        let status = self.child.wait().unwrap();
        let code = status.code().unwrap_or_else(|| 128 + status.signal().unwrap());
        Done { code, signal: status.signal(), text: self.output() }
    }
}

impl Drop for Proc {
    fn drop(&mut self) {
        // The process may have ended already. A failed test leaves no process behind.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Done {
    #[track_caller]
    pub fn code(self, wanted: i32) -> Done {
        assert_eq!(self.code, wanted, "{}", self.text);
        self
    }

    #[track_caller]
    pub fn tells(self, parts: &[&str]) -> Done {
        for part in parts {
            assert!(self.text.contains(part), "should tell {part:?}: {}", self.text);
        }
        self
    }
}

/// False: there is no such process.
pub fn kill(pid: u32, signal: i32) -> bool {
    let pid = rustix::process::Pid::from_raw(pid as i32).unwrap();
    let signal = rustix::process::Signal::from_named_raw(signal).unwrap();
    rustix::process::kill_process(pid, signal).is_ok()
}

/// Whether any thread of the process runs. Of one that is being killed, the first can be a zombie before the others are.
pub fn runs(pid: u32) -> bool {
    let threads = |stat: &str| stat.split(' ').nth(17).and_then(|count| count.parse().ok()).unwrap_or(1);
    stat(pid).is_some_and(|stat| !stat.starts_with(['Z', 'X']) || threads(&stat) > 1)
}

/// The letter of `/proc/PID/stat`.
pub fn state(pid: u32) -> Option<char> {
    stat(pid)?.split(' ').next()?.chars().next()
}

/// The process's children, also dead ones.
pub fn children(of: u32) -> Vec<u32> {
    let pids = fs::read_dir("/proc").unwrap().filter_map(|e| e.ok()?.file_name().to_str()?.parse().ok());
    let is_child = |pid: &u32| stat(*pid).is_some_and(|stat| stat.split(' ').nth(1) == Some(&of.to_string()));
    pids.filter(is_child).collect()
}

/// Whether a process waits for something.
pub fn waits(pid: u32) -> bool {
    stat(pid).is_some_and(|stat| stat.starts_with('S'))
}

/// `/proc/PID/stat` from the state on.
fn stat(pid: u32) -> Option<String> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    Some(stat.rsplit_once(')')?.1.trim_start().to_owned())
}

/// All pids on the machine with this entry in their environment.
pub fn marked(entry: &str) -> Vec<u32> {
    let pids = fs::read_dir("/proc").unwrap().filter_map(|e| e.ok()?.file_name().to_str()?.parse().ok());
    pids.filter(|pid: &u32| {
        let environ = fs::read(format!("/proc/{pid}/environ")).unwrap_or_default();
        runs(*pid) && environ.split(|b| *b == 0).any(|found| found == entry.as_bytes())
    })
    .collect()
}

/// A bad day's number, printed so that it can be had again: `OUTLAST_TEST_SEED=N`.
pub struct Dice(u64);

impl Dice {
    pub fn new() -> Dice {
        let given = std::env::var("OUTLAST_TEST_SEED").ok().and_then(|seed| seed.parse().ok());
        let seed = given.unwrap_or_else(|| getrandom::u64().unwrap() >> 1);
        println!("OUTLAST_TEST_SEED={seed}");
        Dice(seed)
    }

    /// A number below `bound`, by splitmix64.
    pub fn below(&mut self, bound: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (z ^ (z >> 31)) % bound
    }
}

/// Whether this test may use what only root has: other users, mounts, pid namespaces.
pub fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

/// An absolute path as text.
pub fn text(path: &Path) -> &str {
    path.to_str().unwrap()
}
