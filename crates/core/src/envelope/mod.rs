//! Envelopes: what a run may spend, as limit, reserved and spent per unit.
//!
//! A call reserves before it leaves and posts its cost when it is settled. The reservation of a lost call stays
//! reserved, marked `doubt`, until its true cost replaces it: nothing in doubt is free.

pub mod audit;
pub mod budget;
pub mod ceiling;
pub mod unit;

use std::fmt;

use serde::{Deserialize, Serialize};

pub use self::{
    budget::{Budget, BudgetView, Per},
    ceiling::{Ceilings, Length, Reached, Share},
    unit::{Amounts, Limits, PerUnit, Unit},
};
use crate::{
    price::has_family,
    words::{EnvelopeNo, Micros, OutSince, Outage, RunNo, Seq},
};

/// Owner of an envelope.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Owner {
    Run(RunNo),
    /// A named budget over a period, for example `team-search` for `2026-11-20`.
    Window {
        name: String,
        period: String,
    },
}

/// One budget. Invariant (the store's tests check it): for every unit with a limit, `spent + reserved ≤ limit`,
/// except by an overrun that is recorded in full.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Envelope {
    pub no: EnvelopeNo,
    pub owner: Owner,
    pub limits: Limits,
    /// Amounts reserved for open entries and for entries in doubt.
    pub reserved: Amounts,
    /// Part of `reserved` that is for entries whose outcome is unknown.
    pub doubt: Amounts,
    /// Amounts spent for good (posted). `wall_ms` is not kept here: it is the time since the run began.
    pub spent: Amounts,
}

impl Envelope {
    pub fn new(no: EnvelopeNo, owner: Owner, limits: Limits) -> Self {
        let zero = Amounts::default();
        Self { no, owner, limits, reserved: zero, doubt: zero, spent: zero }
    }

    /// Returns the amount left under the limit; `None` without a limit. Negative after an overrun.
    pub fn free(&self, unit: Unit) -> Option<i64> {
        self.limits[unit].map(|l| l.saturating_sub(self.spent[unit]).saturating_sub(self.reserved[unit]))
    }

    /// Returns the part of `reserved` that is for calls in flight. Settlements may give some of it back.
    pub fn live(&self, unit: Unit) -> i64 {
        self.reserved[unit] - self.doubt[unit]
    }

    /// Returns whether a call that this envelope is charged for is in flight: its outcome is still to be posted here.
    /// A call in doubt is none.
    pub fn has_calls_in_flight(&self) -> bool {
        self.reserved[Unit::Calls] > 0
    }

    /// Returns the first unit of which `want` does not fit, even after `extra` comes free; `None` if all of it fits.
    pub fn shortfall(&self, want: &Amounts, extra: &Amounts) -> Option<Unit> {
        Unit::ALL.into_iter().find(|&u| {
            want[u] > 0 && self.free(u).is_some_and(|free| free.saturating_add(extra[u]) < want[u])
        })
    }

    /// Returns what is wrong with the sums, or `None`: no sum may be negative, and doubt must be part of `reserved`.
    pub fn inconsistency(&self) -> Option<String> {
        for u in Unit::ALL {
            let (r, d, s) = (self.reserved[u], self.doubt[u], self.spent[u]);
            if r < 0 || d < 0 || s < 0 || d > r {
                return Some(format!(
                    "envelope {}: {} reserved {r}, in doubt {d}, spent {s}",
                    self.no,
                    u.name()
                ));
            }
        }
        None
    }
}

/// Most characters of a model's name that a refusal keeps.
const MODEL: usize = 100;

/// Fewest tokens, and fewest calls, loops or restarts, that a suggested raise adds.
const TOKENS: i64 = 1_000;
const TIMES: i64 = 10;

/// One hour in milliseconds, the least time that a suggested raise adds.
const HOUR_MS: i64 = 3_600_000;

