//! Reasons why the fake provider gives a request no answer.

use std::time::Duration;

use http::{Method, StatusCode};

/// Largest body in bytes, both as received and after decoding.
pub(super) const MAX_BODY: usize = 64 << 20;

#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum Refusal {
    #[error("the request asked for this status")]
    Asked(StatusCode),
    #[error("the provider was started to have an outage")]
    Outage(StatusCode),
    #[error("the key is not valid, as the provider was started to say")]
    BadKey,
    /// The account has no credit. Each provider words this error differently.
    #[error("your credit balance is too low, as the provider was started to say")]
    NoCredit,
    #[error("refused by chance, as the provider was started to do")]
    ByChance(StatusCode),
    /// The rate limit is reached. The next call is taken after this time.
    #[error("the rate limit has been reached")]
    RateLimit(Duration),
    /// A plan's usage limit is reached, which ends after this time.
    #[error("the usage limit has been reached")]
    UsageLimit(Duration),
    /// The request is wrong. The message is worded as a provider would word it.
    #[error("{0}")]
    Bad(String),
    #[error("wanted a credential in {wanted}, had none")]
    NoCredential { wanted: &'static str },
    #[error("there is no {what} here")]
    NotFound { what: String },
    #[error("{path}: wanted {wanted}, had {had}")]
    WrongMethod { path: String, wanted: Method, had: Method },
    #[error("the body is too large: wanted at most {MAX_BODY} bytes, decoded")]
    TooLarge,
    #[error("content-encoding: wanted gzip, zstd or identity, had {had}")]
    UnknownEncoding { had: String },
    #[error("{0}")]
    Internal(String),
}

impl Refusal {
    pub fn bad(message: impl Into<String>) -> Self {
        Self::Bad(message.into())
    }

    pub fn status(&self) -> StatusCode {
        match self {
            Self::Asked(status) | Self::ByChance(status) | Self::Outage(status) => *status,
            Self::BadKey => StatusCode::UNAUTHORIZED,
            Self::NoCredit => StatusCode::PAYMENT_REQUIRED,
            Self::UsageLimit(_) | Self::RateLimit(_) => StatusCode::TOO_MANY_REQUESTS,
            Self::Bad(_) => StatusCode::BAD_REQUEST,
            Self::NoCredential { .. } => StatusCode::UNAUTHORIZED,
            Self::NotFound { .. } => StatusCode::NOT_FOUND,
            Self::WrongMethod { .. } => StatusCode::METHOD_NOT_ALLOWED,
            Self::TooLarge => StatusCode::PAYLOAD_TOO_LARGE,
            Self::UnknownEncoding { .. } => StatusCode::UNSUPPORTED_MEDIA_TYPE,
            Self::Internal(_) => StatusCode::INTERNAL_SERVER_ERROR,
        }
    }
}
