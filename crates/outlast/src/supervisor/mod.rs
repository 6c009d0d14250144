//! The supervisor: `outlast run` and `outlast resume`. One command, no daemon. Design §5.

mod attempt;
mod beat;
mod choose;
mod drive;
mod environment;
mod story;

use std::{process::Stdio, sync::Arc};

use outlast_core::{
    id::RunNo,
    status::Status,
    store::{RunFilter, RunView, Store},
};

use crate::{
    cli::{ResumeArgs, RunArgs},
    commands::find,
    context::Context,
    error::CliError,
    exit_code, log,
    process::{nondumpable, reap},
    proxy_setup,
    say::say,
};

/// Runs the command to its end. Returns the exit code.
pub fn run(args: RunArgs, context: Context) -> Result<u8, CliError> {
    log::start(&context.around, "warn");
    prepare()?;
    let store = context.open(true, args.proxy.durability)?;
    let keys = context.keys()?;
    let fresh = proxy_setup::providers(&args.proxy, &keys, &Default::default(), &context)?;
    let node = proxy_setup::join(store.clone(), &context, "outlast run")?;
    let view = choose::run(&args, &context, store.as_ref(), proxy_setup::to_keep(&fresh), &keys)?;
    proxy_setup::have_keys(&view, &keys)?;
    let providers = proxy_setup::providers(&args.proxy, &keys, &view.spec.upstreams, &context)?;
    drive::drive(drive::Plan { view, node, providers, proxy: args.proxy, kill_at: args.kill_at, context })
}

/// Goes on with interrupted runs. Returns the exit code.
pub fn resume(args: ResumeArgs, context: Context) -> Result<u8, CliError> {
    log::start(&context.around, "warn");
    let store = context.open(false, args.proxy.durability)?;
    let Some(asked) = &args.run else { return resume_all(store, &context) };
    prepare()?;
    let keys = context.keys()?;
    let node = proxy_setup::join(store.clone(), &context, "outlast resume")?;
    let view = find::run(store.as_ref(), asked)?;
    let id = &view.run.id;
    match view.run.status {
        Status::Completed | Status::Cancelled => {
            return Err(CliError::Other {
                exit: exit_code::REFUSED,
                code: "run_ended",
                message: format!("run {id} is {}: there is nothing to resume", view.run.status.name()),
                hint: Some("start it anew with `outlast run --new -- CMD`".into()),
            });
        }
        Status::Halted => return Err(halted(&view)),
        _ => {}
    }
    if view.spec.command.is_none() {
        return Err(CliError::Other {
            exit: exit_code::REFUSED,
            code: "no_command",
            message: format!("run {id} has no command: it was made by requests to a server"),
            hint: Some("send requests with its X-Outlast-Run header: it goes on with them".into()),
        });
    }
    proxy_setup::have_keys(&view, &keys)?;
    say(&format!("resuming {id}"));
    let providers = proxy_setup::providers(&args.proxy, &keys, &view.spec.upstreams, &context)?;
    drive::drive(drive::Plan { view, node, providers, proxy: args.proxy, kill_at: None, context })
}

/// Why a halted run does not go on, and what lets it.
fn halted(view: &RunView) -> CliError {
    let id = view.run.id.as_str();
    let (message, hint) = match &view.run.halt {
        Some(halt) => (format!("run {id} is halted ({}): {}", halt.code, halt.message()), halt.hint(id)),
        None => (format!("run {id} is halted"), format!("see `outlast show {id}`")),
    };
    CliError::Other { exit: exit_code::HALTED, code: "run_halted", message, hint: Some(hint) }
}

/// Every interrupted run with a command that no person stopped, each under a supervisor of its own.
fn resume_all(store: Arc<dyn Store>, context: &Context) -> Result<u8, CliError> {
    // What a reboot left still says "running": the sweep gives the verdict first.
    let node = proxy_setup::join(store.clone(), context, "outlast resume --all")?;
    let mut runs = Vec::new();
    let mut before: Option<RunNo> = None;
    loop {
        let filter =
            RunFilter { status: Some(Status::Interrupted), before, limit: 500, ..Default::default() };
        let page = store.runs(&filter)?;
        let Some(last) = page.last() else { break };
        before = Some(last.run.no);
        runs.extend(page.into_iter().filter(|v| v.spec.command.is_some() && !v.run.stop_requested));
    }
    node.leave()?;
    drop(node);
    drop(store);
    say(&format!("{} to resume", crate::render::amount::some(runs.len() as i64, "run")));
    let me = std::env::current_exe()?;
    let mut children = Vec::new();
    for view in runs.into_iter().rev() {
        let mut command = std::process::Command::new(&me);
        command.arg("resume").arg(view.run.id.as_str()).arg("--store").arg(context.place.address());
        command.stdin(Stdio::null());
        children.push((view.run.id.clone(), command.spawn()?));
    }
    let mut worst = exit_code::OK;
    for (id, mut child) in children {
        let status = child.wait()?;
        if !status.success() {
            say(&format!("{id}: {status}"));
            worst = worst.max(status.code().and_then(|c| u8::try_from(c).ok()).unwrap_or(exit_code::FAILED));
        }
    }
    Ok(worst)
}

/// Before anything is started: our environment holds keys, and orphans are to come to us.
fn prepare() -> Result<(), CliError> {
    nondumpable::make_nondumpable()?;
    reap::become_subreaper()?;
    Ok(())
}
