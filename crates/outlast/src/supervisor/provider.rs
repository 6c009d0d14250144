//! State of a provider, as the proxy and the agent's output tell it: its usage limits, room in a budget, and its outages, which a
//! person is told of and by which a run is judged.

use std::time::Duration;

use outlast_core::{
    envelope::Refusal,
    run::Run,
    words::{Micros, OutSince, Outage, Seq},
};
use outlast_process::exit::Exit;
use outlast_server::door::{NOT_OPENED, Seen, TOO_LARGE};
use tokio::time::Instant;

use crate::{cli::shared::ProxyArgs, render::time};

/// Time that an agent at a usage limit has to end by itself before it is stopped. Most end on the provider's error.
pub const GRACE: Duration = Duration::from_secs(10);

/// First exit code that is not a program's own: `timeout` leaves with 124, a shell with 126, 127 and 128 + a signal.
const FIRST_FOREIGN_CODE: i32 = 124;

/// Usage limit, or ceiling on a plan, at which an attempt waits, if any.
#[derive(Clone, Debug, Default)]
pub struct Limited {
    limit: Option<Limit>,
    /// Newest call that was sent.
    newest: Seq,
    /// Limit printed by the agent, and when it was read. Used if the proxy has heard of none.
    printed: Option<(Micros, Instant)>,
    /// Refusal that the last call got from the proxy itself; `None` if it was let through.
    refusal: Option<Refused>,
    /// Whether a call of the attempt was let through.
    is_through: bool,
}

/// Refusal of a call by the proxy itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refused {
    pub code: String,
    pub message: String,
    pub hint: Option<String>,
}

#[derive(Clone, Debug)]
struct Limit {
    /// Newest call that was refused, or the last call before one that was not sent.
    seq: Seq,
    until: Micros,
    heard_at: Instant,
    /// Ceiling on a plan; `None` if the limit is the provider's.
    why: Option<Box<Refusal>>,
}

impl Limited {
    /// Takes an event of the proxy. An answered call that was made after the refusal clears the limit: the agent can go
    /// on, for example with another model.
    pub fn note(&mut self, seen: &Seen) {
        match *seen {
            Seen::Limited { seq, until } => {
                self.stands_at(seq, until, None);
            }
            Seen::Rests { until, ref why } => self.stands_at(self.newest, until, Some(why.clone())),
            Seen::Settled { seq, answered: true, .. } if self.limit.as_ref().is_some_and(|l| seq > l.seq) => {
                self.limit = None;
            }
            // A program that does not take the run's certificate has asked for nothing.
            Seen::Refused { ref code, ref message, ref hint } if code != NOT_OPENED => {
                let (code, message, hint) = (code.clone(), message.clone(), hint.clone());
                self.refusal = Some(Refused { code, message, hint });
            }
            Seen::Opened { .. } | Seen::Replayed { .. } => (self.refusal, self.is_through) = (None, true),
            _ => {}
        }
        if matches!(seen, Seen::Settled { answered: true, .. }) {
            self.printed = None;
        }
        if let Seen::Opened { seq } = *seen {
            self.newest = self.newest.max(seq);
        }
    }

    fn stands_at(&mut self, seq: Seq, until: Micros, why: Option<Box<Refusal>>) {
        let before = self.limit.take();
        let heard_at = before.as_ref().map_or_else(Instant::now, |l| l.heard_at);
        self.limit = Some(match before {
            Some(before) if before.until > until => Limit { seq, ..before },
            _ => Limit { seq, until, heard_at, why },
        });
    }

    /// Records a usage limit that the agent printed. `until`: time at which the limit ends; `None`: the agent went on
    /// printing, so that it was not stopped by a limit.
    pub fn read(&mut self, until: Option<Micros>) {
        let heard_at = self.printed.map_or_else(Instant::now, |(_, heard_at)| heard_at);
        self.printed = until.map(|until| (until, heard_at));
    }

    /// Takes the exit of an agent that ended by itself. At a limit an agent leaves with a code of its own; a signal, a
    /// time-out or a program that cannot be run has another cause, whatever was printed before.
    pub fn ended(&mut self, exit: Exit) {
        if !matches!(exit.code, Some(0..FIRST_FOREIGN_CODE)) {
            self.printed = None;
        }
    }

