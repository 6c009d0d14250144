//! A run's story as JSON with stable keys.

use outlast_core::{envelope::unit::Unit, journal::State, run::attempt::Attempt};
use serde_json::{Map, Value, json};

use super::{
    super::{budget, evidence::Evidence, plan::Shown, resume_tax},
    ENTRIES, Story,
};
use crate::render::{
    amount::{put_bill, put_money, usd},
    approval as shown_approval, entry,
    next::next_with,
    time, tool,
};

impl Story {
    pub fn object(&self) -> Value {
        let (run, spec, e) = (&self.view.run, &self.view.spec, &self.view.envelope);
        let id = run.id.as_str();
        let by_state: Map<String, Value> = State::ALL
            .into_iter()
            .map(|s| (s.name().into(), self.calls.by_state.get(&s).copied().unwrap_or(0).into()))
            .collect();
        let mut money = Map::new();
        put_money(&mut money, "paid", Some(e.spent.cost()));
        money.insert("replayed_answers".into(), run.replayed.into());
        put_money(&mut money, "saved", Some(run.saved_nano_usd));
        put_money(&mut money, "failed", Some(self.calls.failed_nano_usd));
        money.insert("lost_calls".into(), self.calls.lost.into());
        money.insert("untaken_answers".into(), self.untaken.answers.into());
        put_money(&mut money, "untaken", Some(self.untaken.cost_nano_usd));
        money.insert("in_doubt_calls".into(), self.calls.doubt_count.into());
        put_money(&mut money, "in_doubt", Some(e.doubt.cost()));
        put_money(&mut money, "in_flight", Some(e.live(Unit::CostNanoUsd)));
        resume_tax::put(&self.tax, &mut money);
        money.insert("busy_waiting_calls".into(), self.waiting.calls.into());
        put_money(&mut money, "busy_waiting", Some(self.waiting.cost_nano_usd));
        money.insert("upstream_retries".into(), self.calls.tried_again.into());
        money.insert("estimated_calls".into(), self.calls.estimated.into());
        put_bill(&mut money, "overrun", self.calls.overrun);
        put_bill(&mut money, "unbacked", self.calls.unbacked);
        let from = self.entries.len().saturating_sub(ENTRIES);
        let mut object = json!({
            "run": id,
            "name": spec.name,
            "status": run.status.name(),
            "halt": run.halt.as_ref().map(|h| json!({
                "code": h.code,
                "unit": h.unit.map(Unit::name),
                "needs": h.needs,
                "free": h.free,
                "limit": h.limit,
                "in_doubt": h.doubt,
                "at": time::rfc3339(h.at),
                "message": h.message(),
                "waited": h.waited,
            })),
            "error": run.error,
            "plan": spec.plan.as_ref().map(ToString::to_string),
            "plans": self.plans.iter().map(Shown::object).collect::<Vec<_>>(),
            "wake_at": run.wake_at.map(time::rfc3339),
            "loop": self.view.spec.looping().map(|l| json!({
                "max_iterations": l.max_iterations,
                "until": l.until,
                "stdin": l.input,
                "finished": run.turns.as_ref().map_or(0, |t| t.finished),
                "unchanged": run.turns.as_ref().map_or(0, |t| t.unchanged),
            })),
            "stop_requested": run.stop_requested,
            "tags": spec.tags,
            "command": spec.command.as_ref().map(|c| json!({"argv": c.argv, "directory": c.directory})),
            "login": spec.login,
            "parent": self.parent,
            "policy": run.policy,
            "rules": spec.rules,
            "created_at": time::rfc3339(run.created_at),
            "began_at": run.began_at.map(time::rfc3339),
            "ended_at": run.ended_at.map(time::rfc3339),
            "budget": budget::objects(&self.view, self.now),
            "attempts": self.attempts.iter().zip(&self.evidence).map(|(a, e)| self.attempt_object(a, e)).collect::<Vec<_>>(),
            "calls": by_state,
            "money": money,
            "pending_approvals": self.approvals.iter().map(shown_approval::json).collect::<Vec<_>>(),
            "entries": self.entries.len(),
            "last_entries": self.entries[from..].iter().map(|x| entry::json(id, x)).collect::<Vec<_>>(),
            "next": next_with(&self.view, &self.entries, true),
        });
        if let Some((id, transcript)) = &self.session {
            object["session"] = json!({"id": id, "transcript": transcript});
        }
        if let Some(servers) = &self.servers {
            let left = servers.left.iter().map(|(name, why)| json!({"name": name, "why": why}));
            object["mcp"] = json!({"recorded": servers.recorded, "not_recorded": left.collect::<Vec<_>>()});
        }
        if !self.tools.is_empty() {
            object["tools"] = self.tools.iter().map(tool::ToolLine::json).collect();
        }
        object
    }

    fn attempt_object(&self, a: &Attempt, evidence: &Evidence) -> Value {
        json!({
            "attempt": a.no,
            "slot": a.slot,
            "label": a.label,
            "iteration": a.iteration,
            "started_at": time::rfc3339(a.started_at),
            "ended_at": a.ended_at.map(time::rfc3339),
            "active_ms": a.active_ms,
            "calls": self.calls_of(a),
            "died": a.died(),
            "exit_code": a.exit.as_ref().and_then(|e| e.code),
            "signal": a.exit.as_ref().and_then(|e| e.signal),
            "outage": a.exit.as_ref().and_then(|e| e.outage.as_ref()).map(|o| json!({
                "upstream": o.upstream,
                "code": o.cause.code(),
                "message": o.to_string(),
            })),
            "at_limit": a.exit.as_ref().is_some_and(|e| e.at_limit),
            "oom": a.exit.as_ref().is_some_and(|e| e.oom),
            "lost": a.exit.as_ref().is_some_and(|e| e.lost),
            "how": self.how(a),
            "driver": self.drivers.get(&a.no).map(|i| json!({"pid": i.identity.pid, "host": i.identity.host})),
            "diverged_at": a.diverged,
            "diverged_untaken": a.diverged.map(|_| a.diverged_untaken),
            "cost_nano_usd": evidence.cost_nano_usd,
            "cost_usd": usd(evidence.cost_nano_usd),
            "wall_ms": a.ended_at.unwrap_or(self.now).ms_since(a.started_at),
            "open_at_end": evidence.open.iter().map(|e| e.seq).collect::<Vec<_>>(),
            "last_lines": evidence.lines,
        })
    }
}
