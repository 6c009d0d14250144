//! `outlast verify`: checks the store against its own checksums and sums, or a JSONL file line by line.

use outlast_core::{
    engine::Recount,
    envelope::{
        BudgetView,
        audit::{Gone, Sums},
    },
    journal::{Counts, LedgerLine, Role},
    run::Own,
    words::EnvelopeNo,
};

use super::prelude::*;
use crate::files;

/// Check the store, or a JSONL file, for damage
///
/// The database's own check, every stored value against its checksum, and the sums of each budget, run and job against
/// their entries. Damage is told and never covered up: exit code 1.
#[derive(Args, Clone, Debug)]
#[command(
    after_help = "Examples:\n  outlast verify\n  outlast verify --repair\n  outlast verify runs/enrich-docs.jsonl --repair"
)]
pub struct VerifyArgs {
    /// A JSONL file of results, in place of the store
    #[arg(value_name = "FILE.jsonl")]
    pub file: Option<String>,
    /// Make anew what can be told from the rest: indexes, a job's counts. Of a JSONL file, damaged lines are moved to FILE.damaged
    #[arg(long)]
    pub repair: bool,
}

const PAGE: usize = 1000;

/// Checks the whole store. Returns the exit code: `REFUSED` if damage was found and not repaired.
/// `of_files`: what is damaged in the files of its runs.
pub fn verify(args: &VerifyArgs, Desk { store, context, page, .. }: Desk) -> Result<u8> {
    let mut damage = store.damage(false)?;
    let mut repaired = Vec::new();
    if args.repair && !damage.is_empty() {
        let left = store.damage(true)?;
        let again = |line: &String| left.contains(line);
        repaired.extend(damage.into_iter().filter(|line| !again(line)));
        damage = left;
    }
    damage.extend(files::damage(store, context)?);
    let named = store.budgets()?;
    let mut count = 0;
    let mut sums: BTreeMap<EnvelopeNo, Sums> = BTreeMap::new();
    let mut seen = Vec::new();
    for view in runs::each(store, RunFilter::default()) {
        let view = view?;
        count += 1;
        let ledger = store.sums(view.run.no)?;
        let found = entries(store, &view, &mut sums, &mut damage)?;
        let (wrong, mended) = counts(store, &view, args.repair)?;
        let told = if mended { &mut repaired } else { &mut damage };
        told.extend(wrong);
        seen.push((view.run.no, (view.run.own, ledger), found));
    }
    let mut gone = Gone::default();
    for (run, (before, ledger), (own, lines)) in seen {
        // The run is read after all entries. A run that is gone by now is found by the gap it leaves.
        let Some(view) = store.run(run)? else { continue };
        let child_gone = gone.child_of(&view.run);
        damage.extend(budget(&view, &sums.remove(&view.run.envelope()).unwrap_or_default(), child_gone));
        damage.extend(own_sums(&view.run, before, own));
        damage.extend(ledger_lines(&view.run, (&ledger, &store.sums(run)?), &lines));
    }
    // Budgets that changed meanwhile are skipped: they may be ahead of the entries that were read.
    for view in store.budgets()?.iter().filter(|view| named.contains(view)) {
        damage.extend(window(view, &sums, gone.any()));
    }
    print(&store.place(), &some(count, "run"), &damage, &repaired, page)
}

/// Checks the newest window of a named budget against the entries charged to it.
fn window(view: &BudgetView, sums: &BTreeMap<EnvelopeNo, Sums>, run_gone: bool) -> Option<String> {
    let e = view.envelope.as_ref()?;
    let wrong = sums.get(&e.no).copied().unwrap_or_default().differ(e, run_gone)?;
    Some(format!("budget {}: {wrong}", view.budget.name))
}

/// Checks a JSONL file of results that has no record in the store. Returns the exit code.
pub fn verify_lines(args: &VerifyArgs, context: &Context, page: &mut Page) -> Result<u8> {
    let path = &context.around.directory().join(args.file.as_deref().unwrap_or_default());
    let told = |scan: &jsonl::Scan| -> Vec<String> {
        let what =
            |torn| if torn { "is torn, and will be cut by the next start" } else { "is no result of a job" };
        scan.damage.iter().map(|d| format!("line {} {}", d.line, what(d.torn))).collect()
    };
    let unreadable = |why: io::Error| CliError::from(InputError::Results { path: path.to_owned(), why });
    let scan = jsonl::scan(path).map_err(unreadable)?;
    let lines: usize = scan.jobs.values().map(|results| results.lines).sum();
    let (mut damage, mut repaired) = (told(&scan), Vec::new());
    // What a program or `out=` has written for others to read: nothing of it is ours to move.
    if lines == 0 && scan.damage.iter().any(|d| !d.torn) {
        damage = vec!["none of its lines is a result of a job by resume_or_start; it stays as it is".into()];
    } else if args.repair && !damage.is_empty() {
        let moved = jsonl::repair(path).map_err(unreadable)?;
        repaired = damage.drain(..).map(|line| format!("{line}: moved to {}", moved.display())).collect();
    }
    print(&path.display().to_string(), &some(lines as i64, "result"), &damage, &repaired, page)
}

