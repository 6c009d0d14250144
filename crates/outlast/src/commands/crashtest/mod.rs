//! `outlast crashtest`: kills a command at every boundary of its journal, and compares what is left with a clean run.
//!
//! A command is recorded once (`recording`), lives again and again in a fresh copy (`bed`, `copy`) with the answers of the
//! recording (`stage`, and `live` for what it does not have), and dies (`death`). `compare` says what differs, and this file why.

mod bed;
mod compare;
mod copy;
mod death;
mod live;
mod noted;
mod recording;
mod report;
mod stage;

use std::{net::SocketAddr, path::Component, time::Instant};

use outlast_mock as mock;
use outlast_process::{
    reap,
    signals::{ENDING, Signals},
};
use tokio::{net::TcpListener, runtime::Runtime};

use self::{
    bed::{Bed, End},
    compare::{Difference, Ignored, Sort},
    death::Below,
    live::Live,
    recording::Recording,
    report::{Bare, Finding, Report, Row, Tried},
    stage::Stage,
};
use super::prelude::*;
use crate::{
    cli::crashtest::{Boundary, CrashtestArgs, Death, Kind},
    program::{host, stops::Moment},
    render::quote,
    settings::masks,
};

/// Time that a life has, when the clean run took less than a twentieth of it.
const SHORTEST: Duration = Duration::from_secs(60);

/// Time that the first life has: nobody knows yet how long one takes.
const FIRST: Duration = Duration::from_secs(24 * 60 * 60);

/// Times that a life may take as long as the clean run.
const SLOWER: u32 = 20;

/// Runs the crash test and prints its report. Returns the exit code: 0 sound, 1 findings, 2 not testable.
pub fn crashtest(args: &CrashtestArgs, context: &Context, page: &mut Page) -> Result<u8> {
    MachineError::check()?;
    let runtime = host::runtime(None)?;
    let report = match tested(args, context, &runtime) {
        Ok(report) => report,
        Err(error) => {
            error.report(context.look.json);
            return Ok(exit_code::USAGE);
        }
    };
    for (path, text) in [
        (&args.junit, Report::junit as fn(&Report) -> String),
        (&args.markdown, Report::markdown),
        (&args.badge, Report::badge),
    ] {
        if let Some(path) = path {
            fs::write(context.around.directory().join(path), text(&report))?;
        }
    }
    report.print(page)?;
    Ok(if report.sound { exit_code::OK } else { exit_code::REFUSED })
}

/// The test of one command: its bed, the provider of its recording, and what the clean run left.
struct Test<'a> {
    args: &'a CrashtestArgs,
    bed: Bed,
    stage: Arc<Stage>,
    provider: SocketAddr,
    ignored: Ignored,
    clean: Clean,
}

/// Output and effects of the clean run, besides its tree.
#[derive(Default)]
struct Clean {
    stdout: Vec<u8>,
    effects: String,
    bought: u32,
    /// Longest time for one life.
    longest: Duration,
}

/// Records, runs cleanly, kills, and returns what was found. Errors: the command cannot be tested.
fn tested(args: &CrashtestArgs, context: &Context, runtime: &Runtime) -> Result<Report> {
    if let Some(file) = args.effects.as_ref().filter(|file| !is_inside(file)) {
        let message = format!("--effects {}: it is outside of this directory", file.display());
        let hint = "name a file by a path below the directory: each life gets a copy";
        return Err(CliError::usage(message, Some(hint)));
    }
    let below = Below::here()?;
    reap::become_subreaper()?;
    // One that comes while the directory is copied is taken after that.
    let signals = Signals::of(&ENDING)?;
    let bed = Bed::make(context, &args.command, below.clone())?;
    runtime.spawn(bed.end_by_signal(signals));
    let recording = recorded(args, context, &bed, runtime)?.with_rules(masks::load(&context.around)?)?;
    let calls = recording.calls.len();
    let live = args.live.map(|usd| Live::begin(context, bed.path("live.db"), usd, runtime)).transpose()?;
    let stage = Stage::new(recording, live, below);
    stage.listen(&bed.socket())?;
    let listener = runtime.block_on(TcpListener::bind(("127.0.0.1", 0)))?;
    let provider = listener.local_addr()?;
    runtime.spawn(mock::recorded::serve(listener, stage.clone()));
    let patterns =
        args.ignore.iter().cloned().chain(args.effects.iter().map(|file| file.display().to_string()));
    let ignored = Ignored::read(patterns)?;
    let mut test = Test { args, bed, stage, provider, ignored, clean: Clean::default() };
    let mut report = Report { calls, typed: typed(context), ..Report::default() };
    test.run_cleanly(&mut report)?;
    // Whatever differs without a death differs after one.
    if report.clean.is_empty() {
        test.kill(&mut report)?;
    }
    let live = test.stage.recording().calls.len() - calls;
    if live > 0 {
        let requests = some(live as i64, "request");
        report.notes.push(format!("{requests} not in the recording, answered live (--live)"));
    }
    if test.stage.recording().has_client_ids {
        report.notes.push("ids that the client gives its turns at random (msg_UUID) are not compared".into());
    }
    let noted = report.deaths.iter().filter(|tried| tried.noted).count();
    if noted > 0 {
        let deaths = some(noted as i64, "death");
        report
            .notes
            .push(format!("after {deaths} the model was told of it by a call of its own, which is paid for"));
    }
    report.sound = report.clean.is_empty() && report.deaths.iter().all(|tried| tried.findings.is_empty());
    Ok(report)
}