    /// Returns whether the agent's last call was refused because other calls in flight held the budget.
    pub fn no_room(&self) -> bool {
        self.refusal.as_ref().is_some_and(|refused| refused.code == "admission_timeout")
    }

    /// Returns the refusal that the agent's last call got and would get again in each later life; `None` if it got none.
    pub fn for_good(&self) -> Option<&Refused> {
        self.refusal.as_ref().filter(|refused| match refused.code.as_str() {
            TOO_LARGE | "no_provider_key" => true,
            // An agent that has made calls does without the hosts that it is refused, such as those of its telemetry; and
            // what asks without the run token then is perhaps another program.
            "net_refused" | "run_token_wanted" => !self.is_through,
            _ => false,
        })
    }

    /// Returns code and message of the last refusal, if no call was let through after it. An agent that made calls and
    /// ended well, or was refused a host alone, did without.
    pub fn refused(&self, exit: Exit) -> Option<String> {
        let did_without =
            |refused: &&Refused| self.is_through && (exit == Exit::code(0) || refused.code == "net_refused");
        let refused = self.refusal.as_ref().filter(|refused| !did_without(refused))?;
        Some(format!("{}: {}", refused.code, refused.message))
    }

    /// Returns the time at which the usage limit ends; `None` if there is none.
    pub fn until(&self) -> Option<Micros> {
        self.limit.as_ref().map(|l| l.until).or(self.printed.map(|(until, _)| until))
    }

    /// Returns the ceiling on a plan at which the attempt waits; `None` at a limit of the provider, or at
    /// none.
    pub fn why(&self) -> Option<Box<Refusal>> {
        self.limit.as_ref().and_then(|l| l.why.clone())
    }

    /// Returns the moment at which an agent still waiting at the limit is stopped, `grace` after the limit was met;
    /// `None` without a limit.
    pub fn patience(&self, grace: Duration) -> Option<Instant> {
        let heard_at = self.limit.as_ref().map(|l| l.heard_at).or(self.printed.map(|(_, heard_at)| heard_at));
        heard_at.map(|heard_at| heard_at + grace)
    }
}

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
        let waited_ms = now.ms_since(since.began);
        let wait_ms = i64::try_from(self.wait.as_millis()).unwrap_or(i64::MAX);
        (waited_ms >= wait_ms).then(|| {
            let (waited, since) = (time::span(waited_ms), time::since(since));
            format!("{outage} {since}: given up after {waited} (--outage-wait)")
        })
    }
}

