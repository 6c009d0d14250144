//! Outages of a provider, as the supervisor tells them and judges by them.

use std::time::Duration;

use outlast_core::{
    run::Run,
    words::{
        id::Micros,
        outage::{Cause, Outage},
    },
};
use outlast_server::door::Seen;
use tokio::time::Instant;

use crate::{cli::shared::ProxyArgs, render::time};

/// Limits on how long a run waits for a provider that answers no call.
#[derive(Clone, Copy, Debug)]
pub struct Rules {
    /// Longest time that a run waits for its provider.
    wait: Duration,
    /// Longest pause before the agent is started again to probe the provider.
    pub pause: Duration,
}

impl Rules {
    pub fn of(args: &ProxyArgs) -> Rules {
        let ms = |ms: i64| Duration::from_millis(u64::try_from(ms).unwrap_or(0));
        Rules { wait: ms(args.outage_wait_ms), pause: ms(args.outage_pause_ms) }
    }

    /// Returns the reason why the run is given up, if it has waited for its provider longer than `--outage-wait`;
    /// `None` otherwise.
    pub fn given_up(self, run: &Run, now: Micros) -> Option<String> {
        let (outage, since) = run.awaited_outage()?;
        let waited_ms = now.ms_since(since);
        let wait_ms = i64::try_from(self.wait.as_millis()).unwrap_or(i64::MAX);
        (waited_ms >= wait_ms).then(|| {
            let (waited, since) = (time::span(waited_ms), time::moment(since));
            format!("{outage} since {since}: given up after {waited} (--outage-wait)")
        })
    }
}

/// Outage of a provider that the run's calls meet now, over all attempts of this supervisor.
#[derive(Debug, Default)]
pub struct CurrentOutage {
    known: Option<Known>,
    /// Failure of the newest call, which may begin an outage; `None` if the call did not fail.
    failed: Option<Outage>,
}

#[derive(Debug)]
struct Known {
    outage: Outage,
    heard_at: Instant,
}

impl CurrentOutage {
    /// Takes an event of the proxy. Returns the message for a person, for each new cause of an outage and for its end;
    /// `None` for any other event.
    pub fn note(&mut self, seen: &Seen) -> Option<String> {
        if let Seen::Settled { upstream, failed, .. } = seen {
            self.failed = failed.map(|cause| Outage { upstream: upstream.clone(), cause });
        }
        match seen {
            Seen::Outage { outage, since } => {
                let heard_at = self.known.as_ref().map_or_else(Instant::now, |known| known.heard_at);
                let known = self.known.replace(Known { outage: outage.clone(), heard_at });
                let is_new = known.is_none_or(|known| known.outage != *outage);
                is_new.then(|| waiting(outage, *since))
            }
            Seen::Settled { upstream, answered: true, .. } => {
                let known = self.known.take_if(|known| known.outage.upstream == *upstream)?;
                let waited = i64::try_from(known.heard_at.elapsed().as_millis()).unwrap_or(i64::MAX);
                Some(format!("{upstream} answers again after {}", time::span(waited)))
            }
            _ => None,
        }
    }

    /// Returns the possible outage that made the newest call fail; `None` if that call did not fail so. An agent that
    /// dies of it has not crashed.
    pub fn failed(&self) -> Option<&Outage> {
        self.failed.as_ref()
    }

    /// Returns the moment at which the wait for the provider is given up; `None` if no outage is known.
    pub fn over(&self, rules: Rules) -> Option<Instant> {
        self.known.as_ref().and_then(|known| known.heard_at.checked_add(rules.wait))
    }
}

fn waiting(outage: &Outage, since: Micros) -> String {
    let then = match outage.cause {
        Cause::KeyRefused(_) => "set another key, then `outlast resume` the run",
        Cause::Untrusted => {
            "set SSL_CERT_FILE to a file that has its authority's certificate, then `outlast resume` the run"
        }
        Cause::QuotaEnded(_) => "add credit there; it goes on by itself then",
        _ => "its calls are held until it answers again",
    };
    format!("waiting: {outage} since {}; {then}", time::moment(since))
}

#[cfg(test)]
mod tests {
    use outlast_core::{run::status::Status, words::id::Seq};

    use super::*;

    #[test]
    fn each_cause_is_told_once_and_the_end_by_an_answer_of_that_provider() {
        let out = |cause| Seen::Outage {
            outage: Outage { upstream: "openai".into(), cause },
            since: Micros(1_795_161_600_000_000),
        };
        let settled = |upstream: &str, answered| Seen::Settled {
            seq: Seq(1),
            upstream: upstream.into(),
            status: Status::Waiting,
            answered,
            failed: (!answered).then_some(Cause::Failing(500)),
        };
        let mut told = CurrentOutage::default();
        let mut says = |seen: Seen, wanted: Option<&str>| {
            let said = told.note(&seen);
            assert_eq!(said.is_some(), wanted.is_some(), "{seen:?}: {said:?}");
            assert!(said.unwrap_or_default().contains(wanted.unwrap_or_default()), "{wanted:?}");
        };
        says(settled("openai", true), None);
        says(out(Cause::NoConnection), Some("waiting: openai cannot be reached since "));
        says(out(Cause::NoConnection), None);
        says(out(Cause::KeyRefused(401)), Some("openai refuses the key (401) since"));
        says(settled("openai", false), None);
        says(settled("anthropic", true), None);
        says(settled("openai", true), Some("openai answers again after"));
        says(settled("openai", true), None);
        assert_eq!(told.failed(), None);
        told.note(&settled("openai", false));
        assert_eq!(told.failed().map(|o| o.cause), Some(Cause::Failing(500)), "one failure is not told");
    }
}