/// One cent in nano-USD, and the fewest cents that a suggested raise adds.
const CENT: i64 = 10_000_000;
const CENTS: i64 = 10;

/// Refusal of a call, a loop or a restart. Callers over HTTP get 402; people read its message.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Refusal {
    pub code: String,
    pub unit: Option<Unit>,
    /// Least amount that the operation needed, in `unit`.
    pub needs: i64,
    /// Amount that was left under the limit, in `unit`. Negative after an overrun, or under a limit that was lowered.
    pub free: i64,
    pub limit: i64,
    /// Part of the missing amount that is reserved for calls whose outcome is unknown.
    pub doubt: i64,
    pub at: Micros,
    /// Owner of the budget that refuses; `None` if it is the run's own. While another owner refuses, the run waits and
    /// is not halted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub whose: Option<Whose>,
    /// Word by which commands find the run whose budget refuses, where the refusal was told with it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub above: Option<Box<str>>,
    /// Outage of the provider that the run waits for, since `at`. If it is set, no budget refuses anything.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub outage: Option<Box<KeptOutage>>,
    /// Model without a known price, or with `is_fee` the feature of a request; `None` in any other refusal.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub model: Option<Box<str>>,
    /// Whether what has no known price is the fee of a request's feature, beside its tokens.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub is_fee: bool,
    /// Ceiling on the login's plan that the next call would pass. The run sleeps until the window resets.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub plan: Option<Box<Reached>>,
    /// Calls without progress, for which the run is halted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub waited: Option<Box<Evidence>>,
    /// Bundle in which the run has left this store.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub moved: Option<Box<Moved>>,
}

/// Bundle in which a run has left its store, to go on where the bundle is imported.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Moved {
    /// Path of the file as it was written.
    pub bundle: String,
    /// Digest of the file; `None` while it is not known to be whole.
    pub sha256: Option<String>,
    /// Refusal for which the run was halted when it left, and is again where it goes on.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub halt: Option<Box<Refusal>>,
    /// Machine to which `outlast move` sends it; `None`: a person takes it to another.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub to: Option<String>,
    /// Whether it is known to be imported on that machine.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub has_arrived: bool,
}

impl Moved {
    /// Returns the bundle of which it is not known yet whether it is whole.
    pub fn begun(bundle: String, to: Option<String>) -> Moved {
        Moved { bundle, sha256: None, halt: None, to, has_arrived: false }
    }
}

impl fmt::Display for Moved {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (&self.to, &self.sha256) {
            (Some(to), _) if self.has_arrived => write!(f, "it goes on at {to}"),
            (Some(to), _) => write!(f, "its move to {to} was cut off"),
            (None, Some(sha256)) => {
                write!(f, "it goes on where {} is imported (sha-256 {sha256})", self.bundle)
            }
            (None, None) => write!(f, "its export to {} was cut off", self.bundle),
        }
    }
}

/// Budget of another owner that a run's calls are charged to.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Whose {
    /// Budget of an ancestor run.
    Parent(RunNo),
    /// Named budget.
    Named {
        name: String,
        /// Name of the period; empty if the budget has no end.
        period: String,
        /// Time at which the next period begins; `None` if the budget has no end.
        until: Option<Micros>,
    },
}

/// Outage that a run waits through, as its row keeps it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct KeptOutage {
    #[serde(flatten)]
    pub outage: Outage,
    /// Time since which its cause is of the kind that it is now; `None` if it was from the outage's begin.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cause_at: Option<Micros>,
}

impl Refusal {
    pub fn of(unit: Unit, needs: i64, envelope: &Envelope, free: i64, at: Micros) -> Self {
        Self {
            unit: Some(unit),
            needs,
            free,
            limit: envelope.limits[unit].unwrap_or(i64::MAX),
            doubt: envelope.doubt[unit],
            ..Self::plain(unit.refusal_code(), at)
        }
    }

