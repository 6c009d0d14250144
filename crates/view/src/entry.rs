//! Journal entries, without their requests and answers, and items of batch jobs.

use outlast_core::{
    envelope::Unit,
    journal::{
        self, ActDetail, CallDetail, ItemDetail, ItemRow, StepDetail, ToolDetail,
        approval::{self, ApprovalDetail, ApprovalId},
    },
    reads::approvals::View,
    words::{AttemptNo, Digest, RunId, Seq, ServiceTier, Usage},
};
use serde::Serialize;
use serde_json::Value;

use crate::{
    Time,
    money::{Held, Overrun, Spent, Unbacked},
};

shape! {
    /// Journal entry. What only one kind of entry has stands in the object that is named for it.
    pub Entry(run: &RunId, e: &journal::Entry) {
        run: RunId = run.clone();
        seq: Seq = e.seq;
        kind: &'static str = e.kind.name();
        state: &'static str = e.state.name();
        attempt: AttemptNo = e.attempt;
        scope: String = e.scope.to_string();
        key: Option<String> = e.key.clone();
        /// Item or step in which it was made.
        within: Option<Seq> = e.within();
        opened_at: Time = Time(e.opened_at);
        closed_at: Option<Time> = e.closed_at.map(Time);
        #[serde(flatten)] spent: Spent = Spent::new(e.spent.cost());
        tokens: i64 = e.spent.tokens();
        #[serde(flatten)] held: Held = Held::new(e.held.cost());
        held_tokens: i64 = e.held.tokens();
        retried_by: Option<Seq> = e.retried_by;
        /// Attempt that has the answer whole.
        delivered_to: Option<AttemptNo> = e.delivered_to;
        /// The same, if it is not the attempt that paid for the answer.
        replayed_to: Option<AttemptNo> = e.replayed_to();
        replayable: bool = e.replayable;
        #[serde(skip_serializing_if = "Option::is_none")]
        call: Option<Call> = e.call.as_deref().map(|call| Call::new(call, e));
        #[serde(skip_serializing_if = "Option::is_none")]
        step: Option<Step> = e.step.as_deref().map(Step::new);
        #[serde(skip_serializing_if = "Option::is_none")]
        act: Option<ActOnRun> = e.act().map(|(what, act)| ActOnRun::new(what, act));
        #[serde(skip_serializing_if = "Option::is_none")]
        item: Option<ItemEntry> = e.item.as_deref().map(ItemEntry::new);
        #[serde(skip_serializing_if = "Option::is_none")]
        tool: Option<Tool> = e.tool.as_deref().map(Tool::new);
        #[serde(skip_serializing_if = "Option::is_none")]
        approval: Option<ApprovalEntry> = e.approval.as_deref().map(|approval| ApprovalEntry::new(approval, e));
    }
}

shape! {
    /// Call of a model.
    pub Call(call: &CallDetail, e: &journal::Entry; let (overrun, unbacked) = (call.overrun(), e.unbacked())) {
        upstream: String = call.upstream.clone();
        path: String = call.path.clone();
        model: String = call.model.clone();
        stream: bool = call.stream;
        http_status: Option<u16> = call.http_status;
        usage: Option<Usage> = call.usage;
        service_tier: ServiceTier = call.tier;
        /// Digest of the prices that it was charged by.
        price_table: Option<String> = call.price_hash.clone();
        clamped_to: Option<u64> = call.clamped_to;
        retry_of: Option<Seq> = call.retry_of;
        estimated: bool = call.estimated;
        /// Part of the call without a known price, which is in no charge of it.
        unpriced: Option<String> = call.unpriced.clone();
        waits: u32 = call.waits;
        tries: usize = call.tries.len() + usize::from(!call.resting);
        /// Statuses of earlier tries; null: the provider was not reached.
        earlier_statuses: Vec<Option<u16>> = call.tries.clone();
        in_doubt: bool = e.is_lost();
        #[serde(flatten)] overrun: Overrun = Overrun::new(overrun.cost());
        overrun_tokens: i64 = overrun.tokens();
        #[serde(flatten)] unbacked: Unbacked = Unbacked::new(unbacked.cost());
        unbacked_tokens: i64 = unbacked.tokens();
        digest: Option<Digest> = call.digest;
        idempotency_key: Option<String> = call.idempotency_key.clone();
        /// Name of the API token by which the call was let in.
        caller: Option<String> = call.caller.clone();
        upstream_request_id: Option<String> = call.upstream_request_id.clone();
        error: Option<String> = call.error.clone();
        /// When the outcome of a lost call was corrected.
        corrected_at: Option<Time> = call.correction.as_ref().map(|c| Time(c.at));
    }
}

