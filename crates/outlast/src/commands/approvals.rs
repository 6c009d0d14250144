//! `outlast approvals` lists approvals that wait for a person; `outlast approve ID` records the person's decision.

use outlast_core::{
    engine::{self, DecideApproval},
    journal::{ApprovalId, approval::Status},
    store::ApprovalFilter as Filter,
    words::BadText,
};

use super::prelude::*;
use crate::render::approval as shown;

/// List the tool calls that wait for a person's decision
#[derive(Args, Clone, Debug)]
#[command(
    after_help = "Examples:\n  outlast approvals\n  outlast approvals nightly --all\n  outlast approvals --json | jq '.approvals[].id'"
)]
pub struct ApprovalsArgs {
    /// Only those of this run: its id, its name, or the start of its id
    pub run: Option<String>,
    /// Also those that are decided, have expired or are blocked
    #[arg(long)]
    pub all: bool,
    /// Largest number of approvals to list, the newest first
    #[arg(long, value_name = "N", default_value_t = 100)]
    pub limit: usize,
}

/// Decide on a tool call that an agent asked about
///
/// The decision is durable, and bound to the arguments that are shown. The run goes on once all that it waits for
/// is decided. Refused in a process of a run: an agent does not decide on its own tools.
#[derive(Args, Clone, Debug)]
#[command(
    after_help = "Examples:\n  outlast approve apr_3_12\n  outlast approve apr_3_12 --deny --reason \"not on a friday\""
)]
pub struct ApproveArgs {
    /// The approval, as `outlast approvals` prints it
    pub id: String,
    /// Say no
    #[arg(long)]
    pub deny: bool,
    /// Why, for the agent and for `outlast approvals --all`
    #[arg(long, value_name = "TEXT")]
    pub reason: Option<String>,
    /// Only if its arguments have this digest, as `outlast approvals --json` prints it
    #[arg(long, value_name = "SHA256")]
    pub digest: Option<outlast_core::words::digest::Digest>,
    /// Who decides [default: the user's name]
    #[arg(long, value_name = "NAME")]
    pub by: Option<String>,
}

pub fn approvals(args: &ApprovalsArgs, Desk { store, page, .. }: Desk) -> Result {
    let run = args.run.as_deref().map(|asked| find::run(store, asked)).transpose()?;
    let filter = Filter {
        run: run.as_ref().map(|v| v.run.no),
        open: !args.all,
        // Pending approvals may have expired and are filtered out after the read, so the limit applies afterwards.
        limit: if args.all { args.limit } else { usize::MAX >> 1 },
    };
    let mut found = reads::approvals::list(store, &filter, (!args.all).then_some(Status::Pending))?;
    let more = found.len() > args.limit;
    found.truncate(args.limit);
    if page.look.json {
        let all: Vec<view::Approval> = found.iter().map(view::Approval::new).collect();
        return Ok(page.json(&json!({ "approvals": all }))?);
    }
    let now = store.now()?;
    if found.is_empty() {
        let which = if args.all { "no approvals" } else { "nothing waits for a decision" };
        return Ok(page.line(which)?);
    }
    for view in &found {
        page.text(&shown::text(view, now, page.look))?;
    }
    if more {
        page.line(&format!("only the newest {}; see --limit", args.limit))?;
    }
    if found.iter().any(|v| v.status == Status::Pending) {
        page.line("  → outlast approve ID, or outlast approve ID --deny --reason WHY")?;
    }
    Ok(())
}

/// Decides one approval in a person's name; `by` names the person and the channel (see `ActDetail::by`).
/// Errors: those of `DecideApproval`.
pub fn approve(args: &ApproveArgs, Desk { store, by, context, page, .. }: Desk) -> Result {
    let id: ApprovalId = args.id.parse().map_err(|e: BadText| {
        CliError::usage(e.to_string(), Some("`outlast approvals` lists what waits for a decision"))
    })?;
    let unknown = || store::Error::from(engine::Error::UnknownApproval { id: args.id.clone() });
    let view = reads::approvals::find(store, id)?.ok_or_else(unknown)?;
    let decision = DecideApproval {
        id,
        // The decision names the arguments shown below: if the store holds others by now, nothing is decided.
        digest: Some(args.digest.unwrap_or(view.detail.digest)),
        approve: !args.deny,
        reason: args.reason.clone(),
        by: args.by.clone().unwrap_or_else(|| user(&context.around)),
    };
    store.ask(InName::of(by, decision), Durability::Synced).wait()?;
    let view = reads::approvals::find(store, id)?.ok_or_else(unknown)?;
    if page.look.json {
        return Ok(page.json(&view::Approval::new(&view))?);
    }
    let now = store.now()?;
    page.text(&shown::text(&view, now, page.look))?;
    let asked = store.run(view.id.run)?.and_then(|run| run.run.approvals);
    match asked.map_or(0, |asked| asked.pending(now)) {
        0 => {}
        1 => page.line("  run waits for one more decision")?,
        n => page.line(&format!("  run waits for {n} more decisions"))?,
    }
    Ok(())
}

/// Returns the login name of the person who runs the command, from `USER` or `LOGNAME`; "command" if neither is set.
pub fn user(around: &Surroundings) -> String {
    let named = |name| around.var(name).and_then(|v| v.to_str()).map(str::to_owned);
    named("USER").or_else(|| named("LOGNAME")).unwrap_or_else(|| "command".into())
}
