//! Access to the read API: who may read, and which runs.

use std::sync::Arc;

use http::{HeaderValue, Response, request::Parts};

use crate::{
    api::{
        read::{self, Reader},
        state::refused,
    },
    proxy::{host::Host, seat},
    state::Error,
    wire::{
        access::NotLetIn,
        body::AnswerBody,
        who::{self, Who},
    },
};

/// Answers a request of the read API, whose path may have a `/run/TOKEN` prefix; `None` for any other request.
pub async fn answer(host: &Arc<Host>, parts: &Parts) -> Option<Response<AnswerBody>> {
    read::find(&parts.method, who::path(&parts.uri))?;
    Some(match let_in(host, parts) {
        Ok((reader, parts)) => read::answer(host, reader, &parts).await,
        Err(e) => {
            // As for calls: whoever is not let in is not let in later.
            let mut response = refused(&e);
            response.headers_mut().insert("x-should-retry", HeaderValue::from_static("false"));
            response
        }
    })
}

/// Returns what the caller may read, and the request's head without run tokens. A run token counts before everything
/// else; other callers need the API token, or a loopback listener without one.
fn let_in(host: &Host, parts: &Parts) -> Result<(Reader, Parts), Error> {
    let access = &host.config.access;
    if !who::bears_token(&parts.uri, &parts.headers)? && access.only_run.is_none() {
        who::api(access, &parts.headers)?;
        return Ok((Reader::All, parts.clone()));
    }
    let caller = who::caller(access, &host.token_keys, &parts.uri, &parts.headers)?;
    let Who::Token(claims) = caller.who else { return Err(NotLetIn::RunTokenWanted.into()) };
    if !seat::is_served(host, &claims)? {
        return Err(NotLetIn::ForeignRun.into());
    }
    let mut bare = parts.clone();
    bare.uri = caller.target.parse().map_err(|_| Error::BadRequest("the target is no path".into()))?;
    Ok((Reader::Run(claims.run), bare))
}