    /// Takes the limit, and what is left of it, from the envelope of the run that its own budget halted. Wall time is
    /// in no envelope.
    pub fn follow(&mut self, envelope: &Envelope) {
        let Some(unit) = self.unit.filter(|_| self.whose.is_none()) else { return };
        let Some(limit) = envelope.limits[unit] else { return };
        (self.limit, self.doubt) = (limit, envelope.doubt[unit]);
        if unit != Unit::WallMs {
            self.free = envelope.free(unit).unwrap_or(self.free);
        }
    }

    /// Returns the refusal with `whose` as the owner of the budget that refuses.
    pub fn by(self, whose: Whose) -> Self {
        Self { whose: Some(whose), ..self }
    }

    /// Returns a refusal for another reason than a limit: `price_unknown`, `diverged`, `cancelled`.
    pub fn plain(code: &str, at: Micros) -> Self {
        Self { code: code.into(), at, ..Self::default() }
    }

    /// Returns the refusal of a call that would pass a ceiling on the login's plan.
    pub fn plan(reached: Reached, at: Micros) -> Self {
        Self { plan: Some(Box::new(reached)), ..Self::plain("plan_ceiling", at) }
    }

    /// Returns the refusal of a call of an agent that makes no progress.
    pub fn no_progress(evidence: Evidence, at: Micros) -> Self {
        Self { waited: Some(Box::new(evidence)), ..Self::plain("no_progress", at) }
    }

    /// Returns the reason for which a run that has left its store is halted there.
    pub fn moved(moved: Moved, at: Micros) -> Self {
        Self { moved: Some(Box::new(moved)), ..Self::plain("moved", at) }
    }

    /// Returns the reason for which a run waits for its provider.
    pub fn outage(outage: Outage, since: OutSince) -> Self {
        let cause_at = Some(since.cause).filter(|cause| *cause != since.began);
        let code = outage.cause.code();
        Self { outage: Some(Box::new(KeptOutage { outage, cause_at })), ..Self::plain(code, since.began) }
    }

    /// Returns the refusal of a call whose model has no known price, under a limit in usd.
    pub fn unpriced(model: &str, at: Micros) -> Self {
        let model = Some(model.chars().take(MODEL).collect());
        Self { model, ..Self::plain("price_unknown", at) }
    }

    /// Returns the refusal of a call of a request with a feature whose fee is not known, under a limit in usd.
    pub fn unknown_fee(feature: &str, at: Micros) -> Self {
        Self { is_fee: true, ..Self::unpriced(feature, at) }
    }

    /// Returns whether a person who resumes the run takes the halt back with it: it is no limit of the run that needs room.
    /// Whether a budget above it has room by then is found out anew.
    pub fn is_accepted_by_resuming(&self) -> bool {
        self.whose.is_some() || matches!(self.code.as_str(), "diverged" | "no_progress")
    }

    /// Returns a message with the values that decided the refusal.
    pub fn message(&self) -> String {
        if let Some(KeptOutage { outage, .. }) = self.outage.as_deref() {
            return outage.to_string();
        }
        if let Some(reached) = &self.plan {
            return reached.to_string();
        }
        if let Some(evidence) = &self.waited {
            return evidence.to_string();
        }
        if let Some(moved) = &self.moved {
            return moved.to_string();
        }
        match self.unit {
            Some(u @ (Unit::WallMs | Unit::ActiveMs)) => {
                format!("the run's time is over: its limit of {} is reached", u.show(self.limit))
            }
            Some(u) => {
                let doubt = if self.doubt > 0 {
                    format!(" ({} held by calls whose outcome is unknown)", u.show(self.doubt))
                } else {
                    String::new()
                };
                let whose = match (&self.whose, &self.above) {
                    (None, _) => "the run's budget".to_owned(),
                    (Some(Whose::Parent(_)), Some(above)) => {
                        format!("the budget of {above}, the run above it")
                    }
                    (Some(whose), _) => whose.says(),
                };
                format!(
                    "would exceed {whose}: needs {}, {} of {} left{doubt}",
                    u.show(self.needs),
                    u.show(self.free.max(0)),
                    u.show(self.limit)
                )
            }
            None => match self.code.as_str() {
                "price_unknown" => {
                    let what = match &self.model {
                        Some(feature) if self.is_fee => feature.to_string(),
                        Some(model) => format!("{model:?}"),
                        None => "the model".to_owned(),
                    };
                    format!("{what} has no known price, and the run has a limit in usd")
                }
                "plan_untold" => {
                    "the provider tells no use of a plan for this login, and the run has a ceiling on one"
                        .to_owned()
                }
                "diverged" => "the restarted agent asked something new while recorded answers were \
                               still unused, and the run halts on divergence"
                    .to_owned(),
                code => code.to_owned(),
            },
        }
    }

