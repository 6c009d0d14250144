//! Marks that the seeds have to meet, or they prove nothing: things that happen, statuses, errors of the engine.

use std::collections::{BTreeMap, BTreeSet};

use outlast_core::run::{
    Status,
    status::{Event, next},
};

/// Things that happen.
const MET: [&str; 63] = [
    "new call",
    "clamped",
    "retry of a lost call",
    "diverged",
    "replay",
    "join",
    "joined here",
    "queued",
    "waits",
    "refused",
    "admission timeout",
    "done",
    "done, estimated",
    "refused upstream",
    "failed",
    "void",
    "unknown",
    "late truth",
    "swept to unknown",
    "rested",
    "rested on",
    "wedged",
    "outage",
    "tried again",
    "swept at rest",
    "settled again",
    "voided again",
    "lost after its end",
    "no turn",
    "broke off",
    "ahead",
    "store_full",
    "store_io",
    "store_refused",
    "store_unavailable",
    "store_closed",
    "commit_unknown",
    "conflict",
    "part stored",
    "removed",
    "removed in flight",
    "tool reserved",
    "tool taken over",
    "tool sent",
    "tool replayed",
    "tool in doubt",
    "tool given up",
    "plan let go",
    "plan let go in vain",
    "plan waits",
    "plan rests",
    "plan turned",
    "plan not asked",
    "plan noted again",
    "held",
    "held, and went on",
    "held, and its client left",
    "share settled",
    "share of a gone server",
    "share too small",
    "share in doubt",
    "share given back",
    "share of one that is replaced",
];

/// Changes of status that no seed makes, with the reason.
const STATUSES_APART: [(&str, &str, &str); 5] = [
    ("failed", "halted", "needs a run that is moved to another store: a story of the stores has it"),
    ("interrupted", "sleeping", "needs an open attempt that ends, and a run that is interrupted has none"),
    ("interrupted", "waiting", "nothing waits in a run without an attempt"),
    ("sleeping", "failed", "needs an open attempt that fails, and a run that sleeps has none"),
    ("sleeping", "waiting", "nothing waits in a run without an attempt"),
];

/// Errors of the engine that no seed meets, with the reason.
const ERRORS_APART: [(&str, &str); 11] = [
    ("NewerRun", "a start that names the newest run it has seen: a story of the stores has it"),
    ("NotWhole", "a run that is moved to another store: a story of the stores has it"),
    ("ToolRunning", "a person's word on a tool call: a story of the stores has it"),
    ("ToolNotInDoubt", "a person's word on a tool call: a story of the stores has it"),
    ("RunExists", "told by a read, for a fork whose id is taken"),
    ("UnknownSnapshot", "told by a read"),
    ("UnknownAttempt", "told by a read"),
    ("Compacted", "told by a read of the state"),
    ("TooManyApprovals", "needs a hundred of them: a story of the stores has it"),
    ("NotLoaded", "a defect of a verb: the strict store refuses it"),
    ("Panicked", "a defect of a verb"),
];

/// Marks that one seed in several hundred meets: asked of ten times the usual number of seeds.
const RARE: [&str; 7] = [
    "error StepRunning",
    "error NoRetries",
    "status interrupted -> failed",
    "status interrupted -> halted",
    "status sleeping -> halted",
    "status waiting -> halted",
    "status waiting -> sleeping",
];

/// Panics with what was not met. `with_rare`: whether there were seeds enough for rare marks.
pub fn check(seen: &BTreeMap<String, u64>, with_rare: bool) {
    let mut wanted: BTreeSet<String> = MET.iter().map(|what| (*what).to_owned()).collect();
    for (from, event) in Status::ALL.into_iter().flat_map(|from| Event::ALL.map(|event| (from, event))) {
        let to = next(from, event).filter(|to| *to != from);
        let apart = |to: Status| STATUSES_APART.iter().any(|(a, b, _)| (*a, *b) == (from.name(), to.name()));
        wanted
            .extend(to.filter(|to| !apart(*to)).map(|to| format!("status {} -> {}", from.name(), to.name())));
    }
    let is_apart = |name: &str| ERRORS_APART.iter().any(|(apart, _)| *apart == name);
    wanted.extend(errors().filter(|name| !is_apart(name)).map(|name| format!("error {name}")));
    wanted.retain(|what| with_rare || !RARE.contains(&what.as_str()));
    let missed: Vec<&String> = wanted.iter().filter(|what| !seen.contains_key(*what)).collect();
    println!("{} of {} marks met", wanted.len() - missed.len(), wanted.len());
    assert!(missed.is_empty(), "these seeds never met {missed:#?}");
    let needless: Vec<&str> =
        ERRORS_APART.iter().map(|e| e.0).filter(|name| seen.contains_key(&format!("error {name}"))).collect();
    assert!(needless.is_empty(), "errors listed as out of reach, and met: {needless:?}");
}

/// Returns the names of the engine's errors, read off the source: an enum cannot list its variants.
fn errors() -> impl Iterator<Item = &'static str> {
    let source = include_str!("../../../core/src/engine/error.rs");
    let body = source.split_once("pub enum Error {").unwrap().1.split_once("\n}").unwrap().0;
    body.lines()
        .filter_map(|line| line.strip_prefix("    "))
        .filter(|line| line.starts_with(|c: char| c.is_ascii_uppercase()))
        .map(|line| line.split(|c: char| !c.is_alphanumeric()).next().unwrap())
}