/// Returns the recording of the file that is named, or makes one.
fn recorded(args: &CrashtestArgs, context: &Context, bed: &Bed, runtime: &Runtime) -> Result<Recording> {
    let file = args.recording.as_ref().map(|file| context.around.directory().join(file));
    if let Some(kept) = file.as_deref().map(Recording::load).transpose()?.flatten() {
        return Ok(kept);
    }
    let fake = if args.mock { Some(runtime.block_on(mock::start(mock::Options::default()))?) } else { None };
    say(if args.mock { "recording against a fake provider" } else { "recording: this run is paid for" });
    let recording = bed.record(fake.as_ref().map(mock::Handle::addr), args.usd)?;
    if let Some(file) = &file {
        recording.save(file)?;
        say(&format!("the recording is kept in {}", file.display()));
    }
    Ok(recording)
}

impl Test<'_> {
    /// Lives twice without a death: the first says what is right, the second what is not the same each time.
    fn run_cleanly(&mut self, report: &mut Report) -> Result {
        let began = Instant::now();
        let end = self.live(None, false, FIRST)?;
        self.clean.longest = SHORTEST.max(began.elapsed() * SLOWER);
        report.clean = self.divergences();
        if report.clean.is_empty() && end.code != Some(0) {
            return Err(self.bed.not_testable("played back", end.code));
        }
        self.bed.keep_clean()?;
        let scene = std::mem::take(&mut *self.stage.scene());
        report.boundaries =
            scene.passed.into_iter().map(|(at, what)| Row { place: place(at, &what), at }).collect();
        let (effects, longest) = (self.effects(), self.clean.longest);
        let bought = scene.bought - scene.beyond;
        self.clean = Clean { stdout: end.stdout, effects, bought, longest };
        if !report.clean.is_empty() {
            return Ok(());
        }
        let again = self.live(None, false, self.clean.longest)?;
        report.clean = self.divergences();
        let differences = compare::trees(&self.bed.path("clean"), &self.bed.work(), &self.ignored)?;
        for Difference { path, what, .. } in differences {
            report.notes.push(format!("{path} is not compared: of two clean runs the second {what}"));
            self.ignored.add(&path);
        }
        if again.code != Some(0) && report.clean.is_empty() {
            return Err(self.bed.not_testable("played back again", again.code));
        }
        if self.args.stdout && again.stdout != self.clean.stdout {
            report.clean.push(Finding::new(
                "stdout",
                "standard output is not the same in two clean runs",
                "it holds a time, a random number or an id: leave --stdout away, or print none",
            ));
        }
        Ok(())
    }

    /// Kills at the boundaries that were passed, one death a life.
    fn kill(&self, report: &mut Report) -> Result {
        let kinds = if self.args.kinds.is_empty() { Kind::ALL.to_vec() } else { self.args.kinds.clone() };
        let at_each =
            |row: &Row| kinds.iter().map(|kind| Death { at: row.at, kind: *kind }).collect::<Vec<_>>();
        let all: Vec<Death> = match self.args.only.is_empty() {
            true => report.boundaries.iter().flat_map(at_each).collect(),
            false => self.args.only.clone(),
        };
        report.possible = all.len();
        let most = self.args.max as usize;
        let planned: Vec<Death> = match all.len() > most {
            true => (0..most).map(|n| all[n * all.len() / most]).collect(),
            false => all,
        };
        report.planned = planned.len();
        if report.planned < report.possible {
            let note = format!("{} of {} deaths, spread evenly (--max)", report.planned, report.possible);
            report.notes.push(note);
        }
        say(&format!("{} to try", some(report.planned as i64, "death")));
        let until = self.args.minutes.map(|minutes| Instant::now() + Duration::from_secs(60 * minutes));
        let mut bare = Bare::default();
        for death in planned {
            if until.is_some_and(|until| Instant::now() > until) {
                report.notes.push(format!("{} of them tried in the time (--minutes)", report.deaths.len()));
                break;
            }
            report.deaths.push(self.tried(death, &report.boundaries)?);
            if self.args.bare && can_be_bare(death) {
                let (is_right, bought_again) = self.tried_bare(death)?;
                bare.deaths += 1;
                bare.wrong += usize::from(!is_right);
                bare.bought_again += bought_again;
            }
        }
        report.bare = self.args.bare.then_some(bare);
        Ok(())
    }

    /// Tries one death, and returns what it brought to light.
    fn tried(&self, death: Death, boundaries: &[Row]) -> Result<Tried> {
        let end = self.live(Some(death), false, self.clean.longest)?;
        let diverged = self.divergences();
        let scene = std::mem::take(&mut *self.stage.scene());
        let row = boundaries.iter().find(|row| row.at == death.at);
        let place = row.map_or_else(|| place(death.at, ""), |row| row.place.clone());
        let mut differences = self.differences(&end)?;
        let mut findings = Vec::new();
        let told = scene.told || (end.code != Some(0) || !diverged.is_empty()) && self.bed.is_in_doubt()?;
        // A life that was told may stop, or say something else. It may do nothing twice.
        if told {
            differences.retain(|one| matches!(one.sort, Sort::More | Sort::New));
        } else if diverged.is_empty() {
            findings.extend(self.exit(&end));
        } else {
            findings.extend(diverged);
            differences.clear();
        }
        findings.extend(differences.into_iter().map(|Difference { path, what, sort }| {
            Finding::new(&path, format!("{path} {what}"), why(sort, &place))
        }));
        // A call that was in flight when its proxy died may be bought again, once. So is the one by which a CLI agent's
        // model is told of the death: no recorded answer is one to that.
        let lost = if matches!(death.kind, Kind::Supervisor | Kind::Machine) { scene.in_flight } else { 0 };
        let allowed = lost + u32::from(scene.noted);
        // What is not in the recording has no answer that could be bought again.
        let bought_again = (scene.bought - scene.beyond).saturating_sub(self.clean.bought + allowed);
        if bought_again > 0 && !told {
            findings.push(Finding::new(
                "bought",
                format!("{} bought again", some(i64::from(bought_again), "call")),
                "the next life asked for more than the dead one had left open: it has lost its place",
            ));
        }
        let (reached, noted) = (scene.died, scene.noted);
        Ok(Tried { at: death.at, kind: death.kind, reached, told, noted, bought_again, findings })
    }

    /// Returns what is wrong with the exit of the last life, if anything is.
    fn exit(&self, end: &End) -> Option<Finding> {
        let (what, why) = match end.code {
            Some(0) => return None,
            None => (
                format!("it did not end within {} s", self.clean.longest.as_secs()),
                "the next life waits for something that the dead one was to do",
            ),
            Some(code) => {
                // Behind what the command said stands what Outlast says of its end.
                let own = |line: &&str| !line.starts_with("outlast: ") && !line.trim().is_empty();
                let last = end.stderr.lines().rfind(own).unwrap_or("it said nothing");
                (
                    format!("the next life failed: {} (exit code {code})", last.trim()),
                    "it cannot go on from what the dead one left: remove that, or write beside and rename",
                )
            }
        };
        Some(Finding::new("exit", what, why))
    }

    /// Tries a death without Outlast. Returns whether all was right, and how many calls were bought again.
    fn tried_bare(&self, death: Death) -> Result<(bool, u32)> {
        let death = Death { kind: Kind::Machine, ..death };
        let end = self.live(Some(death), true, self.clean.longest)?;
        let bought_again = self.stage.scene().bought.saturating_sub(self.clean.bought);
        let is_right =
            end.code == Some(0) && self.divergences().is_empty() && self.differences(&end)?.is_empty();
        Ok((is_right && bought_again == 0, bought_again))
    }

    fn live(&self, death: Option<Death>, is_bare: bool, longest: Duration) -> Result<End> {
        self.bed.live(&self.stage, self.provider, death, is_bare, longest)
    }

    /// Returns how tree, effects and standard output differ from the clean run's.
    fn differences(&self, end: &End) -> Result<Vec<Difference>> {
        let mut found = compare::trees(&self.bed.path("clean"), &self.bed.work(), &self.ignored)?;
        if let Some(file) = &self.args.effects {
            let differs = compare::lines(&self.clean.effects, &self.effects());
            let path = file.display().to_string();
            found.extend(differs.map(|(what, sort)| Difference { path, what, sort }));
        }
        // Earlier lives have printed, too.
        if self.args.stdout && !end.stdout.ends_with(&self.clean.stdout) {
            let what = "of the last life is not the clean run's".to_owned();
            found.push(Difference { path: "standard output".into(), what, sort: Sort::Other });
        }
        Ok(found)
    }

    /// Returns the requests of the last lives that are not in the recording, as findings.
    fn divergences(&self) -> Vec<Finding> {
        let why = "a time, a random number or an id stands in the prompt, or the agent has lost its place: take it in a \
                   step, or keep it in the run's state";
        let finding = |what: &String| Finding::new("diverged", format!("diverged: {what}"), why);
        self.stage.scene().diverged.iter().map(finding).collect()
    }

    /// Returns the ledger of effects; empty where there is none.
    fn effects(&self) -> String {
        let file = self.args.effects.as_ref().map(|file| self.bed.work().join(file));
        file.and_then(|file| fs::read(file).ok())
            .map_or_else(String::new, |b| String::from_utf8_lossy(&b).into_owned())
    }
}

