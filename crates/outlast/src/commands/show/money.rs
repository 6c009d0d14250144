//! Money of a story: totals over its calls, and the lines that tell them.

use outlast_core::{envelope::Amounts, run::attempt};

use super::{
    super::{plan::Shown, prelude::*},
    Story,
};
use crate::{
    agent::{Adapter as _, claude::Claude, line::Line},
    program::resume_tax,
    render::amount::bill,
};

/// Totals over the run's calls.
#[derive(Clone, Debug, Default)]
pub struct Calls {
    pub by_state: BTreeMap<State, i64>,
    /// Calls of each attempt, and how many of them failed and cost nothing.
    pub by_attempt: BTreeMap<AttemptNo, (i64, i64)>,
    pub doubt_count: i64,
    pub failed_nano_usd: i64,
    /// Failed calls whose answer was lost, and which are charged at the cost of their retry.
    pub lost: i64,
    pub estimated: i64,
    /// Calls of which a part has no known price, and is in no charge.
    pub unpriced: i64,
    /// Number of tries beyond the first, summed over all calls.
    pub tried_again: i64,
    pub overrun: Amounts,
    pub unbacked: Amounts,
}

impl Calls {
    /// Adds an entry, if it is a call.
    pub fn add(&mut self, e: &Entry) {
        if e.kind != Kind::Call {
            return;
        }
        *self.by_state.entry(e.state).or_default() += 1;
        let of_attempt = self.by_attempt.entry(e.attempt).or_default();
        *of_attempt = (of_attempt.0 + 1, of_attempt.1 + i64::from(e.is_unpaid()));
        self.doubt_count += i64::from(e.is_lost());
        self.unbacked += e.unbacked();
        let Some(call) = &e.call else { return };
        if e.state == State::Failed {
            self.failed_nano_usd += e.spent.cost();
            self.lost += i64::from(call.correction.is_some() && e.retried_by.is_some());
        }
        self.estimated += i64::from(call.estimated);
        self.unpriced += i64::from(call.unpriced.is_some());
        self.tried_again += i64::try_from(call.tries.len()).unwrap_or(i64::MAX);
        self.overrun += call.overrun();
    }
}

impl Story {
    /// Returns the lines about money; a line without an amount or count is left out.
    pub fn money(&self) -> Vec<String> {
        let (run, e, calls) = (&self.view.run, &self.view.envelope, &self.journal.calls);
        let of_state = |s: State| calls.by_state.get(&s).copied().unwrap_or(0);
        let (failed, open) = (of_state(State::Failed), of_state(State::Open));
        let unread = attempt::unread(&self.attempts);
        let mut out = Vec::new();
        if run.own.calls > 0 || with_children(&self.view).is_some() {
            let word = if self.view.spec.login.is_some() { "priced" } else { "paid" };
            out.push(format!("{word:<9} {}", self.price("")));
        }
        if failed > 0 {
            let lost = match calls.lost {
                0 => String::new(),
                1 => ", 1 of them lost and charged as its retry".into(),
                n => format!(", {n} of them lost and charged as their retries"),
            };
            let (count, cost) = (some(failed, "call"), usd(calls.failed_nano_usd));
            out.push(format!("failed    {cost} usd for {count}{lost}"));
        }
        out.extend(self.unmetered.clone());
        if run.replayed > 0 {
            let saved = match run.saved_nano_usd {
                0 => String::new(),
                saved => format!(": {} usd not paid again", usd(saved)),
            };
            out.push(format!("replayed  {}{saved}", some(run.replayed, "answer")));
        }
        out.extend(resume_tax::line(&self.tax).map(|line| format!("{line}{}", self.avoidable())));
        out.extend(self.journal.waiting.line());
        out.extend(self.plans.iter().flat_map(Shown::lines));
        let untaken = &self.journal.untaken;
        out.extend((untaken.answers > 0).then(|| format!("unused    {untaken}, not asked for again so far")));
        out.extend(counted(calls.doubt_count, "call", |count| {
            let held = usd(run.own.doubt_nano_usd);
            format!("in doubt  {held} usd held for {count} without an answer, which may be paid")
        }));
        let live = usd(e.live(Unit::CostNanoUsd));
        out.extend(counted(open, "call", |count| format!("in flight {live} usd reserved for {count}")));
        out.extend(unheld::estimated(calls.estimated));
        out.extend(unheld::unpriced(calls.unpriced));
        out.extend(counted(calls.tried_again, "time", |count| {
            format!("retried   {count}: the upstream refused for the moment, or was not reached")
        }));
        if !calls.overrun.is_zero() {
            out.push(format!("overrun   {}: billed beyond the bound, recorded in full", bill(calls.overrun)));
        }
        out.extend(counted(unread, "request", |count| {
            format!("unread    {count} to providers' hosts that no model answers: logins, settings, lists")
        }));
        if !calls.unbacked.is_zero() {
            let unbacked = bill(calls.unbacked);
            out.push(format!("unbacked  {unbacked}: may be billed for lost tries, and no budget holds it"));
        }
        out
    }

    /// Tells how much of the resume tax a setting would have saved; empty if none would.
    fn avoidable(&self) -> String {
        let Some(command) = &self.view.spec.command else { return String::new() };
        let is_claude = Line::read(&command.argv).is_some_and(|line| Claude.matches(&line.program));
        match self.tax.head_tokens {
            tokens if tokens > 0 && is_claude && !command.supervision.warm_resume => {
                format!("; --warm-resume keeps the prompt the same ({tokens} of them)")
            }
            _ => String::new(),
        }
    }

    /// Tells what the calls cost: what is billed, or the list price where a subscription pays. `of`: words of the limit.
    pub fn price(&self, of: &str) -> String {
        let own = self.view.run.own;
        let (calls, tokens) = (some(own.paid_calls(), "call"), some(own.tokens, "token"));
        let price = format!("{}{of} for {calls}, {tokens}{}", cost(&self.view), unpaid(own.unpaid_calls));
        match &self.view.spec.login {
            Some(login) => format!("list price {price}: not billed, by a login of {login}"),
            None => price,
        }
    }
}

/// Returns the line of what is counted, `1 call`; `None` if there is none.
fn counted(count: i64, one: &str, line: impl Fn(String) -> String) -> Option<String> {
    (count > 0).then(|| line(some(count, one)))
}

/// Smallest number of calls for which the line is printed.
const FEWEST: i64 = 5;

/// Calls that brought nothing new, and their cost.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct BusyWaiting {
    pub calls: i64,
    pub cost_nano_usd: i64,
    /// Number of them in the longest row.
    pub longest: i64,
}

impl BusyWaiting {
    /// Adds an entry, if it is a call that brought nothing new.
    pub fn add(&mut self, e: &Entry) {
        let waits = e.call.as_ref().map_or(0, |call| i64::from(call.waits));
        if waits > 0 {
            self.calls += 1;
            self.cost_nano_usd = self.cost_nano_usd.saturating_add(e.spent.cost());
            self.longest = self.longest.max(waits);
        }
    }

    /// Returns the line about busy waiting for `outlast show`; `None` if only a few calls brought nothing new.
    pub fn line(&self) -> Option<String> {
        let (calls, cost) = (some(self.calls, "call"), usd(self.cost_nano_usd));
        (self.calls >= FEWEST).then(|| {
            format!("waited    {cost} usd for {calls} that brought nothing new, {} in a row", self.longest)
        })
    }
}
