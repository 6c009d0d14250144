//! Credentials of our own routes: the API token, and sessions of the page.

use std::borrow::Cow;

use http::HeaderMap;
use outlast_core::words::Digest;

use super::{
    access::{Access, NotLetIn},
    credentials::credentials,
    origin, sessions,
};

/// Credential that a caller of Outlast's own routes has shown.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Shown {
    /// API token, by its name if it has one.
    ApiToken(Option<String>),
    /// Bearer of a session of the page, which a person has opened, by the beginning of its digest.
    Page(String),
    /// No credential: the listener is on a loopback address, and has no API token.
    Nothing,
}

impl Shown {
    /// Returns the name under which the caller's acts are recorded. What the caller says of itself stands beside it.
    pub fn actor(&self, headers: &HeaderMap) -> String {
        let shown = match self {
            Shown::ApiToken(name) => format!("api:{}", name.as_deref().unwrap_or("token")),
            Shown::Page(digest) => format!("page:{digest}"),
            Shown::Nothing => "api".to_owned(),
        };
        let says = headers.get(BY).and_then(|value| value.to_str().ok()).filter(|text| !text.is_empty());
        match says {
            Some(says) => format!("{shown} ({})", says.chars().take(100).collect::<String>()),
            None => shown,
        }
    }
}

/// Header in which a caller says who it acts for. It is recorded beside what the caller has shown, as its own word.
pub const BY: &str = "x-outlast-by";

/// Checks a caller of Outlast's own routes, who must show the API token if one is set, or the bearer of a page's
/// session; without an API token a loopback listener is enough. Returns what the caller has shown.
pub fn api(access: &Access, headers: &HeaderMap) -> Result<Shown, NotLetIn> {
    origin::check(access, headers)?;
    if access.only_run.is_some() {
        return Err(NotLetIn::RunTokenWanted);
    }
    if let Some(bearer) = of_page(headers)? {
        let known = access.sessions.as_ref().is_some_and(|sessions| sessions.knows(&bearer));
        let digest = Digest::of(bearer.as_bytes()).to_string();
        return if known { Ok(Shown::Page(digest[..8].to_owned())) } else { Err(NotLetIn::SessionOver) };
    }
    match &access.api_token {
        None if access.loopback => Ok(Shown::Nothing),
        None => Err(NotLetIn::NoToken),
        Some(tokens) => {
            let shown = credentials(headers)?;
            let token = shown.iter().find_map(|c| tokens.find(&c.1)).ok_or(NotLetIn::NoToken)?;
            Ok(Shown::ApiToken(token.name.clone()))
        }
    }
}

/// Refuses a change that comes from a session of the page which may only read.
pub fn may_change(access: &Access, headers: &HeaderMap) -> Result<(), NotLetIn> {
    let looks = access.sessions.as_ref().is_some_and(|sessions| sessions.read_only());
    if looks && of_page(headers)?.is_some() { Err(NotLetIn::OnlyLooks) } else { Ok(()) }
}

/// Returns the bearer that a request shows as a session of the page, known or not; `None` if it shows none.
fn of_page(headers: &HeaderMap) -> Result<Option<Cow<'_, str>>, NotLetIn> {
    Ok(credentials(headers)?.into_iter().map(|c| c.1).find(|value| value.starts_with(sessions::PREFIX)))
}
