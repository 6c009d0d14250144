//! Words of a run's story that several faces tell: its lives, its waits, and what it asks a person.

use outlast_core::{run::Attempt, words::Micros};
use outlast_view::{Job, Wait};

use super::{amount::some, time};

/// Most waits of a run that are told where room is short, the newest ones.
const WAITS: usize = 3;

/// Returns the newest waits of a run.
pub fn newest(waits: &[Wait]) -> &[Wait] {
    &waits[waits.len().saturating_sub(WAITS)..]
}

/// Counts attempts and those of them that died: `3 attempts, 2 deaths`.
pub fn lives(attempts: &[Attempt]) -> String {
    let count = |n: usize, one| some(i64::try_from(n).unwrap_or(i64::MAX), one);
    let deaths = match attempts.iter().filter(|a| a.died()).count() {
        0 => "no death".to_owned(),
        died => count(died, "death"),
    };
    format!("{}, {deaths}", count(attempts.len(), "attempt"))
}

/// Tells how far a batch job is: `3 of 10 items done, 1 failed, 0 dead`, and `, 2 skipped` where some were.
pub fn items(job: &Job) -> String {
    let Job { done, failed, dead, skipped, .. } = job;
    let skipped = if *skipped > 0 { format!(", {skipped} skipped") } else { String::new() };
    format!("{done} of {} done, {failed} failed, {dead} dead{skipped}", all_items(job))
}

/// Counts a batch job's items: `12 items`, `at least 12 items` while its input may have more.
pub fn all_items(job: &Job) -> String {
    let items = some(job.items, "item");
    if job.is_at_least { format!("at least {items}") } else { items }
}

/// Tells an outage, over or not: `openai fails with 529 at 22:13:20, for 30 min`, `openai refuses the key (401) since
/// 22:40:00, out since 22:13:20`. `why_since`: time since which its newest cause `why` holds.
pub fn out_of(why: &str, why_since: Micros, from: Micros, to: Option<Micros>) -> String {
    let [since, began] = [why_since, from].map(time::time_of_day);
    let lasted = to.map(|to| time::about(to.ms_since(from)));
    match (lasted, why_since > from) {
        (Some(lasted), false) => format!("{why} at {began}, for {lasted}"),
        (Some(lasted), true) => format!("{why} from {since} on, out at {began}, for {lasted}"),
        (None, false) => format!("{why} since {began}"),
        (None, true) => format!("{why} since {since}, out since {began}"),
    }
}

/// Tells a wait, over or not: `waited for its provider at 22:13:20, for 30 min: anthropic fails with 529`. A reason that came
/// later than the wait is told with its time.
pub fn waited(wait: &Wait, now: Micros) -> String {
    let lasted = time::about(wait.to.map_or(now, |to| to.0).ms_since(wait.from.0));
    let (whom, from) = (wait.whom, time::time_of_day(wait.from.0));
    let mut why = if wait.why.is_empty() { String::new() } else { format!(": {}", wait.why) };
    if !why.is_empty() && wait.why_since.0 > wait.from.0 {
        why.push_str(&format!(" since {}", time::time_of_day(wait.why_since.0)));
    }
    match wait.to {
        Some(_) => format!("waited for {whom} at {from}, for {lasted}{why}"),
        None => format!("waits for {whom} since {from}, for {lasted} so far{why}"),
    }
}

/// Tells what a run asks a person for. `arguments`: those of the tool, in JSON.
pub fn asks(tool: &str, arguments: &str) -> String {
    format!("asks a person: {tool} {arguments}")
}

/// Puts a model's last words in quotation marks.
pub fn last_words(words: &str) -> String {
    format!("last words: “{words}”")
}
