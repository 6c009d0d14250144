//! Cost of calls, summed by run, upstream, model, day or tag. Days are UTC.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::rows;
use crate::{
    engine::{Forget, Forgot},
    envelope::Per,
    journal::ledger::DAY,
    state::Table,
    store::{self, Ask as _, Durability, LedgerLine, RunView, Store},
    words::{BadText, Micros, RunNo},
};

/// Property that spend is grouped by.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Grouping {
    Run,
    Model,
    Upstream,
    Day,
    Tag(String),
}

impl Grouping {
    /// Returns the name of the grouping as typed, which is also its key in JSON.
    pub fn name(&self) -> String {
        match self {
            Grouping::Run => "run".into(),
            Grouping::Model => "model".into(),
            Grouping::Upstream => "upstream".into(),
            Grouping::Day => "day".into(),
            Grouping::Tag(key) => format!("tag.{key}"),
        }
    }

    pub fn parse(text: &str) -> Result<Grouping, BadText> {
        Ok(match text {
            "run" => Grouping::Run,
            "model" => Grouping::Model,
            "upstream" => Grouping::Upstream,
            "day" => Grouping::Day,
            _ => match text.strip_prefix("tag.").filter(|key| !key.is_empty()) {
                Some(key) => Grouping::Tag(key.to_owned()),
                None => return Err(BadText::new("a grouping", text, "run, model, upstream, day or tag.KEY")),
            },
        })
    }

    /// Returns the value that a line is grouped under; `None` where its run has no such tag.
    fn value(&self, line: &LedgerLine, run: Option<&RunView>) -> Option<String> {
        match self {
            Grouping::Run => run.map(|v| v.run.id.to_string()),
            Grouping::Model => Some(line.model.clone()),
            Grouping::Upstream => Some(line.upstream.clone()),
            Grouping::Day => Some(Per::Day.period(Micros(line.day.saturating_mul(DAY))).name),
            Grouping::Tag(key) => run.and_then(|v| v.spec.tags.get(key).cloned()),
        }
    }
}

/// Sums of the calls in one group.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Sum {
    pub calls: i64,
    pub tokens: i64,
    pub spent_nano_usd: i64,
    /// Part of `spent_nano_usd` that is a list price: a login's subscription pays for it, and nobody is billed.
    pub listed_nano_usd: i64,
    /// Amount that stays reserved for calls whose outcome is unknown.
    pub doubt_nano_usd: i64,
    /// Amount that may be billed for lost calls, and that no envelope has reserved or spent.
    pub unbacked_nano_usd: i64,
    /// Number of calls of which a part has no known price, which is in no sum.
    pub unpriced_calls: i64,
    /// Number of `calls` that failed and cost nothing.
    pub unpaid_calls: i64,
}

impl Sum {
    /// Adds the calls of a line. `is_listed`: a login's subscription pays for them.
    pub fn add(&mut self, line: &LedgerLine, is_listed: bool) {
        self.calls = self.calls.saturating_add(line.calls);
        self.tokens = self.tokens.saturating_add(line.tokens);
        self.spent_nano_usd = self.spent_nano_usd.saturating_add(line.spent_nano_usd);
        if is_listed {
            self.listed_nano_usd = self.listed_nano_usd.saturating_add(line.spent_nano_usd);
        }
        self.doubt_nano_usd = self.doubt_nano_usd.saturating_add(line.doubt_nano_usd);
        self.unbacked_nano_usd = self.unbacked_nano_usd.saturating_add(line.unbacked_nano_usd);
        self.unpriced_calls += line.unpriced_calls;
        self.unpaid_calls += line.unpaid_calls;
    }
}

/// Values that a sum is grouped under, in the order of the groupings.
pub type Group = Vec<Option<String>>;

/// Summed calls of a span of time.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Spend {
    pub groups: Vec<(Group, Sum)>,
    /// Names of the runs that have one, by their ids; only where groups are of runs.
    pub names: BTreeMap<String, String>,
    pub total: Sum,
}

