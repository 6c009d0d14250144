//! Runs: a row of a list, and one run with its budget and settings.

use std::collections::BTreeMap;

use outlast_core::{
    envelope::{Evidence, Refusal, Unit},
    journal::job,
    reads::tightest::{self, Whose},
    run::{self, Looping, Origin, Policy, Status, rules::Rules},
    store::RunView,
    words::{Micros, RunId, Seq},
};

use crate::{
    BudgetLine, Time, lines,
    money::{Billed, InDoubt, Limit, Listed, Reserved, Saved, Spent, WithChildren},
};

shape! {
    /// Run as a row of a list.
    pub Run(view: &RunView, now: Micros; let (run, e, own, listed) = (&view.run, &view.envelope, view.run.own, listed(view))) {
        run: RunId = run.id.clone();
        name: Option<String> = view.spec.name.clone();
        status: &'static str = run.status.name();
        tags: BTreeMap<String, String> = view.spec.tags.clone();
        /// Directory in which its command or its program was started.
        directory: Option<String> = view.spec.begun_in().map(str::to_owned);
        /// Login whose subscription covers its calls: they have a list price, and are not billed.
        login: Option<String> = view.spec.login.clone();
        created_at: Time = Time(run.created_at);
        began_at: Option<Time> = run.began_at.map(Time);
        ended_at: Option<Time> = run.ended_at.map(Time);
        /// Time until which it sleeps.
        wake_at: Option<Time> = run.wake_at.map(Time);
        halt_code: Option<String> = run.halt.as_ref().map(|halt| halt.code.clone());
        /// Reason for which it is halted, waits, failed or was left.
        why: Option<String> = run.why();
        stop_requested: bool = run.stop_requested;
        attempt_count: i64 = run.next_attempt.0 - 1;
        restarts: i64 = e.spent[Unit::Restarts];
        iteration: i64 = run.iteration;
        /// Number of entries of its journal.
        entries: i64 = run.next_seq.0 - 1;
        /// Number of approvals that wait for a person.
        pending_approvals: usize = run.approvals.as_ref().map_or(0, |awaited| awaited.pending(now));
        calls: i64 = own.calls;
        /// Number of `calls` that failed and cost nothing.
        unpaid_calls: i64 = own.unpaid_calls;
        tokens: i64 = own.tokens;
        loops: i64 = e.spent[Unit::Loops];
        #[serde(flatten)] spent: Spent = Spent::new(own.cost_nano_usd);
        #[serde(flatten)] with_children: WithChildren = WithChildren::new(with_children(view));
        #[serde(flatten)] billed: Billed = Billed::new(own.cost_nano_usd - listed);
        #[serde(flatten)] listed: Listed = Listed::new(listed);
        #[serde(flatten)] reserved: Reserved = Reserved::new(e.reserved.cost());
        #[serde(flatten)] in_doubt: InDoubt = InDoubt::new(own.doubt_nano_usd);
        #[serde(flatten)] limit: Limit = Limit::new(e.limits[Unit::CostNanoUsd]);
        /// Number of recorded answers that were given again.
        replayed: i64 = run.replayed;
        #[serde(flatten)] saved: Saved = Saved::new(run.saved_nano_usd);
        /// Absent in a run that is no batch job.
        #[serde(skip_serializing_if = "Option::is_none")]
        job: Option<Job> = job(view);
    }
}

/// Returns how a run goes on that a refusal halts or lets wait.
fn hint(run: &run::Run, refusal: &Refusal, word: &str) -> String {
    match refusal.outage.as_ref().filter(|_| run.status == Status::Interrupted) {
        Some(kept) => kept.outage.hint(false, &format!("`outlast resume {word}`")),
        None => refusal.hint(word),
    }
}

/// Returns the part of a run's charge that is a list price, in nano-USD: all of it where a login's subscription pays.
pub fn listed(view: &RunView) -> i64 {
    view.spec.login.as_ref().map_or(0, |_| view.run.own.cost_nano_usd)
}

/// Returns the charge of a run with its children and forks, in nano-USD; `None` if they cost nothing.
pub fn with_children(view: &RunView) -> Option<i64> {
    Some(view.envelope.spent.cost()).filter(|all| *all != view.run.own.cost_nano_usd)
}

shape! {
    /// Batch job: its items by standing, and its pace.
    pub Job(job: &job::Job, view: &RunView; let (c, pace) = (&job.counts, pace(&job.counts))) {
        /// Name of the job, which runs of several inputs may share.
        name: String = job.name.clone();
        /// Number of items, those that no worker has claimed yet among them.
        items: i64 = c.wanted();
        /// Items that have not ended, those that no worker has claimed yet among them.
        open: i64 = c.wanted() - c.ended();
        /// Whether there may be more items: the input's length is not known, and the job is not completed.
        is_at_least: bool = c.expected == 0 && c.total() > 0 && view.run.status != Status::Completed;
        done: i64 = c.done;
        failed: i64 = c.failed;
        dead: i64 = c.dead;
        skipped: i64 = c.skipped;
        /// Items among these that the input of the last start no longer has.
        vanished: i64 = c.vanished;
        /// Items finished per minute in which a process worked; `None` before `PACED_MS` of such time.
        per_minute: Option<f64> = pace;
        /// Time of work until the last item is finished, at that pace; `None` if nothing is left, no pace is known, or the job waits.
        left_ms: Option<i64> = left_ms(job, view, pace);
    }
}

