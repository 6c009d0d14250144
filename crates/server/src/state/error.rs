//! Errors of the state's gRPC and REST interfaces.

use outlast_core::{engine::state::transaction, state::outcome, store};

use crate::wire::access::NotLetIn;

/// Error of a request for the state.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error(transparent)]
    Store(#[from] store::Error),
    #[error(transparent)]
    Transaction(#[from] transaction::Error),
    #[error(transparent)]
    NotLetIn(#[from] NotLetIn),
    #[error("no attempt of the run is open, and only an attempt writes here")]
    NoAttempt,
    #[error("{0}")]
    BadRequest(String),
    #[error("the value cannot be kept: {0}")]
    BadValue(String),
    #[error("{what} is not JSON, and this way of asking has only JSON")]
    NotJson { what: String },
    #[error("the reply would have {had} bytes or more, and at most {limit} fit")]
    ReplyTooLarge { had: usize, limit: usize, instead: String },
    #[error("the body is larger than {limit} bytes")]
    BodyTooLarge { limit: usize },
    #[error("key {key:?} of agent {agent:?} in namespace {namespace:?} is not there{}", deleted(*deleted_in))]
    NoSuchKey { namespace: String, agent: String, key: String, deleted_in: Option<i64> },
    #[error("a run asks, and a person decides: a run token never does")]
    NoRunDecides,
    #[error("this listener has no API token, and anybody could decide over it")]
    OnlyTheCommandDecides,
    #[error("a run asks for an approval, and none is named")]
    NoRunAsks,
    #[error("no policy {name:?}")]
    UnknownPolicy { name: String },
    #[error("run {run} has no entry {entry}: its last is {last}")]
    UnknownEntry { run: String, entry: String, last: i64 },
    #[error("the {side} of entry {entry} of run {run} is not kept")]
    NotKept { run: String, entry: i64, side: &'static str },
    #[error("a run token reads its own run only")]
    OwnRunOnly,
    #[error("{method} {path} is no route of this server")]
    NoRoute { method: String, path: String },
}

outlast_core::error_facts! {
    Error {
        Error::NoAttempt => "no_attempt" Forbidden,
        Error::BadRequest(_) => "bad_request" Invalid,
        Error::BadValue(_) => "bad_value" Invalid,
        Error::NotJson { .. } => "not_json" Gone,
        Error::ReplyTooLarge { .. } => "reply_too_large" TooLarge,
        Error::BodyTooLarge { .. } => "body_too_large" TooLarge,
        Error::NoSuchKey { .. } => "no_such_key" NotFound,
        Error::NoRunDecides => "no_run_decides" Forbidden,
        Error::OnlyTheCommandDecides => "only_the_command_decides" Forbidden,
        Error::NoRunAsks => "no_run" Forbidden,
        Error::UnknownPolicy { .. } => "unknown_policy" NotFound,
        Error::UnknownEntry { .. } => "unknown_entry" NotFound,
        Error::NotKept { .. } => "not_kept" NotFound,
        Error::OwnRunOnly => "foreign_run" Forbidden,
        Error::NoRoute { .. } => "no_route" NotFound,
    }
    through {
        Error::Store(e) => e.fact(),
        Error::Transaction(e) => e.fact(),
        Error::NotLetIn(e) => e.fact(),
    }
}

impl Error {
    /// Returns the hint: what the caller can do about the error; `None` if there is none.
    pub fn hint(&self) -> Option<String> {
        match self {
            Error::Store(e) => e.callers_hint(),
            Error::Transaction(transaction::Error::NotFound { .. }) => Some(format!(
                "what became of one that was committed is known for {} days",
                outcome::KEPT_DAYS
            )),
            Error::NoAttempt => Some("write from within the run's command".into()),
            Error::NotJson { .. } => Some("`outlast state get` shows its bytes".into()),
            Error::ReplyTooLarge { instead, .. } => Some(instead.clone()),
            Error::BodyTooLarge { .. } => Some("raise it with --max-body".into()),
            Error::NoRunDecides | Error::OnlyTheCommandDecides => Some(
                "decide with `outlast approve ID`, set policies in outlast.toml, or use the API token of `outlast serve \
                 --api-token-file`"
                    .into(),
            ),
            Error::NoRunAsks => Some("send the run's token, or an X-Outlast-Run header".into()),
            Error::UnknownPolicy { .. } => Some("`GET /v1/policies` lists them".into()),
            Error::NoRoute { .. } => Some("the routes are in docs/reference/openapi.json".into()),
            _ => None,
        }
    }
}

fn deleted(version: Option<i64>) -> String {
    version.map_or_else(String::new, |v| format!(": version {v} deleted it"))
}

#[cfg(test)]
mod tests {
    use outlast_core::{engine, words::Class};

    use super::*;

    /// Every code that a face can show, with its class.
    fn all() -> impl Iterator<Item = (&'static str, Class)> {
        let lists = [
            engine::Error::CODES,
            transaction::Error::CODES,
            store::Error::CODES,
            NotLetIn::CODES,
            Error::CODES,
        ];
        lists.into_iter().flatten().copied()
    }

    /// Bug: fifteen codes of the engine were answered 500, which clients repeat. Cause: their classes were a list of
    /// strings with a default, which nobody extended.
    #[test]
    fn only_a_defect_or_an_unreadable_store_is_an_internal_error() {
        let ours = ["internal", "store_corrupt", "store_newer", "store_older", "store_forked"];
        for (code, class) in all() {
            assert_eq!(class == Class::Internal, ours.contains(&code), "{code}");
            #[cfg(feature = "grpc")]
            assert_eq!(crate::grpc::code(class) == tonic::Code::Internal, ours.contains(&code), "{code}");
            assert_eq!(class.http() == 500, ours.contains(&code) || code == "commit_unknown", "{code}");
        }
    }

    #[test]
    fn a_code_has_one_class_and_the_documents_tell_its_status() {
        let told = include_str!("../../../../docs/reference/errors.md");
        for (code, class) in all() {
            assert!(all().all(|(other, its)| other != code || its == class), "{code} has two classes");
            for line in told.lines().filter(|line| line.starts_with(&format!("| `{code}` | "))) {
                let status = line.split(" | ").nth(1).and_then(|cell| cell.parse::<u16>().ok());
                assert!(status.is_none_or(|status| status == class.http()), "{line}: {}", class.http());
            }
        }
    }
}
