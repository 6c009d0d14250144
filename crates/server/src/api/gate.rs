//! Callers that may use a route.

use std::collections::BTreeMap;

use http::request::Parts;
use outlast_core::{
    engine::{Actor, Asker},
    words::RunNo,
};

use super::error::Error;
use crate::{
    proxy::{host::Host, seat},
    state::Error as StateError,
    wire::{
        access::NotLetIn,
        shown::{self, Shown},
        who::{self, CALLER},
    },
};

/// Callers that may use a route. A caller that may not is told an error of `shown::api`, unless another one stands here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Who {
    Anybody,
    /// Whoever shows the API token or a session of the page; on a loopback listener without an API token, anybody.
    Api,
    /// As `Api`, but no bearer of a run token: `no_run_decides`.
    NoRun,
    /// As `Api`, with a credential, and no bearer of a run token: `only_the_command_decides`, `no_run_decides`. Without a
    /// credential, any process of the machine could raise its own limit.
    Person,
    /// The bearer of a run token, in its own run; others as `Api`.
    OwnRun,
    /// As `OwnRun`, and whoever names a run in a header, in that run.
    Asker,
    /// On a listener that serves one run, the bearer of that run's token, in its name. Elsewhere as `Api`, in the name of
    /// no run.
    Writer,
}

impl Who {
    /// Returns whether a route asks for no credential of any kind.
    pub fn is_anybody(self) -> bool {
        self == Who::Anybody
    }

    /// Returns whether a run token lets in. `only_run`: the listener serves one run.
    pub(super) fn may_be_run(self, only_run: bool) -> bool {
        match self {
            Who::Anybody | Who::Api | Who::NoRun | Who::Person => false,
            Who::OwnRun | Who::Asker => true,
            Who::Writer => only_run,
        }
    }
}

/// Caller that may use a route.
#[derive(Clone, Debug)]
pub enum Caller {
    /// Attempt of a run, named by a run token or a header.
    Run(Asker),
    /// Any other caller, with what it has shown.
    Api(Shown),
}

impl Caller {
    /// Returns the only run that the caller may read; `None` for all runs.
    pub fn only_run(&self) -> Option<RunNo> {
        match self {
            Caller::Run(asker) => Some(asker.run()),
            Caller::Api(_) => None,
        }
    }

    /// Checks that the caller acts for a person. Errors: `no_run_decides`; `only_the_command_decides` without a
    /// credential, because any process of the machine can send the same requests.
    pub fn must_be_a_person(&self) -> Result<(), StateError> {
        match self {
            Caller::Api(Shown::ApiToken(_) | Shown::Page(_)) => Ok(()),
            Caller::Api(Shown::Nothing) => Err(StateError::OnlyTheCommandDecides),
            Caller::Run(_) => Err(StateError::NoRunDecides),
        }
    }

    /// Returns the tags of a run that the caller makes: its own, and the name of its API token. Errors: `bad_request` if
    /// a tag of its own has the key of that name.
    pub fn tags(&self, mut own: BTreeMap<String, String>) -> Result<BTreeMap<String, String>, StateError> {
        if own.contains_key(CALLER) {
            let why = format!("{CALLER:?} is the name of the API token, and no tag of a request's own");
            return Err(StateError::BadRequest(why));
        }
        if let Caller::Api(Shown::ApiToken(Some(name))) = self {
            own.insert(CALLER.into(), name.clone());
        }
        Ok(own)
    }
}

/// Returns the caller of a request, if it may use a route for `who`.
pub(super) async fn let_in(host: &Host, parts: &Parts, who: Who) -> Result<Caller, Error> {
    let access = &host.config.access;
    let api = || shown::api(access, &parts.headers).map(Caller::Api);
    let is_run = || who::bears_token(&parts.uri, &parts.headers);
    let no_run = || if is_run()? { Err(Error::from(StateError::NoRunDecides)) } else { Ok(()) };
    match who {
        Who::Anybody => Ok(Caller::Api(Shown::Nothing)),
        Who::Api => Ok(api()?),
        Who::NoRun => {
            let caller = api()?;
            no_run().map(|()| caller)
        }
        Who::Person => {
            no_run()?;
            let caller = api()?;
            caller.must_be_a_person()?;
            Ok(caller)
        }
        Who::Writer if access.only_run.is_none() => Ok(api()?),
        Who::Writer => run(host, parts),
        Who::OwnRun | Who::Asker if access.only_run.is_some() || is_run()? => run(host, parts),
        Who::OwnRun => Ok(api()?),
        Who::Asker => {
            let caller = api()?;
            let named = who::caller(access, &host.token_keys, &parts.uri, &parts.headers)?;
            if named.who == who::Who::Nobody {
                return Ok(caller);
            }
            let seat = seat::seat(host, &named).await?;
            let actor = Actor { run: seat.run, attempt: seat.attempt, instance: host.node.instance() };
            Ok(Caller::Run(Asker::Attempt { actor, slot: seat.slot }))
        }
    }
}

/// Returns the attempt whose token a request bears. Errors: `run_token_wanted`; `foreign_run` for a run that this listener
/// does not serve.
fn run(host: &Host, parts: &Parts) -> Result<Caller, Error> {
    let caller = who::caller(&host.config.access, &host.token_keys, &parts.uri, &parts.headers)?;
    let who::Who::Token(claims) = caller.who else { return Err(NotLetIn::RunTokenWanted.into()) };
    if !seat::is_served(host, &claims)? {
        return Err(NotLetIn::ForeignRun.into());
    }
    Ok(Caller::Run(Asker::Token(claims)))
}
