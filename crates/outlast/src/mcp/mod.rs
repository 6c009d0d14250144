//! `outlast mcp`: a recorder between an MCP client on standard input and output, and a server that it starts, or that is
//! at a URL.
//!
//! `session` decides, `host` carries out, also for the servers at `/mcp/NAME`, `ledger` is the store's side. `child` is a
//! server's process, and `configured` knows which tools may be called again.

mod child;
pub mod configured;
pub mod host;
mod ledger;
pub mod secrets;
mod session;

use std::{collections::BTreeMap, path::Path, sync::Arc};

use outlast_core::{
    engine::Start,
    journal::iteration_scope,
    run::Spec,
    store::{Ask as _, Durability, RunView, Store},
    words::RunId,
};
use outlast_process::ancestry;
use outlast_server::mcp::remote::Target;

use self::{
    configured::Tools,
    host::Way,
    ledger::{Ledger, RecordedAttempt},
    secrets::Secrets,
};
use crate::{
    agent::{
        inside::Inside,
        servers::{MAX_NAME, is_name},
    },
    cli::McpArgs,
    program::{
        context::Context,
        error::{CliError, InsideError},
        find, log, told,
    },
    settings::store_address::StoreAddress,
};

/// Variables that a run's process has, and that MCP clients do not pass to their servers.
const INHERITED: [&str; 4] = [told::TOKEN, told::STORE, told::CONFINED, told::CRASHTEST];

/// Headers whose values are secrets.
const SECRETS: [&str; 5] = ["authorization", "proxy-authorization", "cookie", "x-api-key", "api-key"];

/// Runs `outlast mcp`: records the tool calls between the client on standard input and output and the server that it
/// starts. Returns the exit code.
pub fn mcp(args: McpArgs, context: Context) -> Result<u8, CliError> {
    log::start(&context.around, "info");
    let name = name(&args)?;
    let headers = headers(&args, &context)?;
    let secrets = Secrets::of(context.around.variables(), &args.hide_env).with_headers(&headers);
    let way = way(&args, &headers)?;
    let runtime = crate::program::host::runtime(Some(2))?;
    let (context, store, view, seat) = match &args.run {
        Some(id) => {
            let (store, view) = own_run(id, &args, &context)?;
            (context, store, view, RecordedAttempt::Alone)
        }
        None => {
            let context = inherited(context)?;
            let inside = Inside::of(&context)?.ok_or(InsideError::NoRunForTools)?;
            let attempts = inside.store.attempts(inside.claims.run)?;
            let found = attempts.into_iter().find(|a| a.no == inside.claims.attempt);
            let scope = iteration_scope(found.map_or(inside.view.run.iteration, |a| a.iteration));
            let seat =
                RecordedAttempt::Inside { attempt: inside.claims.attempt, slot: inside.claims.slot, scope };
            (context, inside.store, inside.view, seat)
        }
    };
    let ledger = Ledger::new(context, store, &view, seat, name, runtime.handle().clone()).hiding(secrets);
    let tools = Tools::new(args.trust, args.reads, args.idempotent);
    let _guard = runtime.enter();
    let code = host::run(ledger, tools, way);
    // The thread that reads the client's input cannot be interrupted.
    runtime.shutdown_background();
    code
}

/// Returns the server's name: as given, else the file name of the command's last word that names a file or package.
fn name(args: &McpArgs) -> Result<String, CliError> {
    let given = match &args.name {
        Some(name) => name.clone(),
        None if args.url.is_some() => {
            return Err(CliError::usage(
                "a server at a URL has no name of its own",
                Some("give it one with --name"),
            ));
        }
        None => {
            let program = args.command.first().map(|c| Path::new(c).file_stem().unwrap_or_default());
            program.unwrap_or_default().to_string_lossy().into_owned()
        }
    };
    if !is_name(&given) {
        return Err(CliError::usage(
            format!("a server's name is 1 to {MAX_NAME} of A-Z a-z 0-9 . _ -, had {given:?}"),
            Some("give it one with --name"),
        ));
    }
    Ok(given)
}

