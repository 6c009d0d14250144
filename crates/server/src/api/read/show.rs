//! JSON shapes of runs, attempts, entries and items.

use outlast_core::{
    envelope::{Refusal, unit::Unit},
    journal::{Entry, approval::ApprovalId, job::ItemRow},
    reads::tightest::{Tightest, Whose},
    run::attempt::Attempt,
    store::RunView,
    words::id::Micros,
};
use serde_json::{Value, json};

/// Returns the JSON object that stands for a run in a list of runs, with times as of `now`.
pub fn run(view: &RunView, now: Micros) -> Value {
    let (run, e) = (&view.run, &view.envelope);
    let mut told = json!({
        "run": run.id.as_str(),
        "name": view.spec.name,
        "status": run.status.name(),
        "tags": view.spec.tags,
        "created_at": run.created_at.0,
        "began_at": run.began_at.map(|t| t.0),
        "ended_at": run.ended_at.map(|t| t.0),
        "wake_at": run.wake_at.map(|t| t.0),
        "halt_code": run.halt.as_ref().map(|halt| &halt.code),
        "why": run.halt.as_ref().map(Refusal::message).or_else(|| run.error.clone()),
        "stop_requested": run.stop_requested,
        "attempts": run.next_attempt.0 - 1,
        "restarts": e.spent[Unit::Restarts],
        "iteration": run.iteration,
        "entries": run.next_seq.0 - 1,
        "pending_approvals": run.approvals.as_ref().map_or(0, |awaited| awaited.pending(now)),
        "calls": e.spent[Unit::Calls],
        "tokens": e.spent[Unit::Tokens],
        "loops": e.spent[Unit::Loops],
        "spent_nano_usd": e.spent[Unit::CostNanoUsd],
        "reserved_nano_usd": e.reserved[Unit::CostNanoUsd],
        "in_doubt_nano_usd": e.doubt[Unit::CostNanoUsd],
        "limit_nano_usd": e.limits[Unit::CostNanoUsd],
        "replayed": run.replayed,
        "saved_nano_usd": run.saved_nano_usd,
    });
    if let Some(job) = &run.job {
        let c = &job.counts;
        told["job"] = json!({
            "name": job.name, "items": c.total(), "open": c.open, "done": c.done, "failed": c.failed, "dead": c.dead,
            "skipped": c.skipped,
        });
    }
    told
}

/// Returns the limit that a run is nearest to, as JSON.
pub fn tightest(t: &Tightest) -> Value {
    let (whose, budget) = match &t.whose {
        Whose::Own => ("run", None),
        Whose::Above(_) => ("above", None),
        Whose::Named(name) => ("budget", Some(name.as_str())),
    };
    json!({
        "whose": whose, "budget": budget, "unit": t.unit.name(), "limit": t.limit, "spent": t.spent,
        "reserved": t.reserved,
    })
}

/// Returns a run as JSON with its budget and settings, with times as of `now`.
pub fn summary(view: &RunView, now: Micros) -> Value {
    let (run, spec) = (&view.run, &view.spec);
    let mut told = self::run(view, now);
    told["halt"] = json!(run.halt.as_ref().map(|h| json!({
        "code": h.code,
        "message": h.message(),
        "hint": h.hint(run.id.as_str()),
        "unit": h.unit.map(Unit::name),
        "needs": h.needs,
        "free": h.free,
        "limit": h.limit,
        "at": h.at.0,
        "waited": h.waited,
    })));
    told["error"] = json!(run.error);
    told["budget"] = Unit::ALL.into_iter().map(|unit| unit_of(view, unit, now)).collect();
    told["command"] = json!(spec.command.as_ref().map(|c| json!({"argv": c.argv, "directory": c.directory})));
    told["login"] = json!(spec.login);
    told["plan"] = json!(spec.plan.as_ref().map(ToString::to_string));
    told["policy"] = json!(run.policy);
    told["rules"] = json!(spec.rules);
    told["loop"] = json!(spec.looping().map(|l| json!({
        "max_iterations": l.max_iterations,
        "until": l.until,
        "finished": run.turns.as_ref().map_or(0, |t| t.finished),
        "unchanged": run.turns.as_ref().map_or(0, |t| t.unchanged),
    })));
    told
}

