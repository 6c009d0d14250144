//! Agents on a terminal of their own: keys, sizes, detaching, attaching, deaths. And what they print, kept.

use std::{
    fs,
    io::{Read as _, Write as _},
    os::{fd::OwnedFd, unix::process::CommandExt as _},
    process::{Child, Command, Stdio},
    sync::{
        Arc, Mutex,
        atomic::{AtomicU32, Ordering},
    },
};

use rustix::{
    pty::OpenptFlags,
    termios::{LocalModes, Termios, Winsize},
};

use crate::{
    agents::shell,
    bed::{Bed, each, kill, marked, runs, until},
};

/// A run's id that no other test has: its processes are looked for on the whole machine.
fn own_id() -> String {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    format!("own-{}-{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed))
}

/// Waits until no process of the run is there.
#[track_caller]
fn until_nobody(id: &str) {
    until("nobody is left", || marked(&format!("OUTLAST_RUN_ID={id}")).is_empty().then_some(()));
}

/// A run in the background ends with its test, also with one that fails.
struct Stopped<'a>(&'a Bed, &'a str);

impl Drop for Stopped<'_> {
    fn drop(&mut self) {
        let _ = self.0.outlast(&["stop", self.1]).output();
    }
}

/// A person at a terminal, on which one program runs.
pub struct Desk {
    ours: fs::File,
    child: Child,
    shown: Arc<Mutex<Vec<u8>>>,
}

impl Desk {
    pub fn start(mut command: Command) -> Desk {
        let flags = OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC;
        let ours = rustix::pty::openpt(flags).unwrap();
        rustix::pty::unlockpt(&ours).unwrap();
        let theirs = rustix::pty::ioctl_tiocgptpeer(&ours, flags).unwrap();
        set_size(&ours, 40, 120);
        let stdio = || Stdio::from(theirs.try_clone().unwrap());
        command.stdin(stdio()).stdout(stdio()).stderr(stdio());
        // SAFETY: two plain system calls between fork and exec.
        unsafe {
            command.pre_exec(|| {
                rustix::process::setsid()?;
                Ok(rustix::process::ioctl_tiocsctty(rustix::stdio::stdin())?)
            });
        }
        let child = command.spawn().unwrap();
        let shown = Arc::new(Mutex::new(Vec::new()));
        let (mut from, to) = (fs::File::from(ours.try_clone().unwrap()), shown.clone());
        std::thread::spawn(move || {
            let mut bytes = [0; 4096];
            while let Ok(read @ 1..) = from.read(&mut bytes) {
                to.lock().unwrap().extend(&bytes[..read]);
            }
        });
        // One descriptor of the command's side stays open, so that the terminal's modes can be read after the command
        // has gone.
        std::mem::forget(theirs);
        Desk { ours: ours.into(), child, shown }
    }

    fn run(bed: &Bed, agent: &str) -> Desk {
        Desk::run_as(bed, "r", agent)
    }

    fn run_as(bed: &Bed, id: &str, agent: &str) -> Desk {
        bed.write("agent.sh", agent);
        let script = bed.path("agent.sh");
        let mut command = bed.outlast(&["run", "--run", id]);
        command.args(["--", "sh"]).arg(script);
        Desk::start(command)
    }

    pub fn types(&mut self, keys: &str) {
        self.ours.write_all(keys.as_bytes()).unwrap();
    }

    pub fn shown(&self) -> String {
        String::from_utf8_lossy(&self.shown.lock().unwrap()).into_owned()
    }

    #[track_caller]
    pub fn until_shown(&self, text: &str) {
        until(&format!("{text:?} is shown"), || self.shown().contains(text).then_some(()));
    }

    /// Checks that the command ends with this code, and that all of these texts are shown.
    #[track_caller]
    pub fn ends(&mut self, code: i32, shown: &[&str]) {
        let status = until("it ends", || self.child.try_wait().unwrap());
        assert_eq!(status.code(), Some(code), "{}", self.shown());
        for text in shown {
            self.until_shown(text);
        }
    }

    fn modes(&self) -> Termios {
        rustix::termios::tcgetattr(&self.ours).unwrap()
    }

    fn is_as_it_was(&self) -> bool {
        self.modes().local_modes.contains(LocalModes::ICANON | LocalModes::ECHO | LocalModes::ISIG)
    }
}

