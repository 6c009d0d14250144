//! Acts of a person over a server: each operation that has a route, as its request.

use outlast_core::{
    engine::{
        self,
        approval::decide_approval::DecideApproval,
        budget::set_budget::{BudgetSet, SetBudget},
        item::reset_item::ResetItem,
        op::{Op, Outcome},
        run::{
            fork::Fork,
            raise::Raise,
            start::Started,
            tell::{Tell, Word},
        },
    },
    envelope::{
        budget::{Name, UNITS},
        unit::{Limits, Unit},
    },
    journal::approval::Answer,
    run::status::Status,
    store::{Error, RunView, Sought, Store as _},
    words::id::{BudgetNo, RunNo, Seq},
};
use outlast_view::Time;
use serde_json::{Map, Value, json};

use super::{Remote, line::Answered};

/// Returns the limits by the names of their units, as the routes take them.
fn amounts(limits: &Limits) -> Map<String, Value> {
    Unit::ALL.into_iter().filter_map(|u| Some((u.name().to_owned(), limits[u]?.into()))).collect()
}

impl Remote {
    /// Carries out an operation on the other machine. Errors: `not_over_a_server` for one without a route.
    pub(super) fn act(&self, op: Op) -> Result<Outcome, Error> {
        let (by, op) = match op {
            Op::InName(named) => (Some(named.by), named.op),
            op => (None, op),
        };
        let by = by.as_deref();
        match op {
            Op::Tell(tell) => self.tell(*tell, by),
            Op::Raise(raise) => self.raise(&raise, by),
            Op::DecideApproval(decision) => self.decide(&decision, by),
            Op::ResetItem(reset) => self.retry(&reset, by),
            Op::Fork(fork) => self.fork(&fork, by),
            Op::SetBudget(set) => self.set_budget(&set, by),
            Op::RaiseBudget(raise) => {
                let body = json!({ "add": amounts(&raise.add) });
                let told = self.post_budget(&raise.name, "raise", &body, by)?.json()?;
                let mut after = Limits::default();
                UNITS.into_iter().for_each(|u| after[u] = told["limits"][u.name()].as_i64());
                Ok(Outcome::BudgetRaised(after))
            }
            Op::RemoveBudget(remove) => {
                self.post_budget(&remove.name, "remove", &json!({}), by)?;
                Ok(Outcome::BudgetRemoved(()))
            }
            other => self.no_route(&format!("the operation {}", other.name())),
        }
    }

    fn known(&self, no: RunNo) -> Result<RunView, Error> {
        let unknown = || engine::Error::UnknownRun { id: format!("#{no}") };
        Ok(self.run(no)?.ok_or_else(unknown)?)
    }

    fn post(&self, view: &RunView, act: &str, body: &Value, by: Option<&str>) -> Result<Answered, Error> {
        // An id is made of characters that need no encoding in a path.
        self.line.post(&format!("/v1/runs/{}/{act}", view.run.id), body, by)
    }

    fn tell(&self, tell: Tell, by: Option<&str>) -> Result<Outcome, Error> {
        let view = self.known(tell.run)?;
        match tell.word {
            Word::Stop => drop(self.post(&view, "stop", &json!({}), by)?),
            Word::Wake => drop(self.post(&view, "wake", &json!({}), by)?),
            Word::Cancel { reason } => {
                // The route answers for a run that is over as for one that it cancelled.
                if matches!(view.run.status, Status::Completed | Status::Failed) {
                    let (id, status) = (view.run.id.to_string(), view.run.status.name());
                    return Err(engine::Error::RunEnded { id, status }.into());
                }
                self.post(&view, "cancel", &json!({ "reason": reason }), by)?;
            }
            Word::Complete | Word::Idle { .. } | Word::Resume { .. } => {
                return self.no_route("this order to a run");
            }
        }
        Ok(Outcome::Told(self.known(tell.run)?.run.status))
    }

    fn raise(&self, raise: &Raise, by: Option<&str>) -> Result<Outcome, Error> {
        let view = self.known(raise.run)?;
        let lift: Vec<&str> = Unit::ALL.into_iter().filter(|u| raise.lift[*u]).map(Unit::name).collect();
        let body = json!({ "add": amounts(&raise.add), "set": amounts(&raise.set), "lift": lift });
        self.post(&view, "budget", &body, by)?;
        Ok(Outcome::Raised(self.known(raise.run)?.run.status))
    }

    fn post_budget(&self, name: &Name, act: &str, body: &Value, by: Option<&str>) -> Result<Answered, Error> {
        // A name is made of characters that need no encoding in a path.
        self.line.post(&format!("/v1/budgets/{name}/{act}"), body, by)
    }

    /// Sets a named budget. The server charges earlier runs to it, so that nothing is left to apply here.
    fn set_budget(&self, set: &SetBudget, by: Option<&str>) -> Result<Outcome, Error> {
        let terms = &set.terms;
        let tag = terms.tag.as_ref().map(|(key, value)| format!("{key}={value}"));
        let body = json!({ "limits": amounts(&terms.limits), "per": terms.per.name(), "tag": tag });
        let told = self.post_budget(&set.name, "set", &body, by)?.json()?;
        let (no, changed) =
            (told["no"].as_i64().unwrap_or_default(), told["changed"].as_bool().unwrap_or(true));
        Ok(Outcome::BudgetSet(BudgetSet { no: BudgetNo(no), changed, applied: true }))
    }

    fn retry(&self, reset: &ResetItem, by: Option<&str>) -> Result<Outcome, Error> {
        let view = self.known(reset.run)?;
        let body = json!({ "keys": [reset.key], "reuse_answers": reset.reuse_answers });
        self.post(&view, "retry", &body, by)?;
        let newest = self.newest(reset.run, &Sought::item(&reset.key))?;
        Ok(Outcome::Reset(newest.map_or(Seq(0), |entry| entry.seq)))
    }

    fn fork(&self, fork: &Fork, by: Option<&str>) -> Result<Outcome, Error> {
        let view = self.known(fork.origin.run)?;
        let body = json!({
            "seq": fork.origin.seq, "at": Time(fork.origin.at), "id": fork.id,
            "limit_nano_usd": fork.limits[Unit::CostNanoUsd],
        });
        let told = self.post(&view, "fork", &body, by)?.json()?;
        let unknown = || engine::Error::UnknownRun { id: fork.id.to_string() };
        let run = self.run_no(&fork.id)?.ok_or_else(unknown)?;
        let (created, status) = (told["created"].as_bool().unwrap_or(true), self.known(run)?.run.status);
        Ok(Outcome::Forked(Started { run, created, status }))
    }

    fn decide(&self, decision: &DecideApproval, by: Option<&str>) -> Result<Outcome, Error> {
        let id = decision.id;
        let body = json!({
            "decision": if decision.approve { "approve" } else { "deny" },
            "reason": decision.reason,
            "decidedBy": decision.by,
            "argumentsDigest": decision.digest.map(|digest| digest.to_string()),
        });
        self.line.post(&format!("/v1/approvals/{id}"), &body, by)?;
        let now = self.now()?;
        let decided = self.entry(id.run, id.seq)?.and_then(|entry| Answer::of(&entry, now));
        let unknown = || engine::Error::UnknownApproval { id: id.to_string() };
        Ok(Outcome::ApprovalDecided(decided.ok_or_else(unknown)?))
    }
}