/// Returns limit, spent and left of one unit in a run's own budget. `left` is null without a limit.
fn unit_of(view: &RunView, unit: Unit, now: Micros) -> Value {
    let e = &view.envelope;
    let run = &view.run;
    let spent = if unit == Unit::WallMs { run.wall_ms(run.ended_at.unwrap_or(now)) } else { e.spent[unit] };
    json!({
        "unit": unit.name(),
        "limit": e.limits[unit],
        "spent": spent,
        "reserved": e.reserved[unit],
        "in_doubt": e.doubt[unit],
        "left": e.limits[unit].map(|limit| limit.saturating_sub(spent).saturating_sub(e.reserved[unit])),
    })
}

/// Returns an attempt as JSON.
pub fn attempt(a: &Attempt) -> Value {
    let exit = a.exit.as_ref();
    json!({
        "attempt": a.no,
        "slot": a.slot,
        "label": a.label,
        "iteration": a.iteration,
        "started_at": a.started_at.0,
        "ended_at": a.ended_at.map(|t| t.0),
        "active_ms": a.active_ms,
        "died": a.died(),
        "exit": exit.map(|e| json!({
            "code": e.code,
            "signal": e.signal,
            "oom": e.oom,
            "lost": e.lost,
            "stopped": e.stopped,
            "at_limit": e.at_limit,
            "for_room": e.for_room,
            "outage": e.outage.as_ref().map(ToString::to_string),
            "unread": e.unread,
        })),
        "untaken": a.untaken,
        "diverged_at": a.diverged,
        "diverged_untaken": a.diverged.map(|_| a.diverged_untaken),
    })
}

/// Returns an entry as JSON, without its request and answer.
pub fn entry(run: &str, e: &Entry) -> Value {
    let replayed_to = e.delivered_to.filter(|to| *to != e.attempt && e.closed_at.is_some());
    let mut told = json!({
        "run": run,
        "seq": e.seq,
        "kind": e.kind.name(),
        "state": e.state.name(),
        "attempt": e.attempt,
        "scope": &*e.scope,
        "key": e.key,
        "within": e.within(),
        "opened_at": e.opened_at.0,
        "closed_at": e.closed_at.map(|t| t.0),
        "spent_nano_usd": e.spent[Unit::CostNanoUsd],
        "held_nano_usd": e.held[Unit::CostNanoUsd],
        "tokens": e.spent[Unit::Tokens],
        "retried_by": e.retried_by,
        "replayed_to": replayed_to,
    });
    if let Some(call) = &e.call {
        told["call"] = json!({
            "upstream": call.upstream,
            "path": call.path,
            "model": call.model,
            "stream": call.stream,
            "http_status": call.http_status,
            "usage": call.usage,
            "clamped_to": call.clamped_to,
            "retry_of": call.retry_of,
            "estimated": call.estimated,
            "waits": call.waits,
            "tries": call.tries.len() + usize::from(!call.resting),
            "earlier_statuses": call.tries,
            "in_doubt": e.is_lost(),
            "overrun_nano_usd": call.overrun_nano_usd,
            "unbacked_nano_usd": e.unbacked()[Unit::CostNanoUsd],
            "upstream_request_id": call.upstream_request_id,
            "error": call.error,
        });
    }
    if let Some(step) = &e.step {
        told["step"] = json!({
            "try": step.try_no,
            "at_most_once": step.at_most_once,
            "resolved_by_person": step.resolved,
        });
    }
    if let Some((name, act)) = e.act() {
        told["act"] = json!({ "what": name, "by": act.by, "about": act.about });
    }
    if let Some(item) = &e.item {
        told["item"] = json!({
            "reset_by": item.reset_by,
            "index": item.index,
            "standing": item.standing.name(),
            "try": item.try_no,
            "deaths": item.deaths,
            "reason": item.reason,
        });
    }
    if let Some(approval) = &e.approval {
        told["approval"] = json!({
            "id": ApprovalId { run: e.run, seq: e.seq }.to_string(),
            "tool": approval.tool,
            "side_effect": approval.side_effect,
            "expires_at": approval.expires_at.0,
            "blocked": approval.blocked,
            "decision": approval.decision,
        });
    }
    told
}

/// Returns an item of a batch job as JSON.
pub fn item(row: &ItemRow) -> Value {
    json!({
        "seq": row.seq,
        "key": row.key,
        "standing": row.detail.standing.name(),
        "index": row.detail.index,
        "attempt": row.attempt,
        "tries": row.detail.tries(),
        "deaths": row.detail.deaths,
        "reason": row.detail.reason,
        "opened_at": row.opened_at.0,
        "closed_at": row.closed_at.map(|t| t.0),
        "spent_nano_usd": row.spent[Unit::CostNanoUsd],
        "tokens": row.spent[Unit::Tokens],
        "calls": row.spent[Unit::Calls],
    })
}
