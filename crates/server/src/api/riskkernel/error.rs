//! Errors of RiskKernel's routes, in the shape that its clients read: `{"code", "message"}`.

use outlast_core::{engine, envelope::Refusal, store, words::class::Class};

use crate::{
    state,
    wire::{access::NotLetIn, refuse},
};

#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The run is halted. The status is 402, and the SDK raises it as `BudgetExceeded` with this error's code.
    #[error("the run is halted: {}", refusal.message())]
    Halted { refusal: Box<Refusal>, run: String },
    #[error("run {run} was cancelled")]
    Cancelled { run: String },
    #[error(transparent)]
    State(#[from] state::Error),
    #[error("{0}")]
    BadRequest(String),
    #[error("no checkpoint was saved in run {run}")]
    NoCheckpoint { run: String },
    #[error("no memory file is named {name:?}: this server keeps facts, and no files")]
    NoMemory { name: String },
    #[error("{method} {path} is no route of RiskKernel's that is served here")]
    NoRoute { method: String, path: String },
    #[error("no approval of run {run} is pending")]
    NoPendingApproval { run: String },
    #[error("{pending} approvals of run {run} are pending, and none is named")]
    AmbiguousApproval { run: String, pending: usize },
    #[error("the answer cannot be written: {0}")]
    Unwritable(String),
    #[error("the server is about to end and takes no new work; nothing was done")]
    Draining,
    /// The request's body did not arrive whole, or could not be read.
    #[error(transparent)]
    Body(#[from] refuse::Refusal),
}

impl Error {
    /// Returns the error's stable code, the same in HTTP, gRPC and Python.
    pub fn code(&self) -> &str {
        match self {
            Error::Halted { refusal, .. } => &refusal.code,
            Error::Cancelled { .. } => "cancelled",
            Error::State(e) => e.code(),
            Error::BadRequest(_) => "bad_request",
            Error::NoCheckpoint { .. } => "no_checkpoint",
            Error::NoMemory { .. } => "no_memory_file",
            Error::NoRoute { .. } => "no_route",
            Error::NoPendingApproval { .. } => "no_pending_approval",
            Error::AmbiguousApproval { .. } => "ambiguous_approval",
            Error::Unwritable(_) => "bad_value",
            Error::Draining => "draining",
            Error::Body(e) => e.code(),
        }
    }

    /// Returns the hint: what the caller can do about the error; `None` if there is none.
    pub fn hint(&self) -> Option<String> {
        match self {
            Error::Halted { refusal, .. } => refusal.callers_hint(),
            Error::Cancelled { .. } => Some("create another run".into()),
            Error::State(e) => e.hint(),
            Error::AmbiguousApproval { .. } => Some("say which with approvalId".into()),
            Error::NoRoute { .. } => Some("the routes are in docs/reference/openapi.json".into()),
            _ => None,
        }
    }

    pub fn status(&self) -> u16 {
        match self {
            Error::Halted { .. } | Error::Cancelled { .. } => 402,
            Error::State(e) => e.class().http(),
            Error::NoCheckpoint { .. } | Error::NoMemory { .. } | Error::NoRoute { .. } => {
                Class::NotFound.http()
            }
            Error::NoPendingApproval { .. } | Error::AmbiguousApproval { .. } => Class::Conflict.http(),
            Error::BadRequest(_) => Class::Invalid.http(),
            Error::Unwritable(_) => Class::Internal.http(),
            Error::Draining => Class::Unavailable.http(),
            Error::Body(e) => e.status(),
        }
    }

    /// Translates an error of work in a run into RiskKernel's terms: if the run is halted or cancelled, the status is
    /// 402.
    ///
    /// `run` must have been read after the error.
    pub fn of_work(error: Error, run: &outlast_core::run::Run) -> Error {
        use outlast_core::run::status::Status;
        let Error::State(state::Error::Store(store::Error::Engine(why))) = &error else { return error };
        let id = run.id.to_string();
        match (why, run.status) {
            (engine::Error::RunHalted { .. }, _) => match &run.halt {
                Some(halt) => Error::Halted { refusal: Box::new(halt.clone()), run: id },
                None => error,
            },
            (engine::Error::RunEnded { .. } | engine::Error::LeaseLost { .. }, Status::Cancelled) => {
                Error::Cancelled { run: id }
            }
            _ => error,
        }
    }
}

impl From<store::Error> for Error {
    fn from(e: store::Error) -> Error {
        Error::State(e.into())
    }
}

impl From<NotLetIn> for Error {
    fn from(e: NotLetIn) -> Error {
        Error::State(e.into())
    }
}