/// Sums the calls opened in `since..until`, each at its current charge: a late settlement counts at its call's time.
/// Groups stay in order of day when `by` begins with days; otherwise the most expensive come first.
///
/// Errors: those of the store.
pub fn spend(
    store: &dyn Store,
    by: &[Grouping],
    since: Micros,
    until: Micros,
) -> Result<Spend, store::Error> {
    let (mut sums, mut names, mut total) = (BTreeMap::<Group, Sum>::new(), BTreeMap::new(), Sum::default());
    // Lines are in the order of their runs, and one run is in memory at a time.
    let mut run: Option<(RunNo, Option<RunView>)> = None;
    let there = store.ledger(since, until)?.into_iter().map(|line| (line, false));
    for (line, is_kept_list_price) in there.chain(kept(store, since, until)?) {
        if run.as_ref().is_none_or(|(no, _)| *no != line.run) {
            run = Some((line.run, store.run(line.run)?));
            if let Some((_, Some(view))) = &run
                && by.contains(&Grouping::Run)
            {
                names.extend(view.spec.name.clone().map(|name| (view.run.id.to_string(), name)));
            }
        }
        let view = run.as_ref().and_then(|(_, view)| view.as_ref());
        let group = by.iter().map(|g| g.value(&line, view)).collect();
        let is_listed = is_kept_list_price || view.is_some_and(|view| view.spec.login.is_some());
        sums.entry(group).or_default().add(&line, is_listed);
        total.add(&line, is_listed);
    }
    let mut groups: Vec<(Group, Sum)> = sums.into_iter().collect();
    if by.first() != Some(&Grouping::Day) {
        groups.sort_by_key(|(_, s)| std::cmp::Reverse(s.spent_nano_usd.saturating_add(s.doubt_nano_usd)));
    }
    Ok(Spend { groups, names, total })
}

/// Costs of a run that is gone. Earlier versions kept the lines alone.
#[derive(Serialize, Deserialize)]
#[serde(untagged)]
enum Kept {
    Billed(Vec<LedgerLine>),
    /// A login's subscription paid for it.
    Listed {
        listed: Vec<LedgerLine>,
    },
}

/// Forgets a run, after its sums by day, upstream and model are kept. Nothing says whose they were, and they do not count
/// while the run is there. The keeping is synced before the run goes.
pub fn forget(store: &dyn Store, verb: Forget) -> Result<Forgot, store::Error> {
    let lines = store.sums(verb.run)?;
    if let Some(view) = store.run(verb.run)?.filter(|_| !lines.is_empty()) {
        let kept = match view.spec.login {
            Some(_) => Kept::Listed { listed: lines },
            None => Kept::Billed(lines),
        };
        let put = rows::put(Table::Spend, &verb.run.0.to_string(), &kept, None)?;
        store.ask(put, Durability::Synced).wait()?;
    }
    store.ask(verb, Durability::Synced).wait()
}

/// Returns the kept lines of runs that are gone, of the days in a span of time, and whether each is of list prices.
pub fn kept(
    store: &dyn Store,
    since: Micros,
    until: Micros,
) -> Result<Vec<(LedgerLine, bool)>, store::Error> {
    let mut kept = Vec::new();
    for row in rows::list(store, Table::Spend)? {
        let (mut lines, is_listed) = match rows::decode::<Kept>(&row)? {
            Some(Kept::Billed(lines)) => (lines, false),
            Some(Kept::Listed { listed }) => (listed, true),
            None => continue,
        };
        let begins = |line: &LedgerLine| line.day.saturating_mul(DAY);
        lines.retain(|line| begins(line) < until.0 && begins(line).saturating_add(DAY) > since.0);
        let is_there = lines.first().map(|line| store.run(line.run)).transpose()?.flatten().is_some();
        kept.extend(lines.into_iter().filter(|_| !is_there).map(|line| (line, is_listed)));
    }
    Ok(kept)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_grouping_is_read_as_it_is_named() {
        for text in ["run", "model", "upstream", "day", "tag.team", "tag.a.b"] {
            assert_eq!(Grouping::parse(text).unwrap().name(), text);
        }
        for text in ["", "tag.", "tags.team", "Day"] {
            assert!(Grouping::parse(text).unwrap_err().to_string().contains("wanted"), "{text}");
        }
    }
}