/// Returns the batch job of a run; `None` if the run is none.
pub fn job(view: &RunView) -> Option<Job> {
    view.run.job.as_deref().map(|job| Job::new(job, view))
}

/// Shortest time of work, in milliseconds, of which a pace is told: it is noted with the heartbeats, and items end between them.
const PACED_MS: i64 = 1_000;

fn pace(c: &job::Counts) -> Option<f64> {
    (c.worked_ms >= PACED_MS).then(|| (c.done + c.failed + c.dead) as f64 * 60_000.0 / c.worked_ms as f64)
}

fn left_ms(job: &job::Job, view: &RunView, pace: Option<f64>) -> Option<i64> {
    let left = job.counts.wanted() - job.counts.ended();
    let goes_on = !view.run.status.is_ended() && view.run.status != Status::Waiting;
    let pace = pace.filter(|pace| goes_on && left > 0 && *pace > 0.0)?;
    Some((left as f64 * 60_000.0 / pace) as i64)
}

shape! {
    /// Limit that a run is nearest to.
    pub Tightest(t: &tightest::Tightest) {
        /// `run`: its own; `above`: that of a run above it; `budget`: that of the named budget in `budget`.
        whose: &'static str = match &t.whose {
            Whose::Own => "run",
            Whose::Above(_) => "above",
            Whose::Named(_) => "budget",
        };
        budget: Option<String> = match &t.whose {
            Whose::Named(name) => Some(name.as_str().to_owned()),
            Whose::Own | Whose::Above(_) => None,
        };
        unit: &'static str = t.unit.name();
        limit: i64 = t.limit;
        spent: i64 = t.spent;
        reserved: i64 = t.reserved;
    }
}

shape! {
    /// Run with its budget and settings. `parent` is the id of the run above it, `word` what commands call the run.
    pub RunDetail(view: &RunView, parent: Option<RunId>, word: &str, now: Micros; let (run, spec) = (&view.run, &view.spec)) {
        #[serde(flatten)] run: Run = Run::new(view, now);
        parent: Option<RunId> = parent;
        halt: Option<Halt> = run.halt.as_ref().map(|halt| Halt::new(halt, hint(run, halt, word)));
        error: Option<String> = run.error.clone();
        budget: Vec<BudgetLine> = lines(view, now);
        command: Option<Command> = spec.command.as_ref().map(Command::new);
        /// Ceilings on the login's plan, as they were typed.
        plan: Option<String> = spec.plan.as_ref().map(ToString::to_string);
        policy: Policy = run.policy;
        rules: Option<Rules> = spec.rules.clone();
        #[serde(rename = "loop")] looping: Option<Loop> = spec.looping().map(|looping| Loop::new(looping, run));
    }
}

shape! {
    /// Rule that halts a run or lets it wait, with the amounts that decided it.
    pub Halt(refusal: &Refusal, hint: String) {
        code: String = refusal.code.clone();
        message: String = refusal.message();
        hint: String = hint;
        unit: Option<&'static str> = refusal.unit.map(Unit::name);
        needs: i64 = refusal.needs;
        free: i64 = refusal.free.max(0);
        limit: i64 = refusal.limit;
        in_doubt: i64 = refusal.doubt;
        at: Time = Time(refusal.at);
        waited: Option<Waited> = refusal.waited.as_deref().map(Waited::new);
    }
}

shape! {
    /// Calls in a row that brought nothing new.
    pub Waited(e: &Evidence) {
        calls: u32 = e.calls;
        first: Seq = e.first;
        since: Time = Time(e.since);
        name: String = e.name.clone();
    }
}

shape! {
    /// Command of a supervised run.
    pub Command(command: &run::Command) {
        argv: Vec<String> = command.argv.clone();
        directory: String = command.directory.clone();
    }
}

shape! {
    /// Loop of a run's command: when it is over, and how far it is.
    pub Loop(looping: &Looping, run: &run::Run; let turns = run.turns.as_deref()) {
        max_iterations: Option<i64> = looping.max_iterations;
        until: Option<String> = looping.until.clone();
        /// Path of the file that each iteration reads.
        stdin: Option<String> = looping.input.clone();
        finished: i64 = turns.map_or(0, |t| t.finished);
        unchanged: i64 = turns.map_or(0, |t| t.unchanged);
    }
}

shape! {
    /// Fork of a run: what it shares with its origin, and whether it is new.
    pub Fork(id: RunId, origin: &RunId, shared: Origin, created: bool) {
        run: RunId = id;
        origin: RunId = origin.clone();
        /// Last entry that it shares.
        seq: Seq = shared.seq;
        /// Time whose state it took along.
        at: Time = Time(shared.at);
        created: bool = created;
    }
}
