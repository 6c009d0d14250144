//! Acts: operations in somebody's name, which is recorded in the commit of what they do.

use std::sync::Arc;

use crate::{
    engine::{Error, Loaded, Op, Outcome, Verb, Word, budget, checkpoint::SCOPE},
    envelope::{Budget, Limits, PerUnit, Unit, budget::Act},
    journal::{
        ActDetail, Entry, Kind, State, StepDetail,
        act::{PREFIX, plain},
    },
    words::{AttemptNo, BudgetNo, Micros, NanoUsd, RunNo, Seq, duration},
};

/// A verb with the name of who ordered it. The answer is the verb's own.
#[derive(Clone, Debug)]
pub struct InName<V> {
    /// Name of who acts, and through what: the command line, the API or the page. For the format see
    /// [`ActDetail::by`].
    pub by: String,
    pub verb: V,
}

impl<V> InName<V> {
    pub fn of(by: impl Into<String>, verb: V) -> InName<V> {
        InName { by: by.into(), verb }
    }
}

impl<V: Verb> From<InName<V>> for Op {
    fn from(named: InName<V>) -> Op {
        Op::InName(Box::new(Named { by: named.by, op: named.verb.into() }))
    }
}

impl<V: Verb> Verb for InName<V> {
    type Answer = V::Answer;
    fn answer(outcome: Outcome) -> Option<V::Answer> {
        V::answer(outcome)
    }
}

/// An operation with the name of who ordered it: see [`InName`].
#[derive(Clone, Debug)]
pub struct Named {
    pub by: String,
    pub op: Op,
}

/// Records who ordered `named`, which was decided with `outcome`. An order is recorded even if the run was
/// already as ordered; a repeated decision on an approval is not recorded, because the first decision stands.
pub fn record(named: &Named, outcome: &Outcome, l: &mut Loaded, now: Micros) -> Result<(), Error> {
    let by = named.by.as_str();
    match (&named.op, outcome) {
        (Op::Tell(tell), _) => {
            let (name, about) = match &tell.word {
                Word::Stop => ("stop", None),
                Word::Cancel { reason } => ("cancel", reason.clone()),
                Word::Wake => ("wake", None),
                Word::Complete => ("complete", None),
                Word::Resume { .. } => ("resume", None),
                Word::Idle { .. } => return Ok(()),
            };
            append(l, tell.run, name, ActDetail::new(by, about), now)
        }
        (Op::Raise(raise), _) => append(
            l,
            raise.run,
            "raise",
            ActDetail::new(by, Some(change(&raise.add, &raise.set, &raise.lift))),
            now,
        ),
        (Op::Fork(fork), Outcome::Forked(started)) if started.created => {
            let about = format!("{} from entry {}", fork.id, fork.origin.seq);
            append(l, fork.origin.run, "fork", ActDetail::new(by, Some(about)), now)
        }
        (Op::ResetItem(reset), Outcome::Reset(seq)) => {
            if let Some(item) = l.entry_mut(reset.run, *seq).and_then(|entry| entry.item.as_mut()) {
                item.reset_by = Some(plain(by));
            }
            Ok(())
        }
        (Op::DecideApproval(decided), _) => {
            let entry = l.entry_mut(decided.id.run, decided.id.seq);
            let decision = entry.and_then(|entry| entry.approval.as_mut()?.decision.as_mut());
            if let Some(decision) = decision.filter(|d| d.at == now && d.way.is_none()) {
                decision.way = Some(plain(by));
            }
            Ok(())
        }
        (Op::SetBudget(set), Outcome::BudgetSet(told)) if told.changed => {
            let of = set.terms.tag.as_ref().map(|(key, value)| format!(" of {key}={value}"));
            let about = format!(
                "{} per {}{}",
                change(&Limits::default(), &set.terms.limits, &PerUnit::default()),
                set.terms.per.name(),
                of.unwrap_or_default()
            );
            note(l, told.no, "set", ActDetail::new(by, Some(about)), now)
        }
        (Op::RaiseBudget(raise), _) => {
            let no = budget::named(l, &raise.name)?.no;
            let about = change(&raise.add, &Limits::default(), &PerUnit::default());
            note(l, no, "raise", ActDetail::new(by, Some(about)), now)
        }
        (Op::RemoveBudget(remove), _) => {
            let removed = l.all::<Budget>().filter(|b| b.name == remove.name);
            match removed.map(|b| b.no).max() {
                Some(no) => note(l, no, "remove", ActDetail::new(by, None), now),
                None => Ok(()),
            }
        }
        _ => Ok(()),
    }
}

/// Describes a change of limits as people type it, as in `usd +1.00, calls 20, no limit of tokens`.
fn change(add: &Limits, set: &Limits, lift: &PerUnit<bool>) -> String {
    let amount = |u: Unit, n: i64| match u {
        Unit::CostNanoUsd => NanoUsd(n).to_string(),
        Unit::WallMs | Unit::ActiveMs => duration::words(n),
        Unit::Tokens | Unit::Calls | Unit::Loops | Unit::Restarts => n.to_string(),
    };
    let unit = |u: Unit| {
        let added = add[u].map(|n| format!("{} +{}", u.word(), amount(u, n)));
        let set = set[u].map(|n| format!("{} {}", u.word(), amount(u, n)));
        added.or(set).or_else(|| lift[u].then(|| format!("no limit of {}", u.word())))
    };
    Unit::ALL.into_iter().filter_map(unit).collect::<Vec<_>>().join(", ")
}

/// Adds an act to a named budget, which no run's journal tells of.
fn note(l: &mut Loaded, no: BudgetNo, what: &str, detail: ActDetail, now: Micros) -> Result<(), Error> {
    l.budget_mut(no)?.note(Act { at: now, what: what.to_owned(), detail });
    Ok(())
}

