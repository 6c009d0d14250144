//! Derivation of events from the rows of a decision, before and after it.

use serde_json::{Value, json};

use super::{Event, Kind, Mark};
use crate::{
    engine::{Loaded, loaded::Table},
    envelope::{Amounts, Envelope, Limits, Owner, Unit},
    journal::{ApprovalId, Entry, Kind as EntryKind, State},
    run::{Attempt, Run, Status},
    words::{AttemptNo, EnvelopeNo, Micros, Outage, Row, RunNo, Seq, Touch},
};

/// Shares of a limit whose crossing is an event, in percent.
const SHARES: [i64; 3] = [50, 80, 100];

/// Facts of the loaded rows from which events are derived, as they were before a decision. Small: no row is cloned.
#[derive(Default)]
pub struct Before {
    runs: Vec<(RunNo, Status, Option<Outage>)>,
    attempts: Vec<((RunNo, AttemptNo), bool, bool)>,
    envelopes: Vec<(EnvelopeNo, Limits, Amounts)>,
    entries: Vec<((RunNo, Seq), State, bool)>,
}

impl Before {
    pub fn of(l: &Loaded) -> Before {
        fn facts<T: Table, F>(rows: &[Row<T>], of: impl Fn(&T) -> F) -> Vec<F> {
            rows.iter().map(|row| of(&row.value)).collect()
        }
        Before {
            runs: facts(&l.runs, |r: &Run| (r.no, r.status, outage(r).cloned())),
            attempts: facts(&l.attempts, |a: &Attempt| (a.id(), a.is_open(), a.diverged.is_some())),
            envelopes: facts(&l.envelopes, |e: &Envelope| (e.no, e.limits, e.spent)),
            entries: facts(&l.entries, |e: &Entry| (e.id(), e.state, has_overrun(e))),
        }
    }

    /// Returns the events of a decision, from the rows as it left them.
    pub fn derive(&self, l: &Loaded, now: Micros) -> Vec<Event> {
        let mut found = Found { now, events: Vec::new() };
        for row in touched(&l.runs) {
            let before = self.runs.iter().find(|b| b.0 == row.value.no);
            let act = l.entries.iter().filter(|e| e.touch == Touch::Insert && e.value.run == row.value.no);
            let by = act.clone().find_map(|e| e.value.act()).map(|(_, act)| act.by.as_str());
            found.run(&row.value, before.map(|b| (b.1, b.2.as_ref())), by);
        }
        // What came with a run of another store was told there.
        let is_new = |no: RunNo| l.runs.iter().any(|row| row.touch == Touch::Insert && row.value.no == no);
        for row in touched(&l.attempts).filter(|row| !is_new(row.value.run)) {
            let before = self.attempts.iter().find(|b| b.0 == row.value.id());
            found.attempt(&row.value, before.map(|b| (b.1, b.2)));
        }
        for row in
            touched(&l.envelopes).filter(|row| !matches!(row.value.owner, Owner::Run(no) if is_new(no)))
        {
            let before = self.envelopes.iter().find(|b| b.0 == row.value.no);
            found.envelope(&row.value, before.map(|b| (&b.1, &b.2)));
        }
        for row in touched(&l.entries).filter(|row| !is_new(row.value.run)) {
            let before = self.entries.iter().find(|b| b.0 == row.value.id());
            found.entry(&row.value, before.map(|b| (b.1, b.2)));
        }
        for (run, _, namespace) in &l.forgotten {
            let id = namespace.strip_prefix("run:").unwrap_or(namespace);
            found.push(Kind::RunRemoved, Some(*run), None, json!({ "run": id }));
        }
        found.events
    }
}

fn touched<T>(rows: &[Row<T>]) -> impl Iterator<Item = &Row<T>> {
    rows.iter().filter(|row| row.touch != Touch::Read)
}

fn outage(run: &Run) -> Option<&Outage> {
    run.awaited_outage().map(|(outage, _)| outage)
}

/// Returns whether a run that waited for its provider goes on, or would if somebody drove it: the provider answered.
fn goes_on(was: Status, is: Status) -> bool {
    matches!(is, Status::Running | Status::Waiting) || (was, is) == (Status::Interrupted, Status::Interrupted)
}

fn has_overrun(e: &Entry) -> bool {
    e.call.as_ref().is_some_and(|call| !call.overrun().is_zero())
}

/// Events found so far.
struct Found {
    now: Micros,
    events: Vec<Event>,
}

impl Found {
    fn push(&mut self, kind: Kind, run: Option<RunNo>, seq: Option<Seq>, about: Value) {
        self.events.push(Event { mark: Mark::default(), at: self.now, run, seq, kind, about });
    }