/// Outage of a provider that the calls of a proxy meet now.
#[derive(Debug)]
pub struct CurrentOutage {
    /// Way in which the work goes on once a person has mended the cause, in words.
    resume: String,
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
    /// Returns that no outage is known. `resume`: how the work goes on once a person has mended a cause, as in
    /// "start the program again".
    pub fn new(resume: impl Into<String>) -> CurrentOutage {
        CurrentOutage { resume: resume.into(), known: None, failed: None }
    }

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
                is_new.then(|| waiting(outage, *since, &self.resume))
            }
            Seen::Settled { upstream, heard: true, sent_ago, .. } => {
                // A call that was in flight when the outage began may end well while all else fails.
                let ends = |known: &mut Known| {
                    known.outage.upstream == *upstream && known.heard_at.elapsed() >= *sent_ago
                };
                let known = self.known.take_if(ends)?;
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

fn waiting(outage: &Outage, since: OutSince, resume: &str) -> String {
    let then = match outage.remedy() {
        Some(_) => outage.hint(true, resume),
        None => "its calls are held until it answers again".to_owned(),
    };
    format!("waiting: {outage} {}; {then}", time::since(since))
}

#[cfg(test)]
mod tests {
    use outlast_core::run::Status;

    use super::*;

    #[test]
    fn there_is_no_room_until_another_call_goes_out_or_is_refused_for_good() {
        let refused = |code: &str| Seen::Refused { code: code.into(), message: String::new(), hint: None };
        let check = |seen: &[Seen], wanted: bool| {
            let mut heard = Limited::default();
            seen.iter().for_each(|seen| heard.note(seen));
            assert_eq!(heard.no_room(), wanted, "{seen:?}");
        };
        check(&[], false);
        check(&[refused("admission_timeout")], true);
        check(&[refused("admission_timeout"), Seen::Opened { seq: Seq(1) }], false);
        check(&[Seen::Opened { seq: Seq(1) }, refused("admission_timeout")], true);
        check(&[refused("admission_timeout"), refused("dollar_budget_exceeded")], false);
    }

    // Bug: an agent that died of a refused call after others were let through "exited with 1", and nobody said why.
    // Cause: a refusal was told where no call at all was let through.
    #[test]
    fn the_refusal_that_an_agent_died_of_is_told_whatever_it_did_before() {
        let refused = |code: &str| Seen::Refused { code: code.into(), message: "no".into(), hint: None };
        let opened = || Seen::Opened { seq: Seq(1) };
        let check = |seen: &[Seen], code: i32, wanted: Option<&str>| {
            let mut heard = Limited::default();
            seen.iter().for_each(|seen| heard.note(seen));
            assert_eq!(heard.refused(Exit::code(code)).as_deref(), wanted, "{seen:?}");
        };
        check(&[refused("not_metered")], 0, Some("not_metered: no"));
        check(&[opened(), refused("not_metered")], 1, Some("not_metered: no"));
        check(&[opened(), refused("not_metered")], 0, None);
        check(&[opened(), refused("net_refused")], 1, None);
        check(&[refused("not_metered"), opened()], 1, None);
    }

    #[test]
    fn a_limit_stands_until_a_later_call_is_answered() {
        let limited = |seq, until| Seen::Limited { seq: Seq(seq), until: Micros(until) };
        let settled = |seq, answered| Seen::Settled {
            seq: Seq(seq),
            upstream: String::new(),
            status: Status::Running,
            answered,
            heard: answered,
            failed: None,
            sent_ago: Duration::ZERO,
        };
        let check = |seen: &[Seen], until: Option<i64>| {
            let mut heard = Limited::default();
            seen.iter().for_each(|seen| heard.note(seen));
            assert_eq!(heard.until().map(|at| at.0), until, "{seen:?}");
            assert_eq!(heard.patience(GRACE).is_some(), until.is_some());
        };
        check(&[settled(1, true)], None);
        check(&[settled(2, false), limited(2, 90)], Some(90));
        check(&[limited(2, 90), settled(3, false)], Some(90));
        check(&[limited(2, 90), settled(3, true)], None);
        // The call was made before the refusal and answered after it.
        check(&[limited(2, 90), settled(1, true)], Some(90));
        check(&[limited(2, 90), limited(4, 70), settled(3, true)], Some(90));
        check(&[limited(2, 90), settled(3, true), limited(4, 70)], Some(70));
    }

    #[test]
    fn a_ceiling_on_a_plan_stands_until_a_later_call_is_answered_and_tells_why() {
        let rests = |until| Seen::Rests {
            until: Micros(until),
            why: Box::new(Refusal::plain("plan_ceiling", Micros(0))),
        };
        let settled = |seq| Seen::Settled {
            seq: Seq(seq),
            upstream: String::new(),
            status: Status::Running,
            answered: true,
            heard: true,
            failed: None,
            sent_ago: Duration::ZERO,
        };
        let mut heard = Limited::default();
        heard.note(&Seen::Opened { seq: Seq(3) });
        heard.note(&rests(90));
        heard.note(&settled(3));
        let code = |heard: &Limited| heard.why().map(|why| why.code);
        assert_eq!((heard.until(), code(&heard).as_deref()), (Some(Micros(90)), Some("plan_ceiling")));
        // The provider's own limit comes earlier: the later one stands.
        heard.note(&Seen::Limited { seq: Seq(3), until: Micros(50) });
        assert_eq!((heard.until(), code(&heard).as_deref()), (Some(Micros(90)), Some("plan_ceiling")));
        heard.note(&Seen::Limited { seq: Seq(3), until: Micros(99) });
        assert_eq!((heard.until(), code(&heard)), (Some(Micros(99)), None));
        heard.note(&settled(4));
        assert_eq!((heard.until(), code(&heard)), (None, None));
    }

    #[test]
    fn what_the_agent_prints_of_a_limit_counts_after_what_its_provider_says() {
        let limited = Seen::Limited { seq: Seq(2), until: Micros(90) };
        let settled = Seen::Settled {
            seq: Seq(3),
            upstream: String::new(),
            status: Status::Running,
            answered: true,
            heard: true,
            failed: None,
            sent_ago: Duration::ZERO,
        };
        let mut heard = Limited::default();
        heard.read(Some(Micros(50)));
        heard.read(Some(Micros(60)));
        assert_eq!((heard.until(), heard.patience(GRACE).is_some()), (Some(Micros(60)), true));
        heard.note(&limited);
        assert_eq!(heard.until(), Some(Micros(90)));
        heard.note(&settled);
        assert_eq!((heard.until(), heard.patience(GRACE).is_some()), (None, false));
        heard.read(Some(Micros(50)));
        heard.read(None);
        assert_eq!(heard.until(), None);
    }

    #[test]
    fn a_printed_limit_counts_where_the_agent_left_with_a_code_of_its_own() {
        for (code, signal, counts) in [
            (Some(1), None, true),
            (Some(123), None, true),
            (Some(124), None, false),
            (Some(127), None, false),
            (Some(139), None, false),
            (None, Some(11), false),
        ] {
            let mut heard = Limited::default();
            heard.read(Some(Micros(50)));
            heard.ended(Exit { code, signal });
            assert_eq!(heard.until().is_some(), counts, "{code:?} {signal:?}");
        }
    }
}

#[cfg(test)]
mod tests_of_outage {
    use outlast_core::{
        run::Status,
        words::{Cause, Seq},
    };

    use super::{time::moment, *};

    #[test]
    fn each_cause_is_told_once_and_the_end_by_an_answer_of_that_provider() {
        const BEGAN: Micros = Micros(1_795_161_600_000_000);
        let out_after = |cause, ms| Seen::Outage {
            outage: Outage { upstream: "openai".into(), cause },
            since: OutSince { began: BEGAN, cause: BEGAN.plus_ms(ms) },
        };
        let out = |cause| out_after(cause, 0);
        let settled = |upstream: &str, answered| Seen::Settled {
            seq: Seq(1),
            upstream: upstream.into(),
            status: Status::Waiting,
            answered,
            heard: answered,
            failed: (!answered).then_some(Cause::Failing(500)),
            sent_ago: Duration::ZERO,
        };
        let in_flight_before = Seen::Settled {
            seq: Seq(1),
            upstream: "openai".into(),
            status: Status::Waiting,
            answered: true,
            heard: true,
            failed: None,
            sent_ago: Duration::from_secs(3600),
        };
        let refused_itself = Seen::Settled {
            seq: Seq(1),
            upstream: "openai".into(),
            status: Status::Waiting,
            answered: false,
            heard: true,
            failed: None,
            sent_ago: Duration::ZERO,
        };
        let mut told = CurrentOutage::new("`outlast resume` the run");
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
        // Another cause is told with its own time, and the outage's begin beside it.
        let later = format!(
            "quota has ended (429) since {}, out since {}",
            moment(BEGAN.plus_ms(90_000)),
            moment(BEGAN)
        );
        says(out_after(Cause::QuotaEnded(429), 90_000), Some(later.as_str()));
        says(settled("anthropic", true), None);
        says(in_flight_before, None);
        says(settled("openai", true), Some("openai answers again after"));
        says(settled("openai", true), None);
        says(out(Cause::Failing(500)), Some("openai fails with 500"));
        says(refused_itself, Some("openai answers again after"));
        assert_eq!(told.failed(), None);
        told.note(&settled("openai", false));
        assert_eq!(told.failed().map(|o| o.cause), Some(Cause::Failing(500)), "one failure is not told");
    }
}