/// Adds the entry of an act. The entry belongs to no attempt, and does not count as progress of the run.
fn append(l: &mut Loaded, run: RunNo, name: &str, act: ActDetail, now: Micros) -> Result<(), Error> {
    let row = l.run_mut(run)?;
    let seq = row.next_seq;
    row.next_seq = Seq(seq.0 + 1);
    let step = StepDetail { act: Some(act), ..StepDetail::default() };
    l.insert_entry(Entry {
        key: Some(format!("{PREFIX}{name}")),
        step: Some(Box::new(step)),
        ..Entry::new(run, seq, Kind::Checkpoint, State::Done, AttemptNo(0), Arc::from(SCOPE), now)
    });
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        engine::{
            Raise, RaiseBudget, RemoveBudget, ResetItem, SetBudget, Source, Tell,
            tests::bench::{Bench, usd},
        },
        envelope::{
            Per,
            budget::{ACTS, Name, Terms},
        },
        events::{self, Kind as Happened},
        run::{Policy, Status},
        store::{Ask as _, Durability, Store as _},
    };

    fn acts(b: &Bench, run: RunNo) -> Vec<(String, ActDetail)> {
        let entries = b.store.entries(run, Seq(0), 100).unwrap();
        entries.iter().filter_map(|e| e.act().map(|(name, act)| (name.to_owned(), act.clone()))).collect()
    }

    #[test]
    fn an_order_is_an_entry_with_its_actor_in_the_same_commit_and_no_progress() {
        let b = Bench::new();
        let run = b.start("r", usd(5), None, Policy::default());
        let before = b.store.run(run).unwrap().unwrap().run;
        let by = "cli:ann@laptop";
        let mut add = Limits::default();
        add[Unit::CostNanoUsd] = Some(7);
        let mut lift = PerUnit::default();
        lift[Unit::Tokens] = true;
        let raise = Raise { run, add, set: Limits::default(), lift };
        b.store.ask(InName::of(by, raise), Durability::Synced).wait().unwrap();
        let stop = Tell { run, word: Word::Stop };
        b.store.ask(InName::of("page:4f2a\n91c0", stop), Durability::Synced).wait().unwrap();
        let cancel = |reason: &str| Tell { run, word: Word::Cancel { reason: Some(reason.into()) } };
        let told = b.store.ask(InName::of(by, cancel("enough")), Durability::Synced).wait();
        assert_eq!(told, Ok(Status::Cancelled));
        let act = |name: &str, by: &str, about: Option<&str>| {
            (name.to_owned(), ActDetail { by: by.into(), about: about.map(str::to_owned) })
        };
        let wanted = [
            act("raise", by, Some("usd +0.000000007, no limit of tokens")),
            act("stop", "page:4f2a91c0", None),
            act("cancel", by, Some("enough")),
        ];
        assert_eq!(acts(&b, run), wanted);
        let after = b.store.run(run).unwrap().unwrap().run;
        assert_eq!((after.closed, after.next_seq.0), (before.closed, before.next_seq.0 + 3));
        // What is refused is no act: nothing of it is written.
        let done = Tell { run, word: Word::Complete };
        assert!(b.store.ask(InName::of(by, done), Durability::Synced).wait().is_err());
        assert_eq!(acts(&b, run).len(), 3);
        let wanted = events::EventQuery { run: Some(run), limit: 100, ..events::EventQuery::default() };
        let told = b.store.events(&wanted).unwrap();
        let cancelled =
            told.iter().find(|e| e.kind == Happened::Status && e.about["to"] == "cancelled").unwrap();
        assert_eq!(cancelled.about["by"], by);
    }

    #[test]
    fn a_named_budget_remembers_who_changed_it_and_what_changed_nothing_is_no_act() {
        let b = Bench::new();
        let name = Name::new("all").unwrap();
        let set = |nano: i64| {
            let terms = Terms { limits: usd(nano), per: Per::Day, tag: None };
            let set = SetBudget { name: name.clone(), terms, source: Source::Command };
            b.store.ask(InName::of("cli:ann@laptop", set), Durability::Synced).wait().unwrap();
        };
        set(5);
        set(5);
        let raise = RaiseBudget { name: name.clone(), add: usd(7) };
        b.store.ask(InName::of("api:ci", raise), Durability::Synced).wait().unwrap();
        let acts = || {
            let acts = b.store.budgets().unwrap().remove(0).budget.acts.into_iter();
            acts.map(|a| (a.what, a.detail.by, a.detail.about.unwrap_or_default())).collect::<Vec<_>>()
        };
        let told = |what: &str, by: &str, about: &str| (what.to_owned(), by.to_owned(), about.to_owned());
        let first = told("set", "cli:ann@laptop", "usd 0.000000005 per day");
        assert_eq!(acts(), [first.clone(), told("raise", "api:ci", "usd +0.000000007")]);
        for nano in 6..60 {
            set(nano);
        }
        assert_eq!(acts().len(), ACTS);
        // After its removal the name is another budget's.
        let remove = RemoveBudget { name: name.clone() };
        b.store.ask(InName::of("page:1", remove), Durability::Synced).wait().unwrap();
        set(5);
        assert_eq!(acts(), [first]);
    }

    #[test]
    fn an_operation_in_a_name_answers_and_fails_as_it_does_alone() {
        let b = Bench::new();
        let run = b.start("r", Limits::default(), None, Policy::default());
        let reset = || ResetItem { run, key: "k".into(), reuse_answers: false };
        let alone = b.store.ask(reset(), Durability::Synced).wait();
        assert_eq!(b.store.ask(InName::of("x", reset()), Durability::Synced).wait(), alone);
        assert_eq!(Op::from(InName::of("x", reset())).name(), "ResetItem");
    }
}
