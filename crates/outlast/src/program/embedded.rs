//! Engine inside another program, such as the Python package: the store and proxy that `outlast serve` would
//! have there. Variables and settings mean the same in both.

use std::ffi::OsString;

use outlast_core::envelope::Limits;
use outlast_server::door::{Access, Config};

use crate::{
    cli::shared::{Chosen, Globals, LimitArgs, ProxyArgs},
    commands::Command,
    program::{context::Context, error::CliError, line},
    serve::{ServeArgs, settings},
    settings::{store_address::Durability, surroundings::Surroundings},
};

/// Returns the context of this process and the store's durability. `place` is the store's address, `None` the default
/// store. Opens nothing. Errors: settings that are not understood, an address that names no store.
pub fn context(place: Option<String>) -> Result<(Context, Durability), CliError> {
    let around = Surroundings::of_process();
    let flags = place.into_iter().flat_map(|place| ["--store".into(), place.into()]);
    let (cli, args) = serve_args(flags, &around)?;
    Ok((Context::new(&cli, around)?.waiting(args.proxy.store_wait_ms), args.proxy.durability))
}

/// Returns the configuration of a proxy in this process, which admits run tokens and `api_token`.
///
/// Keys, prices, upstreams and rates are read now, as `outlast serve` reads them, because a notebook sets its keys
/// late. Errors: settings, keys or prices that are not understood.
pub fn proxy(context: &Context, api_token: String) -> Result<Config, CliError> {
    let context = Context { around: Surroundings::of_process(), ..context.clone() };
    let (_, args) = serve_args([], &context.around)?;
    let access = Access { api_token: Some(api_token.into()), loopback: true, ..Access::default() };
    settings::of_proxy(&args, access, &context)
}

/// Returns the limits of a new run under a policy: the lower of the two for each unit. `by_default`: `limits`
/// are defaults that no person asked for, so the policy's limits replace them.
pub fn limits_under(limits: Limits, by_default: bool, policy: &Limits) -> Limits {
    let by_default = by_default.then_some(LimitArgs::DEFAULT_USD);
    Chosen { limits, by_default }.under(policy).limits
}

/// Returns the settings of a proxy, read from variables and files alone, without flags.
pub fn proxy_args(around: &Surroundings) -> Result<ProxyArgs, CliError> {
    Ok(serve_args([], around)?.1.proxy)
}

fn serve_args(
    flags: impl IntoIterator<Item = OsString>,
    around: &Surroundings,
) -> Result<(Globals, ServeArgs), CliError> {
    let typed: Vec<OsString> = ["outlast".into(), "serve".into()].into_iter().chain(flags).collect();
    let parsed = line::parse(&typed, around)?;
    match parsed.command {
        Command::Serve(args) => Ok((parsed.globals, args)),
        _ => Err(CliError::usage("`outlast serve` was read as another command", None)),
    }
}
