//! Errors of the state's gRPC and REST interfaces, and the only place where codes become statuses.

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
    #[error("{method} {path} is no route of the state")]
    NoRoute { method: String, path: String },
}

/// Class of an error code. Each has one HTTP status and one gRPC status.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// The request is not well formed.
    Invalid,
    NoCredential,
    Forbidden,
    NotFound,
    /// The stored value or version is not the expected one.
    Conflict,
    Exists,
    /// The named thing existed, and does not exist any more, or not in this form.
    Gone,
    TooLarge,
    TooMany,
    /// The server cannot serve the request now. The same request may succeed later.
    Unavailable,
    /// The outcome is unknown: the change may have been committed or not.
    Unknown,
    Internal,
}

impl Error {
    /// Returns the error's stable code, the same in HTTP, gRPC and Python.
    pub fn code(&self) -> &'static str {
        match self {
            Error::Store(e) => e.code(),
            Error::Transaction(e) => e.code(),
            Error::NotLetIn(e) => e.code(),
            Error::NoAttempt => "no_attempt",
            Error::BadRequest(_) => "bad_request",
            Error::BadValue(_) => "bad_value",
            Error::NotJson { .. } => "not_json",
            Error::ReplyTooLarge { .. } => "reply_too_large",
            Error::BodyTooLarge { .. } => "body_too_large",
            Error::NoSuchKey { .. } => "no_such_key",
            Error::NoRunDecides => "no_run_decides",
            Error::OnlyTheCommandDecides => "only_the_command_decides",
            Error::NoRunAsks => "no_run",
            Error::UnknownPolicy { .. } => "unknown_policy",
            Error::UnknownEntry { .. } => "unknown_entry",
            Error::NotKept { .. } => "not_kept",
            Error::OwnRunOnly => "foreign_run",
            Error::NoRoute { .. } => "no_route",
        }
    }

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

    pub fn kind(&self) -> Kind {
        if let Error::NotLetIn(e) = self {
            return match e.status() {
                400 => Kind::Invalid,
                401 => Kind::NoCredential,
                _ => Kind::Forbidden,
            };
        }
        Kind::of(self.code())
    }
}

fn deleted(version: Option<i64>) -> String {
    version.map_or_else(String::new, |v| format!(": version {v} deleted it"))
}

impl Kind {
    /// Returns the class of an error code of the engine, the store or this crate.
    pub fn of(code: &str) -> Kind {
        match code {
            "bad_request" | "bad_value" | "bad_keep" | "bad_limit" | "bad_approval" => Kind::Invalid,
            "read_only_namespace"
            | "no_run_decides"
            | "only_the_command_decides"
            | "no_run"
            | "foreign_run"
            | "lease_lost"
            | "label_ended"
            | "instance_dead"
            | "no_attempt"
            | "run_ended"
            | "run_held"
            | "run_halted"
            | "not_running" => Kind::Forbidden,
            "transaction_not_found"
            | "transaction_forgotten"
            | "transaction_expired"
            | "unknown_run"
            | "unknown_budget"
            | "no_such_key"
            | "unknown_approval"
            | "unknown_policy"
            | "unknown_entry"
            | "not_kept"
            | "no_route" => Kind::NotFound,
            "conflict" | "other_arguments" | "already_decided" | "approval_expired" => Kind::Conflict,
            "transaction_exists" => Kind::Exists,
            "compacted" | "not_json" => Kind::Gone,
            "transaction_too_large" | "reply_too_large" | "body_too_large" => Kind::TooLarge,
            "too_many_transactions" | "too_many_approvals" => Kind::TooMany,
            "store_full" | "store_io" | "store_refused" | "store_unavailable" | "store_closed"
            | "store_vanished" => Kind::Unavailable,
            "commit_unknown" => Kind::Unknown,
            _ => Kind::Internal,
        }
    }

    pub fn http(self) -> u16 {
        match self {
            Kind::Invalid => 400,
            Kind::NoCredential => 401,
            Kind::Forbidden => 403,
            Kind::NotFound => 404,
            Kind::Conflict | Kind::Exists => 409,
            Kind::Gone => 410,
            Kind::TooLarge => 413,
            Kind::TooMany => 429,
            Kind::Unavailable => 503,
            Kind::Unknown | Kind::Internal => 500,
        }
    }

    pub fn grpc(self) -> tonic::Code {
        match self {
            Kind::Invalid => tonic::Code::InvalidArgument,
            Kind::NoCredential => tonic::Code::Unauthenticated,
            Kind::Forbidden => tonic::Code::PermissionDenied,
            Kind::NotFound => tonic::Code::NotFound,
            Kind::Conflict => tonic::Code::Aborted,
            Kind::Exists => tonic::Code::AlreadyExists,
            Kind::Gone => tonic::Code::FailedPrecondition,
            Kind::TooLarge | Kind::TooMany => tonic::Code::ResourceExhausted,
            Kind::Unavailable => tonic::Code::Unavailable,
            Kind::Unknown => tonic::Code::Unknown,
            Kind::Internal => tonic::Code::Internal,
        }
    }
}