fn print(place: &str, what: &str, damage: &[String], repaired: &[String], page: &mut Page) -> Result<u8> {
    let code = if damage.is_empty() { exit_code::OK } else { exit_code::REFUSED };
    if page.look.json {
        page.json(&json!({ "place": place, "damage": damage, "repaired": repaired }))?;
        return Ok(code);
    }
    for line in repaired {
        page.line(&format!("repaired: {line}"))?;
    }
    for line in damage {
        page.line(&format!("damaged: {line}"))?;
    }
    let found = if damage.is_empty() { "no damage".into() } else { some(damage.len() as i64, "fault") };
    page.line(&format!("{place}: {what}, {found}"))?;
    Ok(code)
}

/// Adds up a run's entries by envelope, and checks every payload that is stored for them. Returns the sums of the run's own,
/// and its lines of the ledger.
fn entries(
    store: &dyn Store,
    view: &RunView,
    sums: &mut BTreeMap<EnvelopeNo, Sums>,
    damage: &mut Vec<String>,
) -> Result<(Own, Vec<LedgerLine>)> {
    let (run, mut after, mut end) = (&view.run, Seq(0), view.run.next_seq);
    let (mut own, mut lines) = (Own::default(), Vec::new());
    damage.extend(value(store, run.no, Seq(0), Role::Stdin)?.map(|what| format!("run {}: {what}", run.id)));
    loop {
        let page = store.entries(run.no, after, PAGE)?;
        let Some(last) = page.last() else { return Ok((own, LedgerLine::sum(lines))) };
        after = last.seq;
        let whole = page.len() == PAGE;
        for e in page {
            own.replace(&Own::default(), &Own::of(&e));
            LedgerLine::of(&e).into_iter().for_each(|line| line.post(&mut lines));
            if e.seq >= end {
                // A run at work goes on while its entries are read.
                end = store.run(run.no)?.map_or(end, |view| view.run.next_seq);
            }
            if e.seq >= end {
                damage.push(format!("run {}: entry {} is beyond its journal's end", run.id, e.seq));
            }
            for envelope in run.charges.iter().chain(e.windows()) {
                sums.entry(*envelope).or_default().add(&e);
            }
            damage.extend(values(store, run.no, &e)?.map(|what| format!("run {}: {what}", run.id)));
        }
        if !whole {
            return Ok((own, LedgerLine::sum(lines)));
        }
    }
}

/// Describes the first payload of an entry that does not match its checksum; `None` if all match.
fn values(store: &dyn Store, run: RunNo, e: &Entry) -> Result<Option<String>> {
    let roles: &[Role] = match e.kind {
        Kind::Call => &[Role::Request, Role::Answer],
        Kind::Tool | Kind::Checkpoint | Kind::Approval => &[Role::About, Role::Value],
        Kind::Iteration => &[Role::Stdin],
        _ => &[Role::Value],
    };
    roles.iter().find_map(|role| value(store, run, e.seq, *role).transpose()).transpose()
}

/// Describes a value that does not match its checksum. Entry 0 stands for the run itself.
fn value(store: &dyn Store, run: RunNo, seq: Seq, role: Role) -> Result<Option<String>> {
    let Some(Err(why)) = store.payload(run, seq, role)?.map(|kept| kept.decode()) else { return Ok(None) };
    Ok(Some(format!("the {role:?} of entry {seq} is damaged: {why}").to_lowercase()))
}

/// Checks a job's counts against its items. Returns what is wrong, and whether it was repaired.
fn counts(store: &dyn Store, view: &RunView, repair: bool) -> Result<(Option<String>, bool)> {
    let Some(job) = &view.run.job else { return Ok((None, false)) };
    // What is not counted from the items stands nowhere else.
    let mut counts = Counts { open: 0, done: 0, failed: 0, dead: 0, skipped: 0, ..job.counts };
    for row in entries::items(store, view.run.no) {
        *counts.of_mut(row?.detail.standing) += 1;
    }
    if counts == job.counts {
        return Ok((None, false));
    }
    // A job at work has moved on since its row was read.
    let now = store.run(view.run.no)?;
    if now.as_ref().is_some_and(|v| v.run.next_seq != view.run.next_seq || v.run.closed != view.run.closed) {
        return Ok((None, false));
    }
    let mended = repair
        && store
            .ask(Recount { run: view.run.no, seen: view.run.next_seq, counts }, Durability::Synced)
            .wait()?;
    Ok((Some(format!("job {} counts {:?}, and its items are {counts:?}", view.run.id, job.counts)), mended))
}

/// Checks the sums in a run's row against those of its entries. `before`: the row's, when the entries were not read yet; a
/// run that has changed them since is not judged.
fn own_sums(run: &Run, before: Own, sums: Own) -> Option<String> {
    let differ = before == run.own && sums != before;
    differ.then(|| format!("run {}: its row counts {before:?}, and its calls add up to {sums:?}", run.id))
}