impl Drop for Desk {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn set_size(fd: &OwnedFd, rows: u16, columns: u16) {
    let size = Winsize { ws_row: rows, ws_col: columns, ws_xpixel: 0, ws_ypixel: 0 };
    rustix::termios::tcsetwinsize(fd, size).unwrap();
}

#[test]
fn agent_has_a_terminal_of_the_persons_size_and_reads_what_is_typed() {
    let bed = Bed::without_mock();
    let agent = "trap 'stty size' WINCH; stty size; [ -t 0 ] && [ -t 1 ] && [ -t 2 ] && echo tty
        read line; echo \"<$line>\"; while [ ! -e ../go ]; do sleep 0.02; done";
    let mut desk = Desk::run(&bed, agent);
    desk.until_shown("40 120");
    desk.until_shown("tty");
    desk.types("hello\n");
    desk.until_shown("<hello>");
    set_size(&desk.ours.try_clone().unwrap().into(), 11, 33);
    desk.until_shown("11 33");
    bed.write("go", "");
    desk.ends(0, &["r · completed"]);
    assert!(desk.is_as_it_was());
}

#[test]
fn ctrl_c_is_the_agents_and_its_end_by_it_is_an_interruption() {
    // Each case: what the agent does about Ctrl-C, and whether it ends by Ctrl-C.
    let cases = vec![
        ("", true),
        // An exit after a person's Ctrl-C is an interruption, also with 0.
        ("trap 'exit 0' INT", true),
        ("trap 'exit 7' INT", true),
        // The agent need not end by Ctrl-C.
        ("trap 'echo not me' INT", false),
    ];
    each(cases, |(agent, ends)| {
        let bed = Bed::without_mock();
        let until_go = "echo up; while [ ! -e ../go ]; do sleep 0.02; done";
        let mut desk = Desk::run(&bed, &format!("{agent}\n{until_go}"));
        desk.until_shown("up");
        desk.types("\x03");
        if ends {
            desk.ends(130, &["r · interrupted"]);
            let shown = bed.show("r");
            assert_eq!((&shown["stop_requested"], &shown["attempts"][1]), (&true.into(), &().into()));
        } else {
            desk.until_shown("not me");
            assert_eq!(desk.child.try_wait().unwrap(), None);
            kill(desk.child.id(), 15);
            desk.ends(130, &[]);
        }
        assert!(desk.is_as_it_was(), "{agent}");
    });
}

#[test]
fn run_goes_on_when_its_terminal_is_detached_and_others_come_to_it() {
    let bed = Bed::without_mock();
    let _stopped = Stopped(&bed, "r");
    let agent = "echo up; while read line; do echo \"<$line>\"; done; echo bye";
    let mut desk = Desk::run(&bed, agent);
    desk.until_shown("up");
    desk.types("one\n");
    desk.until_shown("<one>");
    desk.types("\x1cd");
    desk.ends(0, &["detached"]);
    assert!(desk.is_as_it_was());
    drop(desk);
    assert_eq!(bed.status("r"), "running");

    let attach = || Desk::start(bed.outlast(&["attach", "r"]));
    let (mut first, second) = (attach(), attach());
    // A new viewer is first shown what was printed before.
    first.until_shown("<one>");
    second.until_shown("<one>");
    first.types("two\n");
    second.until_shown("<two>");
    // A terminal that goes takes nothing with it.
    drop(second);
    first.types("three\n");
    first.until_shown("<three>");
    first.types("\x04");
    first.ends(0, &["bye", "r · completed"]);
    assert!(first.is_as_it_was());
    assert_eq!(bed.status("r"), "completed");
    let refused = bed.does(&["attach", "r"]).code(1);
    refused.tells(&["no supervisor listens", "outlast logs r"]);
}

#[test]
fn terminal_that_goes_without_a_word_interrupts_its_run() {
    let bed = Bed::without_mock();
    let agent = "echo up; (setsid sleep 60 &); sleep 60";
    let id = own_id();
    let mut desk = Desk::run_as(&bed, &id, agent);
    desk.until_shown("up");
    desk.child.kill().unwrap();
    desk.child.wait().unwrap();
    bed.until_status(&id, "interrupted");
    assert_eq!(bed.show(&id)["stop_requested"], false);
    until_nobody(&id);
}

#[test]
fn killed_supervisor_gives_the_terminal_back_and_the_run_can_go_on() {
    let bed = Bed::without_mock();
    let agent = "echo up $OUTLAST_ATTEMPT; [ $OUTLAST_ATTEMPT = 2 ] && exit 0; stty raw -echo; kill -9 $PPID; sleep 60";
    let mut desk = Desk::run(&bed, agent);
    desk.ends(137, &["the supervisor was killed"]);
    assert!(desk.is_as_it_was());
    let mut desk = Desk::run(&bed, agent);
    desk.ends(0, &["up 2"]);
}

#[test]
fn modes_that_a_killed_agent_left_are_taken_back_before_the_next_attempt() {
    let bed = Bed::without_mock();
    let agent = "stty -a > ../modes-$OUTLAST_ATTEMPT
        if [ $OUTLAST_ATTEMPT = 1 ]; then printf '\\033[?1049h\\033[?25l'; stty raw -echo; kill -9 $$; fi
        echo again; read line; echo \"<$line>\"";
    let mut desk = Desk::run(&bed, agent);
    desk.until_shown("again");
    let shown = desk.shown();
    let (died, again) = (shown.find("attempt 1 died").unwrap(), shown.find("again").unwrap());
    for undo in ["\x1b[?1049l", "\x1b[?25h"] {
        assert!(shown.find(undo).unwrap() < died && died < again, "{shown:?}");
    }
    desk.types("hello\n");
    desk.ends(0, &["<hello>"]);
    assert_eq!(bed.text("modes-2"), bed.text("modes-1"));
    assert!(desk.is_as_it_was());
}

#[test]
fn run_in_the_background_is_told_by_its_id_and_ends_with_nobody_there() {
    let bed = Bed::without_mock();
    let _stopped = Stopped(&bed, "r");
    bed.write("agent.sh", "echo out; echo err >&2; while [ ! -e ../go ]; do sleep 0.02; done; echo over");
    let script = bed.path("agent.sh");
    let mut command = bed.outlast(&["run", "-d", "--run", "r", "--", "sh"]);
    command.arg(&script).stdout(Stdio::piped()).stderr(Stdio::piped());
    // Neither stream is held open: this ends although the run goes on.
    let started = command.output().unwrap();
    assert!(started.status.success());
    assert_eq!(String::from_utf8(started.stdout).unwrap(), "r\n");
    assert_eq!(bed.status("r"), "running");
    bed.write("go", "");
    bed.until_status("r", "completed");
    let logs = bed.does(&["logs", "r"]).code(0);
    assert_eq!(logs.text, "out\nerr\nover\n");
    // A command that cannot be started is told as ever.
    bed.does(&["run", "-d", "--run", "n", "--", "no-such-command"]).code(127).tells(&["no-such-command"]);
    bed.does(&["run", "-d", "--run", "bad id", "--", "true"]).code(2);
}

#[test]
fn background_run_is_stopped_like_any_other() {
    let bed = Bed::without_mock();
    let id = own_id();
    let _stopped = Stopped(&bed, &id);
    bed.does(&["run", "-d", "--run", &id, "--", "sleep", "60"]).code(0);
    bed.does(&["stop", &id]).code(0);
    bed.until_status(&id, "interrupted");
    until_nobody(&id);
}

#[test]
fn each_attempts_output_is_kept_and_passed_on_unchanged() {
    let bed = Bed::without_mock();
    let agent = "printf 'attempt %s\\n\\377\\000binary' $OUTLAST_ATTEMPT; seq 20000
        [ $OUTLAST_ATTEMPT = 2 ] || kill -9 $$";
    let mut command = shell(&bed, &["--run", "r"], agent);
    command.stdout(Stdio::piped()).stderr(Stdio::null());
    let passed = command.output().unwrap().stdout;
    let numbers: String = (1..=20_000).map(|n| format!("{n}\n")).collect();
    let of = |attempt: u8| {
        [format!("attempt {attempt}\n").as_bytes(), b"\xff\0binary", numbers.as_bytes()].concat()
    };
    assert_eq!(passed, [of(1), of(2)].concat());
    for attempt in 1..=2 {
        let mut logs = bed.outlast(&["logs", "r", "--attempt", &attempt.to_string()]);
        assert_eq!(logs.stderr(Stdio::null()).output().unwrap().stdout, of(attempt));
    }
    let shown = bed.show("r");
    let lines = shown["attempts"][0]["last_lines"].as_array().unwrap();
    assert_eq!((lines.len(), &lines[99]), (100, &"20000".into()));
    bed.does(&["logs", "r", "--attempt", "3"]).code(1).tells(&["attempts 1 to 2 are kept"]);
    bed.does(&["show", "r", "-v", "--lines", "2"]).tells(&["killed by SIGKILL", "19999\n", "20000\n"]);
}

#[test]
fn followed_log_goes_on_over_deaths_to_the_runs_end() {
    let bed = Bed::without_mock();
    let agent = "echo life $OUTLAST_ATTEMPT; [ $OUTLAST_ATTEMPT = 3 ] || kill -9 $$
        while [ ! -e ../go ]; do sleep 0.02; done; echo end";
    let run = bed.start(shell(&bed, &["--run", "r"], agent));
    until("it runs", || bed.path("state/runs.db.runs/r/logs/1.log").exists().then_some(()));
    let follower = bed.start(bed.outlast(&["logs", "r", "-f", "--attempt", "1"]));
    follower.done().code(0).tells(&["life 1\n"]);
    let follower = bed.start(bed.outlast(&["logs", "r", "-f"]));
    until("it follows", || follower.output().contains("life").then_some(()));
    bed.write("go", "");
    run.done().code(0);
    follower.done().code(0).tells(&["life 3\nend\n"]);
}

#[test]
fn reader_who_stops_reading_loses_nothing_and_holds_no_stop_up() {
    let bed = Bed::without_mock();
    let mut command = shell(&bed, &["--run", "r"], "seq 100000; echo done >> ../printed");
    command.stdout(Stdio::piped()).stderr(Stdio::null());
    let mut child = command.spawn().unwrap();
    // The agent stands still with its reader, as it would without us.
    until("the pipe is full", || {
        let log = fs::metadata(bed.path("state/runs.db.runs/r/logs/1.log")).ok()?;
        (log.len() > 64 << 10).then_some(())
    });
    let mut text = String::new();
    child.stdout.take().unwrap().read_to_string(&mut text).unwrap();
    assert_eq!(text.lines().count(), 100_000);
    assert!(child.wait().unwrap().success());

    let id = own_id();
    let mut command = shell(&bed, &["--run", &id], "seq 100000; sleep 60");
    command.stdout(Stdio::piped()).stderr(Stdio::null());
    let mut child = command.spawn().unwrap();
    until("the pipe is full", || {
        let log = fs::metadata(bed.path(&format!("state/runs.db.runs/{id}/logs/1.log"))).ok()?;
        (log.len() > 64 << 10).then_some(())
    });
    kill(child.id(), 15);
    until_nobody(&id);
    // Whatever is not read by then is in the log alone.
    kill(child.id(), 15);
    let status = until("it ends", || child.try_wait().unwrap());
    assert_eq!(status.code(), Some(130));
}

#[test]
fn orphans_may_finish_where_they_are_let() {
    let bed = Bed::without_mock();
    let agent = "(setsid sh -c 'while [ ! -e ../go ]; do sleep 0.02; done; echo done > ../orphan' &); exit 0";
    let run = bed.start(shell(&bed, &["--run", "r", "--orphans", "wait:1h"], agent));
    until("it waits", || run.output().contains("waiting up to 3600 s").then_some(()));
    bed.write("go", "");
    run.done().code(0);
    assert_eq!(bed.text("orphan"), "done\n");
    // Their time is over some time.
    let forever = "(setsid sleep 60 &); exit 0";
    let id = own_id();
    bed.run(shell(&bed, &["--run", &id, "--orphans", "wait:300ms"], forever)).code(0);
    until_nobody(&id);
    // And a stop does not wait for it.
    let id = own_id();
    let run = bed.start(shell(&bed, &["--run", &id, "--orphans", "wait:1h"], forever));
    until("it waits", || run.output().contains("waiting up to").then_some(()));
    run.signal(2);
    run.done();
    until_nobody(&id);
}

#[test]
fn programs_that_are_to_be_kept_are_left_alone() {
    let bed = Bed::without_mock();
    fs::copy("/bin/sleep", bed.path("my-server")).unwrap();
    // A program is kept by its name, and has it only once it has begun: before, it is a shell like any other.
    let agent = "(setsid ../my-server 60 & echo $! > ../kept); (setsid sleep 60 & echo $! > ../not)
        until [ \"$(cat /proc/$(cat ../kept)/comm)\" = my-server ]; do sleep 0.02; done";
    bed.run(shell(&bed, &["--run", "r", "--keep", "my-server"], agent)).code(0);
    let pid = |name: &str| bed.text(name).trim().parse::<u32>().unwrap();
    assert!(runs(pid("kept")) && !runs(pid("not")));
    kill(pid("kept"), 9);
    bed.does(&["run", "--keep", "a/b", "--", "true"]).code(2).tells(&["not the name of a program"]);
}

#[test]
fn limits_are_kept_or_refused_in_words() {
    let bed = Bed::without_mock();
    let eats = "exec python3 -SE -c 'x = bytearray(400 << 20); print(len(x))'";
    // By the address space of each process: the agent sees its allocation fail.
    let flags = ["--run", "r", "--restarts", "0", "--memory", "200MiB", "--memory-by", "rlimit"];
    bed.run(shell(&bed, &flags, eats)).tells(&["MemoryError"]);
    let flags = ["--run", "s", "--restarts", "0", "--memory", "100MiB", "--cpu", "50%"];
    let done = bed.run(shell(&bed, &flags, eats));
    if done.code == 69 {
        // No group can be delegated here: the limits are refused, and never dropped in silence.
        done.tells(&[
            "the limits of memory and processor time cannot be kept",
            "systemd-run",
            "--memory-by rlimit",
        ]);
    } else {
        done.tells(&["for its memory (OOM)"]);
        assert_eq!(bed.show("s")["attempts"][0]["exit"]["oom"], true);
    }
    bed.does(&["run", "--cpu", "fast", "--", "true"]).code(2).tells(&["wanted for example 150%"]);
}
