//! The engine inside another program, as the Python package has it: the store and the proxy that `outlast serve` would
//! have there. Variables and settings mean the same in both.

use std::ffi::OsString;

use outlast_core::envelope::unit::Limits;
use outlast_server::door::{Access, Config};

use crate::{
    cli::{
        Command, ServeArgs,
        shared::{Chosen, Globals, LimitArgs},
    },
    program::{context::Context, error::CliError, line},
    serve::settings,
    settings::{place::Durability, surroundings::Surroundings},
};

/// The context of this process, with the store that `place` names (the default store without), and what a commit
/// survives. Opens nothing. Errors: settings that are not understood, an address that names no store.
pub fn context(place: Option<String>) -> Result<(Context, Durability), CliError> {
    let around = Surroundings::of_process();
    let flags = place.into_iter().flat_map(|place| ["--store".into(), place.into()]);
    let (cli, args) = serve_args(flags, &around)?;
    Ok((Context::new(&cli, around)?, args.proxy.durability))
}

/// The configuration of a proxy in this process, which lets run tokens in, and `api_token`.
///
/// Keys, prices, upstreams and rates are those of `outlast serve`, as they are now: a notebook sets its keys when it
/// needs them. Errors: settings, keys or prices that are not understood.
pub fn proxy(context: &Context, api_token: String) -> Result<Config, CliError> {
    let context = Context { around: Surroundings::of_process(), ..context.clone() };
    let (_, args) = serve_args([], &context.around)?;
    let access =
        Access { api_token: Some(api_token), loopback: true, allowed_hosts: Vec::new(), only_run: None };
    settings::of_proxy(&args, access, &context)
}

/// The limits of a new run under a policy's: of two, the lower one. With `by_default` nobody asked for `limits`, and the
/// policy's replace them.
pub fn limits_under(limits: Limits, by_default: bool, policy: &Limits) -> Limits {
    let by_default = by_default.then_some(LimitArgs::DEFAULT_USD);
    Chosen { limits, by_default }.under(policy).limits
}

fn serve_args(
    flags: impl IntoIterator<Item = OsString>,
    around: &Surroundings,
) -> Result<(Globals, ServeArgs), CliError> {
    let typed: Vec<OsString> = ["outlast".into(), "serve".into()].into_iter().chain(flags).collect();
    let parsed = line::parse(&typed, around)?;
    match parsed.command {
        Command::Serve(args) => Ok((parsed.globals, args)),
        _ => {
            Err(CliError::Usage { message: "`outlast serve` was read as another command".into(), hint: None })
        }
    }
}
