//! Admission of callers: the rules of a listener, and the error of a caller that they keep out.

use std::sync::Arc;

use outlast_core::words::{RunId, RunNo};

use super::{sessions::Sessions, tokens::ApiTokens};

/// Rules by which a listener admits callers.
#[derive(Clone, Default)]
pub struct Access {
    /// API tokens, one of which every caller without a run token must show; `None`: no token is needed.
    pub api_token: Option<ApiTokens>,
    /// Whether the listener is on a loopback address.
    pub loopback: bool,
    /// Host names by which callers may reach the listener, besides IP addresses: as in `Host`, without a
    /// port.
    pub allowed_hosts: Vec<String>,
    /// Run of a supervisor's proxy, which serves only this run and its children, only with run tokens; `None`: any run.
    pub only_run: Option<RunNo>,
    /// Sessions of the page; `None` if the listener does not show the page.
    pub sessions: Option<Arc<Sessions>>,
}

/// Error of a request whose caller is not admitted.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NotLetIn {
    #[error(
        "the Host header {host:?} is no name of this listener (a browser page of another site?); \
         names of yours are given with --allow-host"
    )]
    ForeignHost { host: String },
    #[error("requests from the page {origin:?} are not taken")]
    ForeignOrigin { origin: String },
    #[error("two run tokens in one request disagree, or a token comes with a run header")]
    Disagree,
    #[error("the run token is not good: {0}")]
    BadToken(String),
    #[error("the run token is for another run than this proxy serves")]
    ForeignRun,
    #[error("this listener wants an API token or a run token")]
    NoToken,
    /// The bearer of the page is unknown to this process, because it is too old or another process gave it.
    #[error("the page's session is over: open a new link, as `outlast ui` prints it")]
    SessionOver,
    #[error("this page only looks: the server was started with --read-only")]
    OnlyLooks,
    /// The listener has no API token, and the run was not begun over a listener.
    #[error(
        "run {run} was not begun over a listener, and who has no API token changes only runs that were: the command \
         line does, and a caller of `outlast serve --api-token-file`"
    )]
    OthersRun { run: RunId },
    #[error("this proxy serves one run: its run token is wanted as the API key, or in the path")]
    RunTokenWanted,
    #[error("{0}")]
    BadRunId(String),
    #[error("a run has to be named here: a run token, or an X-Outlast-Run header")]
    NoRun,
    #[error("an X-Outlast-Scope header is taken with a run token only")]
    ScopeWithoutToken,
    #[error("not a scope: {text:?} (wanted the number of one open item or step)")]
    BadScope { text: String },
    #[error("a header is not plain text: {0}")]
    BadHeader(&'static str),
    #[error("not tags: {text:?} in X-Outlast-Tags (wanted KEY=VALUE, several with commas; not `caller`)")]
    BadTags { text: String },
    #[error("run {run} has no tag {tag}: a run has the tags of the request that began it")]
    OtherTags { run: RunId, tag: String },
}

outlast_core::error_facts! {
    NotLetIn {
        NotLetIn::ForeignHost { .. } => "foreign_host" Forbidden,
        NotLetIn::ForeignOrigin { .. } => "foreign_origin" Forbidden,
        NotLetIn::Disagree => "credentials_disagree" Forbidden,
        NotLetIn::BadToken(_) => "bad_token" NoCredential,
        NotLetIn::ForeignRun => "foreign_run" Forbidden,
        NotLetIn::NoToken => "no_token" NoCredential,
        NotLetIn::SessionOver => "session_over" NoCredential,
        NotLetIn::OnlyLooks => "page_only_looks" Forbidden,
        NotLetIn::OthersRun { .. } => "others_run" Forbidden,
        NotLetIn::RunTokenWanted => "run_token_wanted" NoCredential,
        NotLetIn::BadRunId(_) => "bad_run_id" Invalid,
        NotLetIn::NoRun => "no_run" Forbidden,
        NotLetIn::ScopeWithoutToken => "scope_without_token" Forbidden,
        NotLetIn::BadScope { .. } => "bad_scope" Invalid,
        NotLetIn::BadHeader(_) => "bad_header" Invalid,
        NotLetIn::BadTags { .. } => "bad_tags" Invalid,
        NotLetIn::OtherTags { .. } => "other_tags" Forbidden,
    }
}
