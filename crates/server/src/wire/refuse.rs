//! Refusals: errors that Outlast answers itself, in the error shape of the caller's SDK.

use bytes::Bytes;
use http::{HeaderValue, Response, header};
use outlast_core::{call::Refused, envelope, run::token, store, words::Micros};

use super::{
    access::NotLetIn,
    body::{AnswerBody, JSON, response},
    encoding::BadEncoding,
};
use crate::dialect::{BadRequest, Upstream, refusal_body, usage_limit_body};

/// `Retry-After` of a draining server, in seconds: a new server may listen here by then.
const COME_AGAIN_S: u32 = 5;

/// Reason why the proxy answers a request with an error of its own.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// Refusal by the call machine or the store. The hint names `run`.
    #[error("{refused}")]
    Call { refused: Box<Refused>, run: String },
    #[error("{upstream} had no turn for this call within {waited_s} s: {why}")]
    UpstreamRate { upstream: String, waited_s: String, why: String, retry_after_s: Option<u32> },
    /// A call that would pass a ceiling on the plan of its login. The hint names `run`.
    #[error("{}", .refusal.message())]
    PlanCeiling { refusal: Box<envelope::Refusal>, run: String, until: Micros, retry_after_s: u32 },
    #[error(transparent)]
    NotLetIn(#[from] NotLetIn),
    #[error(transparent)]
    BadRequest(#[from] BadRequest),
    #[error(transparent)]
    BadEncoding(#[from] BadEncoding),
    #[error("the target must be a path, not a URL")]
    AbsoluteTarget,
    #[error("{0}")]
    BadTarget(&'static str),
    /// A `CONNECT` without the run's token. Proxies ask for credentials with this status.
    #[error("a tunnel is for programs of this run alone: {why}")]
    ProxyCredentials { why: String },
    /// A `CONNECT` to a host that the run's confined network may not reach.
    #[error("{host}:{port} is not a host that this run may reach")]
    NetRefused { host: String, port: u16 },
    /// A request in an opened connection names another host than the connection was opened for.
    #[error("the request is for {had:?}, and its connection is to {wanted}")]
    OtherHost { had: String, wanted: String },
    #[error("WebSockets are not metered; use HTTP")]
    NoWebSocket,
    #[error("{reason}; nothing was sent")]
    NotMetered { reason: String },
    #[error("{method} {path} is not on the list of paths that pass")]
    UnknownPath { method: String, path: String },
    #[error("the request's body is larger than {limit} bytes, the most that Outlast takes")]
    BodyTooLarge { limit: usize },
    #[error("the body did not arrive: {0}")]
    BodyCutOff(String),
    #[error("the header {name} is {had:?} (wanted {wanted})")]
    BadHeader { name: &'static str, had: String, wanted: &'static str },
    #[error("the server is about to end and takes no new calls; nothing was sent")]
    Draining,
    #[error("{method} {path}: it can only be read")]
    ReadOnly { method: String, path: &'static str },
    #[error(
        "the link is used, or older than a minute, or none of this server; `outlast ui` prints a new one"
    )]
    BadLink,
    #[error("{id:?} is not the id of an answer in this run's journal; nothing was sent")]
    ForeignResponse { id: String },
    /// Refusal because no key for the upstream is known. `needs` says how to give one, such as `OPENAI_API_KEY set`.
    #[error("no key for {upstream} is known here")]
    NoProviderKey { upstream: String, needs: String },
    #[error("the key for {upstream} cannot be sent: {why}")]
    UnusableKey { upstream: String, why: String },
    #[error("no upstream is named {name:?} here")]
    UnknownUpstream { name: String },
    /// Failed connection to the upstream for a free request. The client may retry: nothing was recorded or charged.
    #[error("the upstream cannot be reached: {0}")]
    Unreachable(String),
    #[error("the upstream did not answer")]
    NoAnswer,
    #[error("the upstream's answer {0}")]
    BrokeOff(String),
    #[error("{0}")]
    Internal(String),
}

impl Refusal {
    /// Returns the refusal of the call machine as one of the proxy. The hint names `run`.
    pub fn of(refused: Refused, run: &str) -> Refusal {
        Refusal::Call { refused: Box::new(refused), run: run.into() }
    }

    /// Returns the HTTP status and the stable code, the same in HTTP, gRPC and Python. The official SDKs retry some
    /// statuses by themselves: see [`Refused`].
    fn fact(&self) -> (u16, &str) {
        match self {
            Refusal::Call { refused, .. } => (refused.status(), refused.code()),
            Refusal::PlanCeiling { refusal, .. } => (429, &refusal.code),
            Refusal::UpstreamRate { .. } => (429, "upstream_rate"),
            Refusal::NotLetIn(e) => (e.class().http(), e.code()),
            Refusal::BadRequest(e) => e.fact(),
            Refusal::BadEncoding(e) => e.fact(),
            Refusal::AbsoluteTarget => (400, "absolute_target"),
            Refusal::BadTarget(_) => (400, "bad_target"),
            Refusal::ProxyCredentials { .. } => (407, "proxy_credentials"),
            Refusal::NetRefused { .. } => (403, "net_refused"),
            Refusal::OtherHost { .. } => (421, "other_host"),
            Refusal::NoWebSocket => (426, "no_websocket"),
            Refusal::NotMetered { .. } => (403, "not_metered"),
            Refusal::UnknownPath { .. } => (403, "unknown_path"),
            Refusal::BodyTooLarge { .. } => (413, "body_too_large"),
            Refusal::BodyCutOff(_) => (400, "body_cut_off"),
            Refusal::BadHeader { .. } => (400, "bad_header"),
            Refusal::Draining => (503, "draining"),
            Refusal::ReadOnly { .. } => (405, "read_only"),
            Refusal::BadLink => (401, "bad_link"),
            Refusal::ForeignResponse { .. } => (403, "foreign_response"),
            Refusal::NoProviderKey { .. } | Refusal::UnusableKey { .. } => (401, "no_provider_key"),
            Refusal::UnknownUpstream { .. } => (404, "unknown_upstream"),
            Refusal::Unreachable(_) => (502, "upstream_unreachable"),
            Refusal::NoAnswer => (504, "upstream_no_answer"),
            Refusal::BrokeOff(_) => (502, "upstream_broke_off"),
            Refusal::Internal(_) => (500, "internal"),
        }
    }

    pub fn status(&self) -> u16 {
        self.fact().0
    }

    pub fn code(&self) -> &str {
        self.fact().1
    }

    /// Returns the refusal in words for the caller, who is not told where the store is: the log says it.
    fn callers_text(&self) -> String {
        match self {
            Refusal::Call { refused, .. } => match &**refused {
                Refused::Store(e) => format!("the call cannot be recorded: {}", e.callers_text()),
                refused => refused.to_string(),
            },
            _ => self.to_string(),
        }
    }

    /// Returns whether the store is away, and the request may be decided once it is back.
    pub fn is_outage_of_store(&self) -> bool {
        let Refusal::Call { refused, .. } = self else { return false };
        matches!(&**refused, Refused::Store(store::Error::Unavailable { .. }))
    }

    /// Returns the hint for the caller, which may be the agent: it names no way to raise a limit.
    fn callers_hint(&self) -> Option<String> {
        match self {
            Refusal::Call { refused, .. } => match &**refused {
                Refused::Budget(refusal) | Refused::AdmissionTimeout(refusal) => refusal.callers_hint(),
                Refused::NotAllowed(e) => e.callers_hint(),
                Refused::Store(e) => e.callers_hint(),
                _ => None,
            },
            Refusal::PlanCeiling { refusal, .. } => refusal.callers_hint(),
            _ => self.hint(),
        }
    }

    /// Returns what a person can do about the refusal, as the supervisor's terminal shows it; `None`: nothing.
    pub fn hint(&self) -> Option<String> {
        match self {
            Refusal::Call { refused, run } => match &**refused {
                Refused::Budget(refusal) => Some(refusal.hint(run)),
                // The run's own budget needs no hint: its room comes back when other calls settle.
                Refused::AdmissionTimeout(refusal) if refusal.whose.is_some() => Some(refusal.hint(run)),
                Refused::NotAllowed(e) => e.hint(),
                Refused::Store(e) => e.hint(),
                _ => None,
            },
            Refusal::PlanCeiling { refusal, run, .. } => Some(refusal.hint(run)),
            Refusal::BodyTooLarge { .. } | Refusal::BadEncoding(BadEncoding::TooLarge { .. }) => {
                Some("start outlast with a larger --max-body".into())
            }
            Refusal::NoProviderKey { needs, .. } => Some(format!(
                "start this program, or the outlast that it asks, with {needs}, or send the provider's key yourself"
            )),
            Refusal::ForeignResponse { .. } => {
                Some("outlast started with --foreign-responses takes ids of other runs' answers".into())
            }
            Refusal::UnknownUpstream { .. } => {
                Some("upstreams are named in ~/.config/outlast/outlast.toml, as [upstreams.NAME]".into())
            }
            Refusal::NotLetIn(NotLetIn::RunTokenWanted) => Some(
                "let the program read its API key from the environment (OPENAI_API_KEY, ANTHROPIC_API_KEY, …): it holds \
                 the run token there, and the provider's key stays with Outlast"
                    .into(),
            ),
            _ => None,
        }
    }

    /// Returns the value of the header `x-should-retry`: whether the client's SDK should retry by itself.
    pub fn should_retry(&self) -> bool {
        match self {
            Refusal::Call { refused, .. } => refused.should_retry(),
            Refusal::UpstreamRate { .. }
            | Refusal::Draining
            | Refusal::Unreachable(_)
            | Refusal::NoAnswer
            | Refusal::BrokeOff(_) => true,
            _ => false,
        }
    }

    /// Returns the value of the header `Retry-After`, in seconds; `None`: no such header.
    pub fn retry_after_s(&self) -> Option<u32> {
        match self {
            Refusal::Call { refused, .. } => refused.retry_after_s(),
            Refusal::UpstreamRate { retry_after_s, .. } => *retry_after_s,
            Refusal::PlanCeiling { retry_after_s, .. } => Some(*retry_after_s),
            Refusal::Draining => Some(COME_AGAIN_S),
            _ => None,
        }
    }

    /// Returns the response for the refusal, in the error shape that the SDKs of `shape` read.
    pub fn response(&self, shape: Upstream) -> Response<AnswerBody> {
        let text = self.callers_text();
        let message = match self.callers_hint() {
            Some(hint) => format!("{text} ({hint})"),
            None => text,
        };
        // The message may repeat the caller's text, and with it a run token.
        let message = token::mask(&message);
        let limit_s = match self {
            Refusal::PlanCeiling { until, .. } => Some(until.0.div_euclid(1_000_000) + 1),
            _ => None,
        };
        let body: Bytes = match limit_s {
            Some(until_s) => usage_limit_body(shape, self.code(), &message, until_s),
            None => refusal_body(shape, self.status(), self.code(), &message),
        };
        let mut response = refused(self.status(), self.code(), body, self.should_retry());
        let headers = response.headers_mut();
        if matches!(self, Refusal::ProxyCredentials { .. }) {
            headers.insert(header::PROXY_AUTHENTICATE, HeaderValue::from_static("Basic realm=\"outlast\""));
        }
        if let Some(seconds) = self.retry_after_s() {
            headers.insert(header::RETRY_AFTER, HeaderValue::from(seconds));
        }
        if let Some(until_s) = limit_s.filter(|_| shape == Upstream::Anthropic) {
            // What Claude Code takes for a plan's limit, and shows with its end.
            headers.insert("anthropic-ratelimit-unified-status", HeaderValue::from_static("rejected"));
            headers.insert("anthropic-ratelimit-unified-reset", HeaderValue::from(until_s));
        }
        response
    }
}

/// Returns the response for an error that is no refusal of a call, in the error shape that the SDKs of `shape` read.
pub fn in_shape(shape: Upstream, status: u16, code: &str, message: &str) -> Response<AnswerBody> {
    refused(status, code, refusal_body(shape, status, code, &token::mask(message)), false)
}

fn refused(status: u16, code: &str, body: Bytes, should_retry: bool) -> Response<AnswerBody> {
    let mut response = response(status, JSON, body);
    let headers = response.headers_mut();
    let retry = if should_retry { "true" } else { "false" };
    headers.insert("x-should-retry", HeaderValue::from_static(retry));
    if let Ok(code) = HeaderValue::from_str(code) {
        headers.insert("x-outlast-code", code);
    }
    response
}

impl From<store::Error> for Refusal {
    fn from(e: store::Error) -> Refusal {
        Refusal::of(Refused::of(e), "RUN")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The SDKs' own retries follow the status, ours the header.
    #[test]
    fn only_what_may_pass_by_itself_invites_a_retry() {
        let halt = envelope::Refusal::plain("price_unknown", outlast_core::words::id::Micros(0));
        let rate = Refusal::UpstreamRate {
            upstream: "openai".into(),
            waited_s: "30".into(),
            why: "60 a minute".into(),
            retry_after_s: Some(7),
        };
        for (refusal, status, code, retry, after) in [
            (Refusal::of(Refused::Stuck, "r"), 503, "store_stuck", true, Some(5)),
            (Refusal::of(Refused::Budget(halt), "r"), 402, "price_unknown", false, None),
            (rate, 429, "upstream_rate", true, Some(7)),
            (Refusal::Draining, 503, "draining", true, Some(5)),
            (Refusal::Unreachable("refused".into()), 502, "upstream_unreachable", true, None),
            (Refusal::NoAnswer, 504, "upstream_no_answer", true, None),
            (Refusal::BodyTooLarge { limit: 1 }, 413, "body_too_large", false, None),
            (Refusal::UnknownUpstream { name: "x".into() }, 404, "unknown_upstream", false, None),
            (store::Error::Corrupt { what: "x".into() }.into(), 500, "store_corrupt", false, None),
        ] {
            let told = (refusal.status(), refusal.code(), refusal.should_retry(), refusal.retry_after_s());
            assert_eq!(told, (status, code, retry, after), "{refusal:?}");
            let response = refusal.response(Upstream::OpenAi);
            assert_eq!(response.status().as_u16(), status);
            assert_eq!(response.headers()["x-outlast-code"], code);
            assert_eq!(response.headers()["x-should-retry"], if retry { "true" } else { "false" });
        }
    }
}
