//! Answers of the store in memory.

use super::Tables;
use crate::{
    engine,
    envelope::{Budget, BudgetView},
    events::Event,
    journal::{Entry, ItemRow, Kind, Payload, Role, State},
    run::{Life, Run, Status},
    state::{At, Name},
    store::{
        Answer, ApprovalFilter, Error, INLINE_VALUE, LedgerLine, Page, Question, RunView, StepRow,
        WHOLE_VALUE,
    },
    words::{Micros, RunNo, Seq},
};

impl Tables {
    /// Answers a question from these rows. Errors: `Corrupt`, `Compacted`; `NotLoaded` for what is not in tables.
    pub fn answer(&self, question: &Question) -> Result<Answer, Error> {
        Ok(match question {
            Question::RunNo { id } => Answer::RunNo(self.runs.values().find(|r| r.id == *id).map(|r| r.no)),
            Question::Run { no } => Answer::Run(self.runs.get(no).map(|run| self.view(run))),
            Question::Runs { filter } => {
                let runs = self.runs.values().rev();
                let is_meant = |run: &Run, word: &str| {
                    let spec = self.specs.get(&run.no);
                    let name = spec.and_then(|spec| spec.name.as_ref());
                    run.id.as_str().contains(word) || name.is_some_and(|name| name.starts_with(word))
                };
                let found = runs
                    .filter(|r| filter.before.is_none_or(|b| r.no < b))
                    .filter(|r| r.job.is_some() || !filter.jobs)
                    .filter(|r| filter.status.is_none_or(|s| r.status == s))
                    .filter(|r| filter.word.as_ref().is_none_or(|word| is_meant(r, word)))
                    .filter(|r| filter.command_key.is_none() || r.command_key == filter.command_key);
                Answer::Runs(found.take(filter.limit).map(|run| self.view(run)).collect())
            }
            Question::Statuses {} => {
                let with = |status| self.runs.values().filter(|r| r.status == status).count() as i64;
                let counts = Status::ALL.map(|status| (status, with(status)));
                Answer::Statuses(counts.into_iter().filter(|(_, n)| *n > 0).collect())
            }
            Question::Approvals { filter } => Answer::Approvals(self.approvals(filter)),
            Question::Envelope { no } => Answer::Envelope(self.envelopes.get(no).cloned()),
            Question::Budgets {} => {
                let view = |budget: &Budget| {
                    let envelope = budget.window.and_then(|w| self.envelopes.get(&w.envelope).cloned());
                    BudgetView { budget: budget.clone(), envelope }
                };
                Answer::Budgets(self.budgets.values().filter(|b| !b.removed).map(view).collect())
            }
            Question::Attempts { run } => Answer::Attempts(self.attempts_of(*run).cloned().collect()),
            Question::Entry { run, seq } => Answer::Entry(self.entries.get(&(*run, *seq)).cloned()),
            Question::Entries { run, after, limit } => {
                let behind = self.entries_of(*run).filter(|e| e.seq > *after);
                Answer::Entries(behind.take(*limit).cloned().collect())
            }
            Question::Items { run, page } => Answer::Items(self.items_of(*run, *page).collect()),
            Question::Steps { run, after, limit } => {
                Answer::Steps(self.steps_of(*run, *after).take(*limit).collect())
            }
            Question::Newest { run, sought } => {
                Answer::Newest(self.entries_of(*run).rev().find(|e| sought.is(e)).cloned())
            }
            Question::NewestRequest { run } => {
                let requests = self.payloads.keys().rev().filter(|k| k.0 == *run && k.2 == Role::Request);
                Answer::NewestRequest(requests.map(|k| k.1).next())
            }
            Question::Payload { run, seq, role } => {
                let parts = self.payloads.range((*run, *seq, *role, 0)..=(*run, *seq, *role, u32::MAX));
                Answer::Payload(Payload::join(parts.map(|(_, p)| p.clone()).collect()))
            }
            Question::Events { query } => {
                let behind = self.events.iter().filter(|e| e.mark > query.after);
                let found = behind.filter(|e| query.run.is_none_or(|run| e.run == Some(run)));
                Answer::Events(found.take(query.limit).map(|e| Event::clone(e)).collect())
            }
            Question::NewestEvent {} => {
                Answer::NewestEvent(self.events.last().map(|e| e.mark).unwrap_or_default())
            }
            Question::Deliveries {} => Answer::Deliveries(self.deliveries.values().cloned().collect()),
            Question::LiveInstances {} => {
                let live = self.instances.values().filter(|i| i.life == Life::Live);
                Answer::LiveInstances(live.cloned().collect())
            }
            Question::Instance { no } => Answer::Instance(self.instances.get(no).cloned()),
            Question::Ledger { since, until } => Answer::Ledger(self.ledger(*since, *until)),
            Question::Sums { run } => {
                Answer::Sums(LedgerLine::sum(self.sums.iter().filter(|line| line.run == *run).cloned()))
            }
            Question::State { namespace, agent, key } => {
                Answer::State(self.state.at(Name::new(namespace, agent, key), At::Newest.into())?)
            }
            Question::StateAt { namespace, agent, key, which } => {
                Answer::StateAt(self.state.at(Name::new(namespace, agent, key), *which)?)
            }
            Question::StateHistory { namespace, agent, key, after, limit } => {
                Answer::StateHistory(self.state.history(Name::new(namespace, agent, key), *after, *limit)?)
            }
            Question::StateKeys { scan } => Answer::StateKeys(self.state.keys(scan)?),
            Question::StateScan { scan } => Answer::StateScan(self.state.scan(scan)?),
            Question::StateEvents { range } => Answer::StateEvents(self.state.events(range)?),
            Question::ResumePoint { namespace, agent, prefix } => {
                Answer::ResumePoint(self.state.resume_point(namespace, agent, prefix))
            }
            Question::StatePosition {} => Answer::StatePosition(self.state.position()),
            Question::Namespace { name } => Answer::Namespace(self.state.namespaces.get(name).cloned()),
            Question::Namespaces { after, limit } => {
                let all = self.state.namespaces.values();
                let behind = all.filter(|n| after.as_ref().is_none_or(|a| n.name > *a));
                Answer::Namespaces(behind.take(*limit).cloned().collect())
            }
            Question::Agents { namespace, after, limit } => {
                Answer::Agents(self.state.agents(namespace, after.as_deref(), *limit))
            }
            Question::TransactionOutcome { id } => Answer::TransactionOutcome(self.state.outcome(id)),
            Question::TokenKeys {} | Question::Now {} => {
                return Err(engine::Error::NotLoaded("a question that tables do not answer").into());
            }
        })
    }