    /// Returns the hint that tells how the run can go on.
    pub fn hint(&self, run: &str) -> String {
        self.hint_then(run, &format!("`outlast resume {run}`"))
    }

    /// Returns what lets a run go on that was refused for an unknown price: each way in words, and the command to type.
    /// A run without a command of its own can only go the last one.
    pub fn ways_out(&self, run: &str) -> Vec<(&'static str, String)> {
        let resume = |flag: &str| format!("outlast resume {run} {flag}");
        let mut ways = Vec::new();
        if self.is_fee {
            ways.push(("let what it costs beside its tokens count as free", resume("--unpriced free")));
        } else {
            ways.push(("give it a price (docs/guides/prices.md)", resume("--prices FILE")));
            ways.push(("let it count as free", resume("--unpriced free")));
            if self.model.as_deref().is_some_and(has_family) {
                let dearest = "charge it at twice the dearest known model of its family";
                ways.push((dearest, resume("--unpriced dearest")));
            }
        }
        ways.push(("remove the limit", format!("outlast budget {run} --no-limit usd")));
        ways
    }

    /// Returns the hint for the caller that was refused. The hint names no way to raise the limit: the caller may be
    /// the agent itself. `None` unless waiting helps.
    pub fn callers_hint(&self) -> Option<String> {
        match &self.whose {
            Some(Whose::Named { until: Some(at), .. }) => Some(on_its_own(*at)),
            _ => None,
        }
    }

    /// Returns the amount by which a hint raises the limit, as it is typed: what is missing and half a call more, because a
    /// call mostly costs less than it reserves; rounded up to an amount that people would type.
    fn suggested_raise(&self, unit: Unit) -> String {
        let short = self.needs.saturating_sub(self.free).max(1).saturating_add(self.needs / 2);
        match unit {
            Unit::CostNanoUsd => {
                let cents = round(short.saturating_add(CENT - 1) / CENT).max(CENTS);
                format!("{}.{:02}", cents / 100, cents % 100)
            }
            Unit::WallMs | Unit::ActiveMs => {
                format!("{}h", round(short.saturating_add(HOUR_MS - 1) / HOUR_MS))
            }
            Unit::Tokens => round(short).max(TOKENS).to_string(),
            Unit::Calls | Unit::Loops | Unit::Restarts => round(short).max(TIMES).to_string(),
        }
    }

