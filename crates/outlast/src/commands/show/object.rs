//! A run's story as JSON: the run as every face shows it, with its attempts, its calls and what they cost.

use outlast_core::run::attempt;
use outlast_view::{
    Approval, Attempt, Entry, Plan, RunDetail,
    money::{BusyWaiting, Cost, Failed, InFlight, Overrun, Unbacked, Untaken},
};

use super::{
    super::{evidence::Evidence, plan::Shown, prelude::*},
    Story,
};
use crate::{
    agent::{servers::ServerNames, truth::ToolLine},
    program::resume_tax::Tax,
};

shape! {
    /// Run's story, as `outlast show --json` prints it.
    pub ShownRun(s: &Story) {
        #[serde(flatten)] run: RunDetail = RunDetail::new(&s.view, s.parent.clone(), s.view.run.id.as_str(), s.now);
        plans: Vec<Plan> = s.plans.iter().map(Shown::view).collect();
        attempts: Vec<ShownAttempt> =
            s.attempts.iter().zip(&s.evidence).map(|(a, e)| ShownAttempt::new(s, a, e)).collect();
        calls_by_state: BTreeMap<&'static str, i64> = State::ALL
            .into_iter()
            .map(|state| (state.name(), s.journal.calls.by_state.get(&state).copied().unwrap_or(0)))
            .collect();
        money: Money = Money::new(s);
        approvals: Vec<Approval> = s.approvals.iter().map(Approval::new).collect();
        last_entries: Vec<Entry> = s.journal.newest.iter().map(|e| Entry::new(&s.view.run.id, e)).collect();
        next: Next = next_with(&s.view, &s.journal.did, true, s.view.run.id.as_str());
        #[serde(skip_serializing_if = "Option::is_none")]
        session: Option<Session> = s.session.as_ref().map(|(id, transcript)| Session::new(id, transcript));
        #[serde(skip_serializing_if = "Option::is_none")]
        mcp: Option<Servers> = s.servers.as_ref().map(Servers::new);
        #[serde(skip_serializing_if = "Vec::is_empty")]
        tools: Vec<ToolLine> = s.tools.clone();
    }
}

shape! {
    /// Sums over the run's calls that are not in the run's own row.
    pub Money(s: &Story; let calls = &s.journal.calls) {
        #[serde(flatten)] failed: Failed = Failed::new(calls.failed_nano_usd);
        lost_calls: i64 = calls.lost;
        untaken_answers: i64 = s.journal.untaken.answers;
        #[serde(flatten)] untaken: Untaken = Untaken::new(s.journal.untaken.cost_nano_usd);
        in_doubt_calls: i64 = calls.doubt_count;
        #[serde(flatten)] in_flight: InFlight = InFlight::new(s.view.envelope.live(Unit::CostNanoUsd));
        resume_tax: Tax = s.tax;
        busy_waiting_calls: i64 = s.journal.waiting.calls;
        #[serde(flatten)] busy_waiting: BusyWaiting = BusyWaiting::new(s.journal.waiting.cost_nano_usd);
        upstream_retries: i64 = calls.tried_again;
        estimated_calls: i64 = calls.estimated;
        unpriced_calls: i64 = calls.unpriced;
        /// Line about requests that passed Outlast by.
        #[serde(skip_serializing_if = "Option::is_none")]
        unmetered: Option<String> = s.unmetered.clone();
        #[serde(flatten)] overrun: Overrun = Overrun::new(calls.overrun.cost());
        overrun_tokens: i64 = calls.overrun.tokens();
        #[serde(flatten)] unbacked: Unbacked = Unbacked::new(calls.unbacked.cost());
        unbacked_tokens: i64 = calls.unbacked.tokens();
    }
}

shape! {
    /// Attempt with the evidence of how it ended.
    pub ShownAttempt(s: &Story, a: &attempt::Attempt, evidence: &Evidence) {
        #[serde(flatten)] attempt: Attempt = Attempt { how: s.how(a), ..Attempt::new(a, None, s.drivers.up_ms(a, s.now)) };
        calls: i64 = s.calls_of(a).0;
        /// Process that drives it while it is open.
        driver: Option<Value> = s
            .drivers
            .of(a)
            .filter(|_| a.is_open())
            .map(|i| json!({ "pid": i.identity.pid, "host": i.identity.host }));
        #[serde(flatten)] cost: Cost = Cost::new(evidence.cost_nano_usd);
        open_at_end: Vec<Seq> = evidence.open.iter().map(|e| e.seq).collect();
        last_lines: Option<Vec<String>> = evidence.lines.clone();
    }
}

shape! {
    /// Session of a CLI agent, and where its own transcript is.
    pub Session(id: &str, transcript: &Option<PathBuf>) {
        id: String = id.to_owned();
        transcript: Option<PathBuf> = transcript.clone();
    }
}

shape! {
    /// MCP servers of an agent.
    pub Servers(names: &ServerNames) {
        recorded: Vec<String> = names.recorded.clone();
        not_recorded: Vec<NotRecorded> = names.left.iter().map(|(name, why)| NotRecorded::new(name, why)).collect();
    }
}

shape! {
    /// MCP server that is not recorded, and why.
    pub NotRecorded(name: &str, why: &str) {
        name: String = name.to_owned();
        why: String = why.to_owned();
    }
}
