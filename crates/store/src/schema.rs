//! Tables and indexes that both databases have alike, but for the names of their types.

use crate::tables::{APPROVAL, CALL, ITEM, LIVE, OPEN};

/// Returns the SQL that creates the tables that are alike, and that of the indexes that are.
///
/// `at`: prefix of each table's name. The types: of whole numbers, flags, ids (which are ASCII), other text, and JSON.
pub fn alike(at: &str, [int, flag, id, text, json]: [&str; 5]) -> [String; 2] {
    let tables = format!(
        "
CREATE TABLE {at}instances (
    no {int} PRIMARY KEY, life {int} NOT NULL, heartbeat {int} NOT NULL, op_counter {int} NOT NULL,
    registered_at {int} NOT NULL, last_seen {int} NOT NULL, identity {json} NOT NULL);
CREATE INDEX instances_live ON {at}instances (no) WHERE life = {LIVE};

CREATE TABLE {at}runs (
    no {int} PRIMARY KEY, id {id} NOT NULL UNIQUE, status {int} NOT NULL, parent {int},
    created_at {int} NOT NULL, began_at {int}, ended_at {int},
    next_seq {int} NOT NULL, next_attempt {int} NOT NULL, fence {int} NOT NULL, iteration {int} NOT NULL,
    explicit_loops {flag} NOT NULL, answers {int} NOT NULL, closed {int} NOT NULL,
    stop_requested {flag} NOT NULL, replayed {int} NOT NULL, saved_nano_usd {int} NOT NULL,
    charges {json} NOT NULL, policy {json} NOT NULL, halt {json}, error {text}, command_key {text}, job {text}, counts {json}, origins {json},
    turns {json}, wake_at {int}, budgets {json}, approvals {json});

CREATE TABLE {at}specs (run_no {int} PRIMARY KEY, spec {json} NOT NULL);

CREATE TABLE {at}envelopes (
    no {int} PRIMARY KEY, owner {json} NOT NULL, limits {json} NOT NULL,
    reserved_cost {int} NOT NULL, reserved_tokens {int} NOT NULL, reserved_calls {int} NOT NULL,
    doubt_cost {int} NOT NULL, doubt_tokens {int} NOT NULL,
    spent_cost {int} NOT NULL, spent_tokens {int} NOT NULL, spent_calls {int} NOT NULL,
    spent_loops {int} NOT NULL, spent_active_ms {int} NOT NULL, spent_restarts {int} NOT NULL);

CREATE TABLE {at}budgets (no {int} PRIMARY KEY, budget {json} NOT NULL);
"
    );
    let indexes = format!(
        "
CREATE INDEX runs_by_status ON {at}runs (status, no);
CREATE INDEX runs_of_jobs ON {at}runs (no) WHERE job IS NOT NULL;
CREATE INDEX leases_by_instance ON {at}leases (instance);
CREATE INDEX calls_open ON {at}entries (instance) WHERE state = {OPEN} AND kind = {CALL};
CREATE INDEX entries_of_items ON {at}entries (run_no, seq) WHERE kind = {ITEM};
CREATE INDEX approvals ON {at}entries (opened_at, run_no, seq) WHERE kind = {APPROVAL};
CREATE INDEX approvals_open ON {at}entries (opened_at, run_no, seq) WHERE kind = {APPROVAL} AND state = {OPEN};
CREATE INDEX entries_by_match ON {at}entries (run_no, match_key, seq) WHERE match_key IS NOT NULL;
"
    );
    [tables, indexes]
}