    /// Returns the hint with `resume` as the command that lets the run go on.
    pub fn hint_then(&self, run: &str, resume: &str) -> String {
        if let Some(KeptOutage { outage, .. }) = self.outage.as_deref() {
            return outage.hint(true, resume);
        }
        if let Some(Moved { bundle, sha256, to, has_arrived, .. }) = self.moved.as_deref() {
            return match (sha256, to) {
                (_, Some(to)) if *has_arrived => format!("`outlast show {run}` tells of it at {to}"),
                (_, Some(to)) => format!(
                    "`outlast move {run} {to}` again finishes it; only if it never came there: `outlast resume {run} --take-back`"
                ),
                (Some(_), None) => format!(
                    "`outlast import {bundle}` there; only if that was never done and never will be: `outlast resume {run} --take-back`"
                ),
                (None, None) => format!(
                    "`outlast export {run} --bundle {bundle}` again finishes it; `outlast resume {run} --take-back` gives it up"
                ),
            };
        }
        match self.unit {
            Some(u) => {
                let by = self.suggested_raise(u);
                match &self.whose {
                    None => {
                        format!("raise it with `outlast budget {run} {} {by}`, then {resume}", u.raise_flag())
                    }
                    Some(Whose::Parent(_)) => match &self.above {
                        Some(above) => {
                            format!(
                                "raise it with `outlast budget {above} {} {by}`, then {resume}",
                                u.raise_flag()
                            )
                        }
                        None => {
                            format!("raise the budget of the run above it, which `outlast show {run}` names")
                        }
                    },
                    Some(Whose::Named { name, until, .. }) => {
                        let or = until.map_or_else(String::new, |at| format!("; {}", on_its_own(at)));
                        format!("raise it with `outlast budgets raise {name} {} {by}`{or}", u.raise_flag())
                    }
                }
            }
            None if self.code == "price_unknown" => {
                let ways: Vec<String> = self
                    .ways_out(run)
                    .iter()
                    .map(|(what, command)| format!("{what} with `{command}`"))
                    .collect();
                let first = match self.is_fee {
                    true => "have the agent leave it out",
                    false => "take newer prices with `outlast prices update FILE --accept`",
                };
                format!("{first}, or {}, then {resume}", ways.join(", or "))
            }
            None if self.plan.is_some() => {
                format!("it goes on by itself when the window turns; `outlast show {run}` tells the pace")
            }
            None if self.code == "plan_untold" => {
                "ceilings need the login of a subscription: start a run without --plan for a key".to_owned()
            }
            None if self.waited.is_some() => format!(
                "see `outlast journal {run}`; `outlast resume {run}` lets the agent go on, with a new count"
            ),
            None if self.code == "diverged" => format!(
                "see `outlast show {run}`; `outlast resume {run}` accepts it: what it asks anew is paid"
            ),
            None => format!("see `outlast show {run}`"),
        }
    }
}

/// Rounds a number up to 1, 2 or 5 times a power of ten.
fn round(number: i64) -> i64 {
    let mut power = 1_i64;
    loop {
        let steps = [1, 2, 5].map(|step| power.saturating_mul(step));
        match steps.into_iter().find(|step| *step >= number) {
            Some(step) => return step,
            None => power = power.saturating_mul(10),
        }
    }
}

fn on_its_own(at: Micros) -> String {
    // Every period begins with an hour.
    format!("calls go on by themselves at {}:00Z", Per::Hour.period(at).name)
}

impl Whose {
    fn says(&self) -> String {
        match self {
            Whose::Parent(_) => "the budget of a run above it".to_owned(),
            Whose::Named { name, period, .. } if period.is_empty() => format!("the budget {name}"),
            Whose::Named { name, period, .. } => format!("the budget {name} for {period}"),
        }
    }
}

/// Calls in a row that brought an agent nothing new.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Evidence {
    pub calls: u32,
    /// Entry of the first of them.
    pub first: Seq,
    pub since: Micros,
    /// Tool calls that the newest of them brought the results of.
    pub name: String,
}

impl fmt::Display for Evidence {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Evidence { calls, first, name, .. } = self;
        write!(f, "{calls} calls in a row since entry {first} brought nothing new: {name}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_refusal_by_a_named_budget_says_which_and_when_it_begins_anew() {
        let mut limits = Limits::default();
        limits[Unit::CostNanoUsd] = Some(50_000_000_000);
        let owner = Owner::Window { name: "team-search".into(), period: "2026-11-20".into() };
        let e = Envelope::new(EnvelopeNo(1), owner, limits);
        let until = Per::Day.period(Micros(1_795_162_530_000_000)).until;
        let named = Whose::Named { name: "team-search".into(), period: "2026-11-20".into(), until };
        let r = Refusal::of(Unit::CostNanoUsd, 420_000_000, &e, 130_000_000, Micros(0)).by(named);
        assert_eq!(
            r.message(),
            "would exceed the budget team-search for 2026-11-20: needs 0.42 usd, 0.13 usd of 50.00 usd left"
        );
        assert_eq!(
            r.hint("r"),
            "raise it with `outlast budgets raise team-search --add-usd 0.50`; calls go on by themselves at \
             2026-11-21T00:00Z"
        );
    }

