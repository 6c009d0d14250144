//! Refusals: statuses, codes and retry hints for clients that get no answer.
//!
//! The official SDKs retry 408, 409, 429 and 5xx by themselves, and never 402 and 403: a status
//! here decides whether money is spent again.

use crate::{engine, envelope, store};

/// Reasons why an answer that was requested upstream cannot be given, or not completely.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, thiserror::Error)]
pub enum Broken {
    /// No connection was made: nothing was sent, nothing is charged.
    #[error("the upstream cannot be reached; nothing was sent")]
    Unreachable,
    /// The request was sent, and no answer began. It may have been billed.
    #[error("the request was sent and not answered: it may be paid, and stays charged at its reservation")]
    NoAnswer,
    /// The upstream's answer began and was cut off.
    #[error("the upstream's answer broke off")]
    Cut,
    /// The answer is there and could not be recorded: it is kept and recorded later.
    #[error("the answer could not be recorded yet; it is kept, and given to a later retry")]
    NotRecorded,
    /// The upstream has an outage, which lasted longer than the client waits. Nothing is charged.
    #[error("the provider answers no call at present; this one was held, and is not charged")]
    Outage,
    /// Another process closed the journal entry meanwhile, because this process had been declared dead.
    #[error("the call was closed by another process meanwhile")]
    Overtaken,
}

impl Broken {
    /// Returns the stable code, the same in HTTP, gRPC and Python.
    pub fn code(self) -> &'static str {
        self.facts().0
    }

    /// Returns the HTTP status for a client that has received nothing yet.
    pub fn status(self) -> u16 {
        self.facts().1
    }

    fn facts(self) -> (&'static str, u16) {
        match self {
            Broken::Unreachable => ("upstream_unreachable", 502),
            Broken::NoAnswer => ("upstream_no_answer", 504),
            Broken::Cut => ("upstream_broke_off", 502),
            Broken::NotRecorded => ("not_recorded", 503),
            Broken::Outage => ("provider_outage", 503),
            Broken::Overtaken => ("call_overtaken", 503),
        }
    }
}

/// Reasons why a request got no answer at all. Sent in place of an answer, in the caller's dialect.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refused {
    /// A limit, or a rule of the run: 402, and never retried.
    #[error("{}", .0.message())]
    Budget(envelope::Refusal),
    /// The caller may not act for the run: 403, because SDKs retry 409.
    #[error(transparent)]
    NotAllowed(engine::Error),
    /// Room in a budget did not come back in time. The run is not halted: 429.
    #[error("waited for room: {}", .0.message())]
    AdmissionTimeout(envelope::Refusal),
    /// The store cannot record the call, so the call is not sent.
    #[error("the call cannot be recorded: {0}")]
    Store(store::Error),
    /// This process could not record an earlier answer yet, and so could not record this call either.
    #[error("an earlier answer could not be recorded yet")]
    Stuck,
    /// Another process declared this one dead. It registers anew before it opens another call.
    #[error("this process was declared dead and has to register anew")]
    Dead,
    /// The call upstream failed, and no byte had been sent to the client.
    #[error(transparent)]
    Upstream(#[from] Broken),
}

impl Refused {
    /// Converts the error of a failed admission.
    pub fn of(error: store::Error) -> Refused {
        match error {
            store::Error::Engine(engine::Error::InstanceDead) => Refused::Dead,
            store::Error::Engine(e @ (engine::Error::NotLoaded(_) | engine::Error::Panicked { .. })) => {
                Refused::Store(e.into())
            }
            store::Error::Engine(e) => Refused::NotAllowed(e),
            other => Refused::Store(other),
        }
    }

    pub fn status(&self) -> u16 {
        match self {
            Refused::Budget(_) => 402,
            Refused::NotAllowed(_) => 403,
            Refused::AdmissionTimeout(_) => 429,
            Refused::Store(e) if is_damaged(e) => 500,
            Refused::Store(_) | Refused::Stuck | Refused::Dead => 503,
            Refused::Upstream(broken) => broken.status(),
        }
    }

    /// Returns the stable code, the same in HTTP, gRPC and Python.
    pub fn code(&self) -> &str {
        match self {
            Refused::Budget(refusal) => &refusal.code,
            Refused::NotAllowed(e) => e.code(),
            Refused::AdmissionTimeout(_) => "admission_timeout",
            Refused::Store(e) => e.code(),
            Refused::Stuck => "store_stuck",
            Refused::Dead => "instance_dead",
            Refused::Upstream(broken) => broken.code(),
        }
    }

    /// Returns the value of `x-should-retry`. False for a refusal by a limit: retries of it would flood.
    pub fn should_retry(&self) -> bool {
        match self {
            Refused::Budget(_) | Refused::NotAllowed(_) => false,
            Refused::Store(e) => may_pass(e),
            _ => true,
        }
    }

    /// Returns the value of `Retry-After`, in seconds; `None` if the header is not sent.
    pub fn retry_after_s(&self) -> Option<u32> {
        match self {
            Refused::AdmissionTimeout(_) | Refused::Stuck | Refused::Upstream(Broken::Outage) => Some(5),
            Refused::Store(_) if !self.should_retry() => None,
            Refused::Store(_) | Refused::Dead => Some(2),
            Refused::Budget(_) | Refused::NotAllowed(_) | Refused::Upstream(_) => None,
        }
    }
}

/// Returns whether the store may recover from the error by itself.
fn may_pass(e: &store::Error) -> bool {
    !is_damaged(e) && !matches!(e, store::Error::Vanished { .. } | store::Error::OpenAtFork { .. })
}

fn is_damaged(e: &store::Error) -> bool {
    matches!(e, store::Error::Corrupt { .. } | store::Error::Newer { .. } | store::Error::Engine(_))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{envelope::Refusal, words::Micros};

    #[test]
    fn only_what_a_retry_can_mend_invites_one() {
        let refusal = Refusal::plain("dollar_budget_exceeded", Micros(0));
        let lost = engine::Error::LeaseLost { id: "r".into(), attempt: 1 };
        let vanished = store::Error::Vanished { place: "x".into(), file: "x".into() };
        for (refused, status, code, retry) in [
            (Refused::Budget(refusal.clone()), 402, "dollar_budget_exceeded", false),
            (Refused::of(lost.into()), 403, "lease_lost", false),
            (Refused::AdmissionTimeout(refusal), 429, "admission_timeout", true),
            (Refused::of(store::Error::Closed), 503, "store_closed", true),
            (Refused::of(engine::Error::InstanceDead.into()), 503, "instance_dead", true),
            (Refused::of(engine::Error::NotLoaded("x").into()), 500, "internal", false),
            (Refused::of(store::Error::Corrupt { what: "x".into() }), 500, "store_corrupt", false),
            (Refused::of(vanished), 503, "store_vanished", false),
            (Refused::Stuck, 503, "store_stuck", true),
            (Broken::Unreachable.into(), 502, "upstream_unreachable", true),
            (Broken::NoAnswer.into(), 504, "upstream_no_answer", true),
            (Broken::Outage.into(), 503, "provider_outage", true),
        ] {
            let had = (refused.status(), refused.code(), refused.should_retry());
            assert_eq!(had, (status, code, retry), "{refused:?}");
        }
    }
}