/// Returns whether a death has a counterpart without Outlast: at the provider, once a boundary.
fn can_be_bare(death: Death) -> bool {
    death.kind == Kind::Machine && matches!(death.at.moment, Moment::CallLeft | Moment::CallHalf)
}

/// Returns whether a path stays below the directory that it begins in.
fn is_inside(path: &Path) -> bool {
    path.components().all(|part| matches!(part, Component::Normal(_) | Component::CurDir))
}

/// Returns the line that was typed, without the deaths that it names.
fn typed(context: &Context) -> String {
    let words: Vec<String> =
        context.typed.iter().skip(1).map(|word| word.to_string_lossy().into_owned()).collect();
    let mut line = vec!["outlast".to_owned()];
    let mut words = words.into_iter();
    while let Some(word) = words.next() {
        match word.as_str() {
            "--" => {
                line.push(word);
                line.extend(words.by_ref().map(|word| quote::word(&word)));
            }
            "--only" => drop(words.next()),
            word if word.starts_with("--only=") => {}
            word => line.push(quote::word(word)),
        }
    }
    line.join(" ")
}

/// Returns where a boundary is, in words. `what`: the name of its step, tool or item.
fn place(at: Boundary, what: &str) -> String {
    let n = at.number;
    match at.moment {
        Moment::CallReserved => format!("before call {n} leaves"),
        Moment::CallLeft => format!("between call {n} and its answer"),
        Moment::CallHalf => format!("in the middle of the answer to call {n}"),
        Moment::CallStored => format!("between the recording of answer {n} and its delivery"),
        Moment::StepBegun => format!("before the function of step {what}"),
        Moment::StepRecorded => format!("between the recording of step {what} and its delivery"),
        Moment::ToolReserved => format!("before tool {what} is called"),
        Moment::ToolSent => format!("before tool {what} is called, after its wait"),
        Moment::ToolRecorded => format!("between the recording of tool {what} and its delivery"),
        Moment::ItemClaimed => format!("before the function of item {what}"),
        Moment::ItemRecorded => format!("after item {what} is recorded"),
        Moment::StateCommitted => format!("after commit {n} of the state"),
        Moment::CheckpointSaved => format!("after checkpoint {what} is saved"),
        Moment::IterationBegun => format!("before iteration {n}"),
        Moment::IterationJudged => format!("after iteration {n}"),
    }
}

/// Returns why a difference comes of a death at a place, and what helps.
fn why(sort: Sort, place: &str) -> String {
    match sort {
        Sort::More => format!(
            "after a death {place} the next life did it again, as nothing told it what had been done: make it an \
             outlast.tool, or a step with at_most_once"
        ),
        Sort::New => format!(
            "after a death {place} nobody took it away, or the next life did it again under another name: give it a name \
             that is the same in each life, and remove it when a life begins"
        ),
        Sort::Fewer => format!(
            "after a death {place} the next life took it for done: note what is done after it is done, in a step or in \
             the run's state"
        ),
        Sort::Other => format!(
            "after a death {place} the next life did something else: what it goes by is not kept, or was half written; \
             write beside and rename, or keep it in the run's state"
        ),
    }
}
