//! Answers of ours: refusals in the caller's dialect.

use bytes::Bytes;
use http::{HeaderValue, Response, StatusCode, header};
use outlast_core::{call::Refused, run::token};

use super::{body::AnswerBody, encoding::BadEncoding, who::NotLetIn};
use crate::dialect::{BadRequest, Upstream, refusal_body};

/// A refusal before it has a shape.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refusal {
    pub status: u16,
    pub code: String,
    pub message: String,
    pub hint: Option<String>,
    /// What `x-should-retry` says; `None` leaves it to the SDK.
    pub retry: Option<bool>,
    /// `Retry-After`, in seconds.
    pub retry_after_s: Option<u32>,
}

impl Refusal {
    pub fn new(status: u16, code: &str, message: impl Into<String>) -> Refusal {
        Refusal {
            status,
            code: code.into(),
            message: message.into(),
            hint: None,
            retry: Some(false),
            retry_after_s: None,
        }
    }

    /// `run` is named in the hint.
    pub fn of(refused: &Refused, run: &str) -> Refusal {
        let hint = match refused {
            Refused::Budget(refusal) => Some(refusal.hint(run)),
            // The run's own budget needs nobody: room comes back by itself.
            Refused::AdmissionTimeout(refusal) if refusal.whose.is_some() => Some(refusal.hint(run)),
            Refused::NotAllowed(e) => e.hint(),
            Refused::Store(e) => e.hint(),
            _ => None,
        };
        Refusal {
            status: refused.status(),
            code: refused.code().into(),
            message: refused.to_string(),
            hint,
            retry: Some(refused.should_retry()),
            retry_after_s: refused.retry_after_s(),
        }
    }

    /// The response, in the error shape of `shape`'s SDKs.
    pub fn response(&self, shape: Upstream) -> Response<AnswerBody> {
        let message = match &self.hint {
            Some(hint) => format!("{} ({hint})", self.message),
            None => self.message.clone(),
        };
        // What a caller wrote may stand in it, and so its token.
        let message = token::mask(&message);
        let body: Bytes = refusal_body(shape, self.status, &self.code, &message);
        let mut response = Response::new(AnswerBody::plain(body));
        *response.status_mut() =
            StatusCode::from_u16(self.status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
        let headers = response.headers_mut();
        headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
        if let Some(retry) = self.retry {
            headers.insert("x-should-retry", HeaderValue::from_static(if retry { "true" } else { "false" }));
        }
        if let Ok(code) = HeaderValue::from_str(&self.code) {
            headers.insert("x-outlast-code", code);
        }
        if let Some(seconds) = self.retry_after_s {
            headers.insert(header::RETRY_AFTER, HeaderValue::from(seconds));
        }
        response
    }
}

impl From<NotLetIn> for Refusal {
    fn from(e: NotLetIn) -> Refusal {
        Refusal::new(e.status(), e.code(), e.to_string())
    }
}

impl From<BadRequest> for Refusal {
    fn from(e: BadRequest) -> Refusal {
        Refusal::new(e.status(), e.code(), e.to_string())
    }
}

impl From<BadEncoding> for Refusal {
    fn from(e: BadEncoding) -> Refusal {
        let (status, code) = match e {
            BadEncoding::Unknown { .. } => (415, "unknown_encoding"),
            BadEncoding::Broken { .. } => (400, "broken_encoding"),
            BadEncoding::TooLarge { .. } => (413, "body_too_large"),
        };
        Refusal::new(status, code, e.to_string())
    }
}

impl From<outlast_core::store::Error> for Refusal {
    fn from(e: outlast_core::store::Error) -> Refusal {
        Refusal::of(&Refused::of(e), "RUN")
    }
}