    fn view(&self, run: &Run) -> RunView {
        RunView {
            run: run.clone(),
            spec: self.specs.get(&run.no).cloned().unwrap_or_default(),
            envelope: self.envelopes[&run.envelope()].clone(),
        }
    }

    fn ledger(&self, since: Micros, until: Micros) -> Vec<LedgerLine> {
        let within = self.entries.values().filter(|e| e.opened_at >= since && e.opened_at < until);
        LedgerLine::sum(within.filter_map(LedgerLine::of))
    }

    /// Returns the newest entry of each item, in order.
    fn items_of(&self, run: RunNo, page: Page) -> impl Iterator<Item = (ItemRow, Option<Payload>)> {
        let upto = page.upto;
        let newest = move |e: &&Entry| e.kind == Kind::Item && e.retried_by.is_none_or(|by| by > upto);
        let all = self.entries_of(run).filter(move |e| e.seq > page.after && e.seq <= upto).filter(newest);
        let value = move |seq| page.values.then(|| self.value_of(run, seq, WHOLE_VALUE)).flatten();
        all.filter_map(ItemRow::of).take(page.limit).map(move |row| (row.clone(), value(row.seq)))
    }

    fn approvals(&self, filter: &ApprovalFilter) -> Vec<Entry> {
        let wanted = |e: &&Entry| {
            e.kind == Kind::Approval
                && (e.state == State::Open || !filter.open)
                && filter.run.is_none_or(|run| run == e.run)
        };
        let mut found: Vec<Entry> = self.entries.values().filter(wanted).cloned().collect();
        found.sort_by_key(|e| std::cmp::Reverse((e.opened_at, e.run, e.seq)));
        found.truncate(filter.limit);
        found
    }

    fn steps_of(&self, run: RunNo, after: Seq) -> impl Iterator<Item = (StepRow, Option<Payload>)> {
        let steps = self.entries_of(run).filter(move |e| e.seq > after && e.kind == Kind::Step);
        steps.map(move |e| {
            let row = StepRow {
                seq: e.seq,
                scope: e.scope.clone(),
                key: e.key.clone().unwrap_or_default(),
                state: e.state,
                closed_at: e.closed_at,
            };
            (row, self.value_of(run, e.seq, INLINE_VALUE))
        })
    }

    /// Returns the recorded value of an entry; `None` if there is none, or if it is stored in more than `most` bytes.
    fn value_of(&self, run: RunNo, seq: Seq, most: i64) -> Option<Payload> {
        self.payloads.get(&(run, seq, Role::Value, 0)).filter(|p| p.bytes.len() as i64 <= most).cloned()
    }
}