    #[test]
    fn a_refusal_names_what_was_needed_had_and_what_to_do() {
        let mut limits = Limits::default();
        limits[Unit::CostNanoUsd] = Some(5_000_000_000);
        let mut e = Envelope::new(EnvelopeNo(1), Owner::Run(RunNo(1)), limits);
        e.spent += Amounts::of(4_870_000_000, 0);
        let r = Refusal::of(Unit::CostNanoUsd, 420_000_000, &e, 130_000_000, Micros(0));
        assert_eq!(r.message(), "would exceed the run's budget: needs 0.42 usd, 0.13 usd of 5.00 usd left");
        assert_eq!(
            r.hint("run_x"),
            "raise it with `outlast budget run_x --add-usd 0.50`, then `outlast resume run_x`"
        );
    }

    /// Bug: a run that lacked 0.41 usd was told to add 5.31 usd. Consequence: whoever typed it bought ten times what was
    /// missing. Cause: the raise had room for ten calls at the most that each could cost.
    #[test]
    fn a_suggested_raise_is_what_is_missing_rounded_up() {
        let check = |unit: Unit, needs: i64, free: i64, wanted: &str| {
            let refusal = Refusal { unit: Some(unit), needs, free, ..Refusal::default() };
            assert_eq!(refusal.suggested_raise(unit), wanted, "{unit:?} {needs} {free}");
        };
        check(Unit::CostNanoUsd, 410_000_000, 0, "1.00");
        check(Unit::CostNanoUsd, 410_000_000, 400_000_000, "0.50");
        check(Unit::CostNanoUsd, 2_024_000, 0, "0.10");
        check(Unit::CostNanoUsd, 8_000_000_000, 0, "20.00");
        check(Unit::CostNanoUsd, i64::MAX, 0, "10000000000.00");
        check(Unit::Tokens, 60, 10, "1000");
        check(Unit::Tokens, 32_000, 0, "50000");
        check(Unit::Calls, 1, 0, "10");
        check(Unit::WallMs, 1, 0, "1h");
        // An overrun, or a limit that was lowered below what is spent, is missing too.
        check(Unit::CostNanoUsd, 410_000_000, -900_000_000, "2.00");
        check(Unit::CostNanoUsd, 546_381_250, 510_000_000, "0.50");
        check(Unit::CostNanoUsd, 546_381_250, 10_000_000, "1.00");
        check(Unit::WallMs, 1, -4 * HOUR_MS, "5h");
        check(Unit::Calls, 1, -10, "20");
        check(Unit::Tokens, i64::MAX, i64::MIN, &round(i64::MAX).to_string());
    }

    #[test]
    fn what_is_in_doubt_is_not_free() {
        let mut limits = Limits::default();
        limits[Unit::Tokens] = Some(100);
        let mut e = Envelope::new(EnvelopeNo(1), Owner::Run(RunNo(1)), limits);
        e.reserved += Amounts::of(0, 60);
        e.doubt += Amounts::of(0, 60);
        assert_eq!((e.free(Unit::Tokens), e.live(Unit::Tokens)), (Some(40), 0));
        assert_eq!(e.shortfall(&Amounts::of(0, 41), &Amounts::default()), Some(Unit::Tokens));
        assert_eq!(e.shortfall(&Amounts::of(0, 41), &Amounts::of(0, 1)), None);
    }
}
