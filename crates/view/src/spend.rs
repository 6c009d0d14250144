//! Spend over all runs, in groups, and the plans of logins.

use std::collections::BTreeMap;

use outlast_core::{
    call::plan,
    envelope::{Ceilings, Share},
    reads::spend::{self, Grouping, Sum},
    words::Micros,
};

use crate::{
    Time,
    money::{Billed, InDoubt, Listed, Spent, Unbacked},
};

shape! {
    /// Spend of a time, by group. `since`: `None` for all that was before `until`.
    pub Spend(told: &spend::Spend, by: &[Grouping], since: Option<Micros>, until: Micros; let by = by.iter().map(Grouping::name).collect::<Vec<String>>()) {
        since: Option<Time> = since.map(Time);
        until: Time = Time(until);
        by: Vec<String> = by.clone();
        lines: Vec<SpendLine> = told.groups.iter().map(|(group, sum)| SpendLine::new(&by, group, told, sum)).collect();
        total: Bill = Bill::new(&told.total);
    }
}

shape! {
    /// Group with the sums of its calls. A key of `by` is null for runs that have no such tag.
    pub SpendLine(by: &[String], group: &[Option<String>], told: &spend::Spend, sum: &Sum) {
        /// Name of the run, in a group of one that has a name.
        #[serde(skip_serializing_if = "Option::is_none")]
        name: Option<String> = group.iter().flatten().find_map(|key| told.names.get(key).cloned());
        #[serde(flatten)]
        group: BTreeMap<String, Option<String>> = by.iter().cloned().zip(group.iter().cloned()).collect();
        #[serde(flatten)] bill: Bill = Bill::new(sum);
    }
}

shape! {
    /// Sums of calls.
    pub Bill(sum: &Sum) {
        calls: i64 = sum.calls;
        /// Number of `calls` that failed and cost nothing.
        unpaid_calls: i64 = sum.unpaid_calls;
        tokens: i64 = sum.tokens;
        #[serde(flatten)] spent: Spent = Spent::new(sum.spent_nano_usd);
        #[serde(flatten)] billed: Billed = Billed::new(sum.spent_nano_usd - sum.listed_nano_usd);
        #[serde(flatten)] listed: Listed = Listed::new(sum.listed_nano_usd);
        #[serde(flatten)] in_doubt: InDoubt = InDoubt::new(sum.doubt_nano_usd);
        #[serde(flatten)] unbacked: Unbacked = Unbacked::new(sum.unbacked_nano_usd);
        unpriced_calls: i64 = sum.unpriced_calls;
    }
}

shape! {
    /// Plan of a login as of `now`, as a run with these ceilings sees it.
    pub Plan(login: &str, plan: &plan::Plan, ceilings: &Ceilings, now: Micros) {
        login: String = login.to_owned();
        windows: Vec<Window> = plan.windows.iter().map(|w| Window::new(w, ceilings.on(w.length), now)).collect();
    }
}

shape! {
    /// Window of a plan, such as five hours: how far it is used, when it turns, and at what pace.
    pub Window(w: &plan::Window, ceiling: Option<Share>, now: Micros) {
        window: String = w.length.to_string();
        minutes: i64 = w.length.0;
        used_percent: f64 = w.used.percent();
        /// Ceiling of the run that asks; null without one, and where all plans are listed.
        ceiling_percent: Option<f64> = ceiling.map(Share::percent);
        resets_at: Option<Time> = w.resets_at.map(Time);
        told_at: Time = Time(w.told_at);
        is_over: bool = w.is_over(now);
        per_call_percent: Option<f64> = w.per_call().map(Share::percent);
        /// When the ceiling, or the whole window without one, is used up at the pace so far.
        used_up_at: Option<Time> = w.used_up_at(ceiling.unwrap_or(Share::WHOLE)).map(Time);
    }
}