shape! {
    /// Step of a program.
    pub Step(step: &StepDetail) {
        #[serde(rename = "try")] try_no: i64 = step.try_no;
        at_most_once: bool = step.at_most_once;
        resolved_by_person: bool = step.resolved;
    }
}

shape! {
    /// Act of a person on the run.
    pub ActOnRun(what: &str, act: &ActDetail) {
        what: String = what.to_owned();
        by: String = act.by.clone();
        about: Option<String> = act.about.clone();
    }
}

shape! {
    /// Item of a batch job, as one of its entries has it.
    pub ItemEntry(item: &ItemDetail) {
        index: i64 = item.index;
        standing: &'static str = item.standing.name();
        #[serde(rename = "try")] try_no: i64 = item.try_no;
        deaths: i64 = item.deaths;
        reason: Option<String> = item.reason.clone();
        /// Name of who reset the item, so that it ran again.
        reset_by: Option<String> = item.reset_by.clone();
    }
}

shape! {
    /// Tool call over MCP.
    pub Tool(tool: &ToolDetail) {
        /// Server and tool, as `files/append`.
        name: String = tool.name();
        /// Id that the agent's model gave the call.
        id: Option<String> = tool.id.clone();
        sends: i64 = tool.sends;
        resolved_by_person: bool = tool.resolved;
    }
}

shape! {
    /// Approval that the agent asked a person for.
    pub ApprovalEntry(approval: &ApprovalDetail, e: &journal::Entry) {
        id: String = ApprovalId { run: e.run, seq: e.seq }.to_string();
        tool: String = approval.tool.clone();
        side_effect: Option<String> = approval.side_effect.clone();
        digest: Digest = approval.digest;
        expires_at: Time = Time(approval.expires_at);
        blocked: bool = approval.blocked;
        decision: Option<Decision> = approval.decision.as_ref().map(Decision::new);
    }
}

shape! {
    /// Decision of a person on an approval.
    pub Decision(d: &approval::Decision) {
        approve: bool = d.approve;
        reason: Option<String> = d.reason.clone();
        by: String = d.by.clone();
        /// Name of who decided, and through what; `None` if it was not recorded.
        way: Option<String> = d.way.clone();
        at: Time = Time(d.at);
    }
}

shape! {
    /// Item of a batch job, by its newest entry.
    pub Item(row: &ItemRow; let d = &row.detail) {
        seq: Seq = row.seq;
        key: String = row.key.clone();
        standing: &'static str = d.standing.name();
        index: i64 = d.index;
        /// Attempt that claimed it last.
        attempt: AttemptNo = row.attempt;
        tries: i64 = d.tries();
        deaths: i64 = d.deaths;
        reason: Option<String> = d.reason.clone();
        opened_at: Time = Time(row.opened_at);
        closed_at: Option<Time> = row.closed_at.map(Time);
        #[serde(flatten)] spent: Spent = Spent::new(row.spent.cost());
        tokens: i64 = row.spent.tokens();
        calls: i64 = row.spent[Unit::Calls];
    }
}

shape! {
    /// Approval that an agent asked a person for.
    pub Approval(view: &View; let (d, decision) = (&view.detail, view.detail.decision.as_ref())) {
        id: String = view.id.to_string();
        run: RunId = view.run.clone();
        name: Option<String> = view.name.clone();
        tool: String = d.tool.clone();
        side_effect: Option<String> = d.side_effect.clone();
        arguments: Value = serde_json::from_slice(&view.arguments).unwrap_or_default();
        digest: Digest = d.digest;
        key: String = view.key.clone();
        status: &'static str = view.status.name();
        iteration: i64 = d.iteration;
        asked_at: Time = Time(view.asked_at);
        expires_at: Time = Time(d.expires_at);
        reason: Option<String> = decision.and_then(|d| d.reason.clone());
        decided_by: Option<String> = decision.map(|d| d.by.clone());
        decided_at: Option<Time> = decision.map(|d| Time(d.at));
    }
}

/// Change of one path between two snapshots of a run's files.
#[derive(Clone, Debug, Serialize)]
pub struct FileChange {
    /// Path below the directory that is kept; that of a directory ends with `/`.
    pub path: String,
    /// `added`, `changed`, `removed`, or `mode` where only the permissions differ.
    pub what: &'static str,
    /// Numbers of lines; `None`: not compared, because a side is no text or is large.
    pub lines_added: Option<usize>,
    pub lines_removed: Option<usize>,
    /// Unified diff, where it was asked for and lines differ.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub diff: Option<String>,
}
