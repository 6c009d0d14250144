//! `outlast resume --all`: one supervisor process for each run, and what each of them says with the run in front.

use std::{
    collections::HashMap,
    io::{self, BufRead as _, BufReader, Read, Write},
    process::{Child, Command, ExitStatus, Stdio},
    sync::Arc,
    thread::{self, JoinHandle},
    time::{Duration, Instant},
};

use outlast_core::{
    run::Status,
    store::{RunView, Store},
    words::RunNo,
};

use super::{resumable, strays};
use crate::{
    cli::shared::ProxyArgs,
    program::{context::Context, error::CliError, exit_code, say::say, told},
    render::{amount::some, short::called, text::clean_line},
};

/// Most characters of a label.
const LABEL: usize = 24;

/// Interval at which a resident looks for runs that a death has interrupted.
const LOOK: Duration = Duration::from_secs(2);

/// Shortest and longest pause before a run is resumed again whose supervisor could not go on with it.
const PAUSES: (Duration, Duration) = (Duration::from_secs(10), Duration::from_secs(600));

/// Resumes each run, oldest first, with a supervisor of its own, waits for all, and returns the worst exit code.
pub fn resume(runs: &[RunView], context: &Context, proxy: &ProxyArgs) -> Result<u8, CliError> {
    say(&format!("{} to resume", some(runs.len() as i64, "run")));
    let started = runs.iter().map(|view| Resumed::start(view, context, proxy, runs.len() > 1));
    let started: Vec<Resumed> = started.collect::<Result<_, _>>()?;
    let mut worst = exit_code::OK;
    for mut resumed in started {
        let status = resumed.child.wait()?;
        worst = worst.max(resumed.ended(status));
    }
    Ok(worst)
}

/// Resumes each run as [`resume`] does, and from then on each that a death interrupts, without end.
pub fn stay(
    store: Arc<dyn Store>,
    first: Vec<RunView>,
    context: &Context,
    proxy: &ProxyArgs,
) -> Result<u8, CliError> {
    say("staying: what a death interrupts is resumed");
    let mut driven: HashMap<RunNo, Resumed> = HashMap::new();
    let mut pauses: HashMap<RunNo, (Instant, Duration)> = HashMap::new();
    let mut runs = first;
    loop {
        for view in runs {
            let no = view.run.no;
            let is_due = pauses.get(&no).is_none_or(|(until, _)| *until <= Instant::now());
            if is_due && !driven.contains_key(&no) {
                say(&format!("resuming {}", called(&view)));
                driven.insert(no, Resumed::start(&view, context, proxy, true)?);
            }
        }
        thread::sleep(LOOK);
        let mut over = Vec::new();
        for (no, resumed) in &mut driven {
            over.extend(resumed.child.try_wait()?.map(|status| (*no, status)));
        }
        for (no, status) in over {
            driven.remove(&no).map(|resumed| resumed.ended(status));
            let before = pauses.remove(&no).filter(|_| !status.success());
            if !status.success() {
                let pause = before.map_or(PAUSES.0, |(_, pause)| (pause * 2).min(PAUSES.1));
                pauses.insert(no, (Instant::now() + pause, pause));
            }
        }
        strays::look_after(store.as_ref(), context);
        // What cannot be read now can be later: the runs that are driven go on meanwhile.
        runs = resumable(store.as_ref(), Status::Interrupted).unwrap_or_else(|e| {
            say(&format!("runs could not be looked for: {e}"));
            Vec::new()
        });
    }
}

/// Supervisor process of a run that was resumed, and the threads that pass on what it prints.
struct Resumed {
    label: String,
    child: Child,
    readers: [Option<JoinHandle<()>>; 2],
}

impl Resumed {
    /// Starts the supervisor. `among`: others print beside it, and its lines are labelled.
    fn start(view: &RunView, context: &Context, proxy: &ProxyArgs, among: bool) -> Result<Resumed, CliError> {
        let mut command = Command::new(crate::program()?);
        command.arg("resume").arg(view.run.id.as_str());
        // Passed in the environment, which other users cannot read: the address may hold a password.
        command.env(told::STORE, context.place.address()).args(proxy.flags()).stdin(Stdio::null());
        if among {
            command.stdout(Stdio::piped()).stderr(Stdio::piped());
        }
        let mut child = command.spawn()?;
        let label = clean_line(&called(view), LABEL);
        let readers = [
            child.stdout.take().map(|from| pass_on(label.clone(), from, io::stdout())),
            child.stderr.take().map(|from| pass_on(label.clone(), from, io::stderr())),
        ];
        Ok(Resumed { label, child, readers })
    }

    /// Tells a failure of the supervisor, which has ended, and returns its exit code.
    fn ended(self, status: ExitStatus) -> u8 {
        // What a run printed stands before what is said of its end.
        self.readers.into_iter().flatten().for_each(|reader| drop(reader.join()));
        if status.success() {
            return exit_code::OK;
        }
        say(&format!("{}: {status}", self.label));
        status.code().and_then(|c| u8::try_from(c).ok()).unwrap_or(exit_code::FAILED)
    }
}

/// Writes each line of `from` with its label in front, until its end.
fn pass_on(
    label: String,
    from: impl Read + Send + 'static,
    mut to: impl Write + Send + 'static,
) -> JoinHandle<()> {
    thread::spawn(move || {
        let mut from = BufReader::new(from);
        let mut line = Vec::new();
        while matches!(from.read_until(b'\n', &mut line), Ok(n) if n > 0) {
            if !line.ends_with(b"\n") {
                line.push(b'\n');
            }
            let whole = [format!("{label} | ").as_bytes(), &line].concat();
            // Nobody reads on: the runs go on all the same.
            let _ = to.write_all(&whole).and_then(|()| to.flush());
            line.clear();
        }
    })
}
