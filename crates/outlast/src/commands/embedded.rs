//! Engine inside another program, such as the Python package: the store and proxy that `outlast serve` would
//! have there. Variables and settings mean the same in both.

use std::{ffi::OsString, sync::Arc};

use outlast_core::envelope::Limits;
use outlast_server::door::{Access, Config, Observer};
use parking_lot::Mutex;

use crate::{
    cli::shared::{Chosen, Globals, LimitArgs},
    commands::{Command, line},
    program::{context::Context, error::CliError, say::say},
    serve::{ServeArgs, settings},
    settings::{store_address::Durability, surroundings::Surroundings},
    supervisor::provider::CurrentOutage,
};

/// Command line of a server without flags.
const SERVE: [&str; 2] = ["outlast", "serve"];

/// Returns the context of this process and the store's durability. `place` is the store's address, `None` the default
/// store. Opens nothing. Errors: settings that are not understood, an address that names no store.
pub fn context(place: Option<String>) -> Result<(Context, Durability), CliError> {
    let around = Surroundings::of_process();
    let mut typed = Vec::from(SERVE.map(OsString::from));
    typed.extend(place.into_iter().flat_map(|place| ["--store".into(), place.into()]));
    let (cli, args) = of_serve(&typed, &around)?;
    Ok((cli.context(around)?.waiting(args.proxy.store_wait_ms), args.proxy.durability))
}

/// Returns the configuration of a proxy in this process, which admits run tokens and `api_token`.
///
/// Keys, prices, upstreams and rates are read now, as `outlast serve` reads them, because a notebook sets its keys
/// late. Errors: settings, keys or prices that are not understood.
pub fn proxy(context: &Context, api_token: String) -> Result<Config, CliError> {
    let context = Context { around: Surroundings::of_process(), ..context.clone() };
    let args = settings_of_serve(&context)?;
    let access = Access { api_token: Some(api_token.into()), loopback: true, ..Access::default() };
    settings::of_proxy(&args, access, &context)
}

/// Returns an observer of a proxy in this process, which tells a person of a provider's outage and of its end.
pub fn tells_outages() -> Observer {
    let outage = Mutex::new(CurrentOutage::new("start the program again"));
    Arc::new(move |seen| {
        let told = outage.lock().note(seen);
        told.iter().for_each(|text| say(text));
    })
}

/// Returns the limits of a new run under a policy: the lower of the two for each unit. `by_default`: `limits`
/// are defaults that no person asked for, so the policy's limits replace them.
pub fn limits_under(limits: Limits, by_default: bool, policy: &Limits) -> Limits {
    let by_default = by_default.then_some(LimitArgs::DEFAULT_USD);
    Chosen { limits, by_default }.under(policy).limits
}

/// Returns the settings of `outlast serve`, read from variables and files alone, without flags.
pub fn settings_of_serve(context: &Context) -> Result<ServeArgs, CliError> {
    Ok(of_serve(&SERVE.map(OsString::from), &context.around)?.1)
}

/// Reads the command line of an `outlast serve` again, with the settings of now.
pub fn typed_again(context: &Context) -> Result<ServeArgs, CliError> {
    Ok(of_serve(&context.typed, &context.around)?.1)
}

fn of_serve(typed: &[OsString], around: &Surroundings) -> Result<(Globals, ServeArgs), CliError> {
    let parsed = line::parse(typed, around)?;
    match parsed.command {
        Command::Serve(args) => Ok((parsed.globals, args)),
        _ => Err(CliError::usage("`outlast serve` was read as another command", None)),
    }
}
