//! Outages of providers: why a provider answers no call at all.

use std::fmt;

use serde::{Deserialize, Serialize};

use super::Micros;

/// Cause of an outage.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Cause {
    /// No connection was made: it was refused, reset or timed out.
    NoConnection,
    /// The provider's name is not found.
    NoName,
    /// The TLS handshake failed.
    NoTls,
    /// The certificate that the provider shows is not trusted.
    Untrusted,
    /// The connection ends before an answer begins.
    Lost,
    /// A status of 500 or above.
    Failing(u16),
    /// The provider refuses the key that Outlast was given.
    KeyRefused(u16),
    /// The account has no credit left.
    QuotaEnded(u16),
}

impl Cause {
    /// Returns the stable code, the same in HTTP, `show` and `ls`.
    pub fn code(self) -> &'static str {
        match self {
            Cause::NoConnection | Cause::NoName | Cause::NoTls | Cause::Untrusted | Cause::Lost => {
                "provider_unreachable"
            }
            Cause::Failing(_) => "provider_failing",
            Cause::KeyRefused(_) => "key_refused",
            Cause::QuotaEnded(_) => "quota_ended",
        }
    }

    /// Returns whether one failure of this cause is enough to call it an outage. A single 5xx or lost answer may be the
    /// request's own, and so may a 403: it asks for a model that the key may not use.
    pub fn is_certain(self) -> bool {
        !matches!(self, Cause::Failing(_) | Cause::Lost | Cause::KeyRefused(403))
    }

    /// Returns whether no connection was made, so that the first one that is made ends the outage.
    pub fn is_no_connection(self) -> bool {
        match self {
            Cause::NoConnection | Cause::NoName | Cause::NoTls | Cause::Untrusted => true,
            Cause::Lost | Cause::Failing(_) | Cause::KeyRefused(_) | Cause::QuotaEnded(_) => false,
        }
    }

    /// Returns whether both causes are of one kind: they have one code, and ask the same of a person.
    pub fn is_like(self, other: Cause) -> bool {
        self.code() == other.code() && self.needs_a_person() == other.needs_a_person()
    }

    /// Returns whether an outage of this cause lasts until a person does something about it.
    pub fn needs_a_person(self) -> bool {
        matches!(self, Cause::KeyRefused(_) | Cause::QuotaEnded(_) | Cause::Untrusted)
    }
}

/// Writes the words that follow the upstream's name in a message.
impl fmt::Display for Cause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Cause::NoConnection => f.write_str("cannot be reached"),
            Cause::NoName => f.write_str("cannot be reached: its name is not found (DNS)"),
            Cause::NoTls => f.write_str("cannot be reached: the TLS handshake fails"),
            Cause::Untrusted => f.write_str("cannot be reached: its certificate is not trusted"),
            Cause::Lost => f.write_str("closes connections without an answer"),
            Cause::Failing(status) => write!(f, "fails with {status}"),
            Cause::KeyRefused(status) => write!(f, "refuses the key ({status})"),
            Cause::QuotaEnded(status) => write!(f, "says that the quota has ended ({status})"),
        }
    }
}

/// An upstream that does not answer its calls, or refuses them all, and why.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Outage {
    pub upstream: String,
    pub cause: Cause,
}

impl Outage {
    /// Returns what a person does to end the outage; `None` if it ends by itself.
    pub fn remedy(&self) -> Option<String> {
        let upstream = &self.upstream;
        match self.cause {
            Cause::KeyRefused(_) => Some(format!("set a key that {upstream} takes")),
            Cause::Untrusted => Some(format!(
                "set SSL_CERT_FILE to a file that has the authority of {upstream}'s certificate"
            )),
            Cause::QuotaEnded(_) => Some(format!("add credit at {upstream}")),
            Cause::NoConnection | Cause::NoName | Cause::NoTls | Cause::Lost | Cause::Failing(_) => None,
        }
    }

    /// Returns how a run goes on that waits for the provider. `resume`: what takes the run up.
    pub fn hint(&self, is_driven: bool, resume: &str) -> String {
        match (self.remedy(), is_driven) {
            // A process asks with the key and the certificates that it began with.
            (Some(remedy), true) if matches!(self.cause, Cause::QuotaEnded(_)) => {
                format!("{remedy}: it goes on by itself then, or at once with {resume}")
            }
            (Some(remedy), _) => format!("{remedy}, then {resume}"),
            (None, true) => format!("it goes on by itself when {} answers again", self.upstream),
            (None, false) => format!("{resume}: it waits on until {} answers again", self.upstream),
        }
    }
}

/// Times of an outage that a run waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct OutSince {
    /// Time at which the outage began, with whatever cause.
    pub began: Micros,
    /// Time since which its cause is of the kind that it is now.
    pub cause: Micros,
}

impl fmt::Display for Outage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.upstream, self.cause)
    }
}
