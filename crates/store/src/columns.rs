//! The columns of each table, in the one order in which both databases write and read them.

use outlast_core::{
    envelope::{
        Envelope,
        unit::{Amounts, Unit},
    },
    journal::{Entry, Kind},
    run::{instance::Life, status::Status},
};

pub const INSTANCE: &str = "no, life, heartbeat, op_counter, registered_at, last_seen, identity";

pub const RUN: &str = "no, id, status, parent, created_at, began_at, ended_at, next_seq, next_attempt, fence, \
    iteration, explicit_loops, answers, closed, stop_requested, replayed, saved_nano_usd, charges, policy, \
    halt, error, command_key, job, counts, origins, turns, wake_at, budgets, approvals";

pub const BUDGET: &str = "no, budget";

pub const ENVELOPE: &str = "no, owner, limits, reserved_cost, reserved_tokens, reserved_calls, doubt_cost, \
    doubt_tokens, spent_cost, spent_tokens, spent_calls, spent_loops, spent_active_ms, spent_restarts";

/// The columns of an envelope's sums, in the order of `ENVELOPE`.
pub const SUMS: [(Sum, Unit); 11] = [
    (Sum::Reserved, Unit::CostNanoUsd),
    (Sum::Reserved, Unit::Tokens),
    (Sum::Reserved, Unit::Calls),
    (Sum::Doubt, Unit::CostNanoUsd),
    (Sum::Doubt, Unit::Tokens),
    (Sum::Spent, Unit::CostNanoUsd),
    (Sum::Spent, Unit::Tokens),
    (Sum::Spent, Unit::Calls),
    (Sum::Spent, Unit::Loops),
    (Sum::Spent, Unit::ActiveMs),
    (Sum::Spent, Unit::Restarts),
];

#[derive(Clone, Copy)]
pub enum Sum {
    Reserved,
    Doubt,
    Spent,
}

impl Sum {
    pub fn of(self, e: &Envelope) -> &Amounts {
        match self {
            Sum::Reserved => &e.reserved,
            Sum::Doubt => &e.doubt,
            Sum::Spent => &e.spent,
        }
    }

    pub fn of_mut(self, e: &mut Envelope) -> &mut Amounts {
        match self {
            Sum::Reserved => &mut e.reserved,
            Sum::Doubt => &mut e.doubt,
            Sum::Spent => &mut e.spent,
        }
    }
}

pub const ATTEMPT: &str = "run_no, no, slot, label, instance, fence, iteration, started_at, ended_at, exit, \
    active_ms, untaken, diverged, diverged_untaken, closed_before";

pub const LEASE: &str = "run_no, slot, instance, fence";

pub const ENTRY: &str = "run_no, seq, kind, state, attempt, instance, scope, key, match_key, opened_at, closed_at, \
    held_cost, held_tokens, held_calls, spent_cost, spent_tokens, spent_calls, delivered_to, delivered_count, \
    retried_by, replayable, detail";

pub const PAYLOAD: &str = "codec, key_id, len, sha256, bytes";

/// What only an entry of its kind has, as it is stored.
pub fn detail(e: &Entry) -> Option<serde_json::Result<String>> {
    if let Some(approval) = &e.approval {
        return Some(serde_json::to_string(approval));
    }
    match (&e.call, &e.item, &e.step) {
        (Some(call), ..) => Some(serde_json::to_string(call)),
        (_, Some(item), _) => Some(serde_json::to_string(item)),
        (.., Some(step)) => Some(serde_json::to_string(step)),
        (None, None, None) => None,
    }
}

/// What was stored, given back to an entry whose kind is known.
pub fn put_detail(e: &mut Entry, detail: Option<&str>) -> serde_json::Result<()> {
    let Some(text) = detail else { return Ok(()) };
    match e.kind {
        Kind::Call => e.call = Some(serde_json::from_str(text)?),
        Kind::Item => e.item = Some(serde_json::from_str(text)?),
        Kind::Approval => e.approval = Some(serde_json::from_str(text)?),
        _ => e.step = Some(serde_json::from_str(text)?),
    }
    Ok(())
}

/// The columns of an item's row for a resume, and those of a step: less than an entry.
pub const ITEM_ROW: &str = "e.seq, e.key, e.attempt, e.opened_at, e.closed_at, e.spent_cost, e.spent_tokens, e.spent_calls, e.detail";
pub const STEP_ROW: &str = "e.seq, e.scope, e.key, e.state, e.closed_at";

/// The columns of a payload that is joined to them.
pub const VALUE: &str = "p.codec, p.key_id, p.len, p.sha256, p.bytes";

/// `SELECT columns FROM rest`.
pub fn select(columns: &str, rest: &str) -> String {
    format!("SELECT {columns} FROM {rest}")
}

/// The status of a stored number.
pub fn status_of(code: i64) -> Option<Status> {
    Status::ALL.into_iter().find(|s| *s as i64 == code)
}

/// The life of a stored number.
pub fn life_of(code: i64) -> Option<Life> {
    [Life::Live, Life::Dead, Life::Left].into_iter().find(|l| *l as i64 == code)
}
