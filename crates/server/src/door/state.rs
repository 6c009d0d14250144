//! Access to the state's routes: who may ask, and in whose name they write.

use http::request::Parts;
use outlast_core::engine::actor::Actor;

use crate::{
    api::state::StateRoutes,
    proxy::{host::Host, seat},
    state::{Error, Writer},
    wire::who::{self, Who},
};

/// Returns the writer of a request for state, and the request's head without run tokens; `None` for any other path.
///
/// A supervisor's listener requires a run token, and writes are made in the name of its attempt. Other listeners have
/// the rules of `who::api`, and writes are made in the name of no run.
pub fn asked(host: &Host, parts: &Parts) -> Option<Result<(Writer, Parts), Error>> {
    if host.config.access.only_run.is_none() {
        let let_in = || who::api(&host.config.access, &parts.headers);
        return StateRoutes::takes(parts.uri.path())
            .then(|| Ok(let_in().map(|_| (Writer::NoRun, parts.clone()))?));
    }
    StateRoutes::takes(who::path(&parts.uri)).then(|| of_a_run(host, parts))
}

fn of_a_run(host: &Host, parts: &Parts) -> Result<(Writer, Parts), Error> {
    let caller = who::caller(&host.config.access, &host.token_keys, &parts.uri, &parts.headers)?;
    let Who::Token(claims) = caller.who else {
        return Err(crate::wire::access::NotLetIn::RunTokenWanted.into());
    };
    if !seat::is_served(host, &claims)? {
        return Err(crate::wire::access::NotLetIn::ForeignRun.into());
    }
    let instance = host.node.instance();
    let actor = Actor { run: claims.run, attempt: claims.attempt, instance };
    let uri = caller.target.parse().map_err(|_| Error::BadRequest("the target is no path".into()))?;
    let mut bare = parts.clone();
    bare.uri = uri;
    Ok((Writer::Run(Some((actor, claims.slot))), bare))
}