/// Checks a run's lines of the ledger, as they were before and after its calls were read, against these. One that has
/// changed meanwhile is not judged.
fn ledger_lines(
    run: &Run,
    (before, after): (&[LedgerLine], &[LedgerLine]),
    lines: &[LedgerLine],
) -> Option<String> {
    let differ = before == after && lines != before;
    differ.then(|| format!("run {}: the ledger has {before:?}, and its calls add up to {lines:?}", run.id))
}

/// Checks a run's budget against its entries and those of its children.
fn budget(view: &RunView, sums: &Sums, child_gone: bool) -> Option<String> {
    let e = &view.envelope;
    let wrong = match view.run.status {
        // Envelopes are read after the entries: that of a run at work may be ahead of them, never behind.
        Status::Running | Status::Waiting => e.inconsistency(),
        _ => sums.differ(e, child_gone),
    };
    wrong.map(|wrong| format!("run {}: {wrong}", view.run.id))
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use outlast_core::{
        engine::{Actor, CountLoop, Enter, Register, Start},
        memory::MemoryStore,
        run::Identity,
        words::{ManualClock, Micros, RunId},
    };

    use super::*;

    // Bug: `verify` told damage to a run at work. Consequence: a whole store looked broken, and true damage was lost
    // among that. Cause: a run's row is read before its entries, and the run had gone on in between.
    #[test]
    fn entries_that_a_run_at_work_adds_are_no_damage() {
        let store = MemoryStore::new(Arc::new(ManualClock::new(Micros(1_800_000_000_000_000))));
        let id = RunId::new("r1").unwrap();
        let run = store.run_verb(Start::new(id), Durability::Synced).unwrap().run;
        let identity = Identity::default();
        let instance = store.run_verb(Register { identity }, Durability::Synced).unwrap();
        let entered = store.run_verb(Enter { run, label: None, instance }, Durability::Synced).unwrap();
        let before = store.run(run).unwrap().unwrap();
        let seq = before.run.next_seq;
        let actor = Actor { run, attempt: entered.attempt, instance };
        let count = CountLoop { actor, slot: entered.slot, iteration: entered.iteration, key: None };
        store.run_verb(count, Durability::Synced).unwrap();
        let (mut sums, mut damage) = Default::default();
        entries(&store, &before, &mut sums, &mut damage).unwrap();
        assert_eq!(damage, Vec::<String>::new());
        store.tamper(|tables| tables.runs.get_mut(&run).unwrap().next_seq = seq);
        entries(&store, &before, &mut sums, &mut damage).unwrap();
        assert_eq!(damage, [format!("run r1: entry {seq} is beyond its journal's end")]);
    }

    #[test]
    fn a_runs_own_sums_that_are_not_those_of_its_calls_are_damage() {
        let store = MemoryStore::new(Arc::new(ManualClock::new(Micros(1_800_000_000_000_000))));
        let run = store.run_verb(Start::new(RunId::new("r1").unwrap()), Durability::Synced).unwrap().run;
        let told = |had: Own| {
            store.tamper(|tables| tables.runs.get_mut(&run).unwrap().own = had);
            let (view, mut damage) = (store.run(run).unwrap().unwrap(), Vec::new());
            let (sums, _) = entries(&store, &view, &mut BTreeMap::new(), &mut damage).unwrap();
            // As a run at work leaves it, which has changed its sums since.
            let later = Own { calls: had.calls + 1, ..had };
            assert_eq!((own_sums(&view.run, later, sums), damage), (None, Vec::new()));
            own_sums(&view.run, had, sums)
        };
        assert_eq!(told(Own::default()), None);
        let wrong = told(Own { cost_nano_usd: 7, ..Own::default() }).unwrap();
        assert!(wrong.starts_with("run r1: its row counts Own { cost_nano_usd: 7,"), "{wrong}");
    }

    #[test]
    fn lines_of_the_ledger_that_are_not_those_of_its_calls_are_damage() {
        let store = MemoryStore::new(Arc::new(ManualClock::new(Micros(1_800_000_000_000_000))));
        let run = store.run_verb(Start::new(RunId::new("r1").unwrap()), Durability::Synced).unwrap().run;
        let run = store.run(run).unwrap().unwrap().run;
        let (none, one) = (Vec::new(), vec![LedgerLine { calls: 1, ..LedgerLine::default() }]);
        assert_eq!(ledger_lines(&run, (&one, &one), &one), None);
        // As a run at work leaves it, which has bought something meanwhile.
        assert_eq!(ledger_lines(&run, (&none, &one), &one), None);
        let wrong = ledger_lines(&run, (&one, &one), &none).unwrap();
        assert!(wrong.contains("calls: 1") && wrong.ends_with("its calls add up to []"), "{wrong}");
    }
}