/// Returns the way to the server.
fn way(args: &McpArgs, headers: &[(String, String)]) -> Result<Way, CliError> {
    let Some(url) = &args.url else {
        return Ok(Way::Command { argv: args.command.clone(), variables: None });
    };
    let target = Target::new(url, headers).map_err(|e| CliError::usage(e.to_string(), None))?;
    Ok(Way::Url(target))
}

/// Returns the headers for a server at a URL. Secrets come from variables: everybody on a machine can read a command
/// line.
fn headers(args: &McpArgs, context: &Context) -> Result<Vec<(String, String)>, CliError> {
    if args.url.is_none() {
        if !args.header.is_empty() || !args.header_env.is_empty() {
            return Err(CliError::usage(
                "a header is for a server at a URL, and this one is a command",
                Some("give --url in place of the command, or leave the header out"),
            ));
        }
        return Ok(Vec::new());
    }
    let mut headers = Vec::new();
    for header in &args.header {
        let (name, value) = header
            .split_once(':')
            .ok_or_else(|| CliError::usage(format!("a header is NAME: VALUE, had {header:?}"), None))?;
        if SECRETS.iter().any(|secret| name.trim().eq_ignore_ascii_case(secret)) {
            return Err(CliError::usage(
                format!(
                    "the value of {} is a secret, and everybody here can read a command line",
                    name.trim()
                ),
                Some(&format!("put it into a variable: --header-env {}=VARIABLE", name.trim())),
            ));
        }
        headers.push((name.trim().to_owned(), value.trim().to_owned()));
    }
    for named in &args.header_env {
        let (name, variable) = named.split_once('=').ok_or_else(|| {
            CliError::usage(
                format!("wanted NAME=VARIABLE, had {named:?}"),
                Some("for example --header-env Authorization=MAIL_LOGIN"),
            )
        })?;
        let value = context.around.var(variable).and_then(|v| v.to_str()).ok_or_else(|| {
            CliError::usage(
                format!("the variable {variable} is not set, and the header {name} wants it"),
                Some("an MCP client passes a server only those variables that its entry names"),
            )
        })?;
        headers.push((name.to_owned(), value.to_owned()));
    }
    Ok(headers)
}

/// Finds the run of this id, or creates it: without limits, since tools are not metered.
fn own_run(id: &RunId, args: &McpArgs, context: &Context) -> Result<(Arc<dyn Store>, RunView), CliError> {
    let store = context.open(true, Default::default())?;
    if let Some(no) = store.run_no(id)? {
        let view = find::view(store.as_ref(), no)?;
        if let Some(policy) = &args.policy
            && view.spec.rules.as_ref().is_none_or(|rules| rules.policy != *policy)
        {
            return Err(CliError::usage(
                format!("run {id} exists, and keeps the policy that it was created with"),
                Some("leave --policy out, or give another --run"),
            ));
        }
        return Ok((store, view));
    }
    let policy =
        args.policy.as_deref().map(|name| find::policy(&context.around, store.as_ref(), name)).transpose()?;
    let spec = Spec {
        tags: [("kind".to_owned(), "mcp".to_owned())].into(),
        rules: policy.as_ref().map(|p| p.rules.clone()),
        ..Spec::default()
    };
    let limits = policy.as_ref().map(|p| p.limits).unwrap_or_default();
    let start = Start { limits, spec, ..Start::new(id.clone()) };
    let started = store.ask(start, Durability::Synced).wait()?;
    let view = find::view(store.as_ref(), started.run)?;
    Ok((store, view))
}

/// Returns the context with the run's variables of the processes above this one, where its own environment has none: MCP
/// clients start their servers without them.
fn inherited(context: Context) -> Result<Context, CliError> {
    if context.around.is_set(told::TOKEN) {
        return Ok(context);
    }
    let line = ancestry::line();
    let Some(above) = line.iter().find(|above| above.began_with(told::TOKEN)) else { return Ok(context) };
    let variables: BTreeMap<String, String> =
        INHERITED.iter().filter_map(|name| Some(((*name).to_owned(), above.variable(name)?))).collect();
    let store = variables.get(told::STORE).cloned();
    let around = context.around.clone().with(variables);
    let place =
        store.map_or(Ok(context.place.clone()), |store| StoreAddress::decide(Some(&store), &around))?;
    Ok(Context { around, place, ..context })
}
