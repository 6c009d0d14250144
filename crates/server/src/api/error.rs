//! Errors of our own routes, in the shapes that their clients read.

use http::{HeaderValue, Response};
use outlast_core::{engine, envelope, run, store, words::Class};
use serde_json::json;

use crate::{
    dialect::Upstream,
    proxy::host::Host,
    state,
    wire::{
        access::NotLetIn,
        body::{AnswerBody, JSON, response},
        refuse::{self, Refusal},
    },
};

/// Error of a request for one of our own routes.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error(transparent)]
    State(#[from] state::Error),
    /// Refusal that any request may meet: of a body, of a server that drains.
    #[error(transparent)]
    Refusal(#[from] Refusal),
    /// The run is halted. The status is 402, and RiskKernel's SDK raises it as `BudgetExceeded` with this error's code.
    #[error("the run is halted: {}", refusal.message())]
    Halted { refusal: Box<envelope::Refusal> },
    #[error("run {run} was cancelled")]
    Cancelled { run: String },
    #[error("this server has no such session: it ended, or another server has it")]
    UnknownSession,
    #[error("run {run} was asked to stop")]
    StopRequested { run: String },
    #[error("run {run} is completed, and only replays")]
    RunCompleted { run: String },
    #[error("run {run} has {had} as its limit, and {asked} was asked for")]
    BudgetChanged { run: String, had: String, asked: String },
    #[error("no checkpoint was saved in run {run}")]
    NoCheckpoint { run: String },
    #[error("no memory file is named {name:?}: this server keeps facts, and no files")]
    NoMemory { name: String },
    #[error("no approval of run {run} is pending")]
    NoPendingApproval { run: String },
    #[error("{pending} approvals of run {run} are pending, and none is named")]
    AmbiguousApproval { run: String, pending: usize },
}

/// Shape in which the clients of a face read errors.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Shape {
    /// Shape of the caller's SDK, as for calls.
    Sdk,
    /// `{"error": {"code", "message", "hint"}}`.
    Ours,
    /// `{"code", "message"}`. The hint is part of the message, because RiskKernel's SDK shows nothing else.
    RiskKernel,
    /// Both of these in one body.
    Both,
}

impl Shape {
    /// Returns the name of the shape in `docs/reference/openapi.json`.
    pub fn schema(self) -> &'static str {
        match self {
            Shape::Sdk => "SdkError",
            Shape::Ours => "Error",
            Shape::RiskKernel => "RiskKernelError",
            Shape::Both => "ApprovalsError",
        }
    }
}

impl Error {
    /// Returns the error of a request that is not well formed.
    pub fn bad(text: impl Into<String>) -> Error {
        state::Error::BadRequest(text.into()).into()
    }

    /// Returns the HTTP status, the stable code, the same in HTTP, gRPC and Python, and the hint: what the caller can do
    /// about the error; `None` if there is none.
    fn facts(&self) -> (u16, &str, Option<String>) {
        let (class, code, hint) = match self {
            Error::State(e) => return (e.class().http(), e.code(), e.hint()),
            Error::Refusal(e) => return (e.status(), e.code(), None),
            Error::Halted { refusal } => return (402, &refusal.code, refusal.callers_hint()),
            Error::Cancelled { .. } => return (402, "cancelled", Some("create another run".into())),
            Error::UnknownSession => {
                (Class::NotFound, "unknown_session", Some("open the run again: it goes on where it was"))
            }
            Error::StopRequested { .. } => {
                (Class::Forbidden, "stop_requested", Some("open it again to go on"))
            }
            Error::RunCompleted { .. } => {
                (Class::Forbidden, "run_completed", Some("open a run with another id, to do more"))
            }
            Error::BudgetChanged { .. } => (
                Class::Conflict,
                "budget_changed",
                Some(
                    "a run keeps its limits: ask for those that it has, or let a person change them with `outlast budget`",
                ),
            ),
            Error::NoCheckpoint { .. } => (Class::NotFound, "no_checkpoint", None),
            Error::NoMemory { .. } => (Class::NotFound, "no_memory_file", None),
            Error::NoPendingApproval { .. } => (Class::Conflict, "no_pending_approval", None),
            Error::AmbiguousApproval { .. } => {
                (Class::Conflict, "ambiguous_approval", Some("say which with approvalId"))
            }
        };
        (class.http(), code, hint.map(str::to_owned))
    }

    /// Translates an error of work in a run into RiskKernel's terms: if the run is halted or cancelled, the status is
    /// 402.
    ///
    /// `run` must have been read after the error.
    pub fn of_work(self, run: &run::Run) -> Error {
        use run::status::Status;
        let Error::State(state::Error::Store(store::Error::Engine(why))) = &self else { return self };
        match (why, run.status, &run.halt) {
            (engine::Error::RunHalted { .. }, _, Some(halt)) => {
                Error::Halted { refusal: Box::new(halt.clone()) }
            }
            (engine::Error::RunEnded { .. } | engine::Error::LeaseLost { .. }, Status::Cancelled, _) => {
                Error::Cancelled { run: run.id.to_string() }
            }
            _ => self,
        }
    }

    /// Returns the response for the error. A refusal has the shape of the caller's SDK everywhere but for RiskKernel's
    /// clients.
    pub(super) fn response(&self, host: &Host, shape: Shape, sdk: Upstream) -> Response<AnswerBody> {
        if let (Error::Refusal(refusal), true) = (self, shape != Shape::RiskKernel) {
            host.metrics.refused(refusal.code());
            return refusal.response(sdk);
        }
        let (status, code, hint) = self.facts();
        let message = match &hint {
            Some(hint) => format!("{self} ({hint})"),
            None => self.to_string(),
        };
        let mut body = json!({});
        match shape {
            Shape::Sdk => {
                host.metrics.refused(code);
                return refuse::in_shape(sdk, status, code, &message);
            }
            Shape::Ours => {}
            Shape::Both | Shape::RiskKernel => body = json!({ "code": code, "message": message }),
        }
        if shape != Shape::RiskKernel {
            body["error"] = json!({ "code": code, "message": self.to_string(), "hint": hint });
        }
        let mut response = response(status, JSON, body.to_string());
        let headers = response.headers_mut();
        if let Ok(code) = HeaderValue::from_str(code) {
            headers.insert("x-outlast-code", code);
        }
        if matches!(self, Error::State(state::Error::NotLetIn(_))) {
            // As for calls: whoever is not let in is not let in later.
            headers.insert("x-should-retry", HeaderValue::from_static("false"));
        }
        response
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