    fn run(&mut self, run: &Run, before: Option<(Status, Option<&Outage>)>, by: Option<&str>) {
        let no = Some(run.no);
        let Some((was, waited)) = before else {
            self.push(Kind::RunCreated, no, None, json!({ "run": run.id }));
            return;
        };
        if was != run.status {
            let mut about = json!({
                "from": was.name(),
                "to": run.status.name(),
                "code": run.halt.as_ref().map(|halt| &halt.code),
                "message": run.why(),
                "wake_at": run.wake_at.map(|at| at.0),
            });
            if let Some(outage) = outage(run) {
                about["upstream"] = outage.upstream.as_str().into();
            }
            if let Some(evidence) = run.halt.as_ref().and_then(|halt| halt.waited.as_ref()) {
                about["waited"] = json!(evidence);
            }
            if let Some(by) = by {
                about["by"] = by.into();
            }
            if run.status == Status::Interrupted {
                // Nobody has driven a halted or a completed run: a person gives it room, or has items of it run again.
                let is_at_rest = matches!(was, Status::Halted | Status::Completed);
                about["by_person"] = (run.stop_requested || is_at_rest).into();
            }
            self.push(Kind::Status, no, None, about);
        }
        match (waited, run.awaited_outage()) {
            (before, Some((outage, since))) if before != Some(outage) => {
                let about = json!({
                    "upstream": outage.upstream,
                    "code": outage.cause.code(),
                    "message": outage.to_string(),
                    "needs_a_person": outage.cause.needs_a_person(),
                    "began_at": since.began.0,
                });
                self.push(Kind::OutageBegan, no, None, about);
            }
            // A run that ends, or whose wait its supervisor ended, tells nothing of its provider.
            (Some(outage), None) if goes_on(was, run.status) => {
                self.push(Kind::OutageEnded, no, None, json!({ "upstream": outage.upstream }));
            }
            _ => {}
        }
    }

    fn attempt(&mut self, a: &Attempt, before: Option<(bool, bool)>) {
        let (was_open, had_diverged) = before.unwrap_or((true, false));
        if before.is_none() {
            let about = json!({
                "attempt": a.no, "slot": a.slot, "iteration": a.iteration, "label": a.label,
            });
            self.push(Kind::AttemptBegan, Some(a.run), None, about);
        }
        if let Some(seq) = a.diverged.filter(|_| !had_diverged) {
            let about = json!({ "attempt": a.no, "untaken": a.diverged_untaken });
            self.push(Kind::Diverged, Some(a.run), Some(seq), about);
        }
        if was_open && !a.is_open() {
            let about = json!({
                "attempt": a.no, "iteration": a.iteration, "died": a.died(), "exit": a.exit,
            });
            self.push(Kind::AttemptEnded, Some(a.run), None, about);
        }
    }

    /// Adds an event for each limit of the envelope of which a further share of [`SHARES`] is spent, with the
    /// highest share reached.
    fn envelope(&mut self, e: &Envelope, before: Option<(&Limits, &Amounts)>) {
        for unit in Unit::ALL {
            let Some(limit) = e.limits[unit].filter(|limit| *limit > 0) else { continue };
            let reached = |spent: i64, limit: i64| {
                let share =
                    |percent: &i64| i128::from(spent) * 100 >= i128::from(limit) * i128::from(*percent);
                SHARES.into_iter().filter(share).max().unwrap_or(0)
            };
            let was = before.map_or(0, |(limits, spent)| match limits[unit].filter(|limit| *limit > 0) {
                Some(limit) => reached(spent[unit], limit),
                None => 0,
            });
            let is = reached(e.spent[unit], limit);
            if is <= was {
                continue;
            }
            let mut about =
                json!({ "unit": unit.name(), "percent": is, "spent": e.spent[unit], "limit": limit });
            let run = match &e.owner {
                Owner::Run(run) => Some(*run),
                Owner::Window { name, period } => {
                    about["budget"] = name.as_str().into();
                    about["period"] = period.as_str().into();
                    None
                }
            };
            self.push(Kind::Budget, run, None, about);
        }
    }

    fn entry(&mut self, e: &Entry, before: Option<(State, bool)>) {
        let (run, seq) = (Some(e.run), Some(e.seq));
        if let Some(approval) = &e.approval {
            let id = ApprovalId { run: e.run, seq: e.seq }.to_string();
            match (before, e.state) {
                (None, State::Open) => {
                    let at = approval.expires_at.0;
                    let about = json!({ "id": id, "tool": approval.tool, "expires_at": at });
                    self.push(Kind::ApprovalAsked, run, seq, about);
                }
                (None | Some((State::Open, _)), state) if state != State::Open => {
                    let decision = approval.decision.as_ref();
                    let about = json!({
                        "id": id, "tool": approval.tool, "blocked": approval.blocked,
                        "approve": decision.is_some_and(|d| d.approve),
                        "by": decision.map(|d| &d.by),
                        "way": decision.and_then(|d| d.way.as_ref()),
                    });
                    self.push(Kind::ApprovalDecided, run, seq, about);
                }
                _ => {}
            }
        }
        if e.state == State::Unknown && before.is_none_or(|(was, _)| was != State::Unknown) {
            let about = json!({
                "kind": e.kind.name(), "key": e.key, "held_nano_usd": e.held.cost(),
                "model": e.call.as_ref().map(|call| &call.model),
            });
            self.push(Kind::Doubt, run, seq, about);
        }
        if e.kind == EntryKind::Call && has_overrun(e) && !before.is_some_and(|(_, had)| had) {
            let over = e.call.as_ref().map(|call| call.overrun()).unwrap_or_default();
            self.push(Kind::Overrun, run, seq, json!({ "nano_usd": over.cost(), "tokens": over.tokens() }));
        }
    }
}
