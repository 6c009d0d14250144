//! Outages of the fake provider, one after another, so that a night can be rehearsed.
//!
//! `--outage 'ok 3 calls, refused 1h, 529 2h, key 30m, quota 10m'`: from the provider's start each phase lasts for a
//! time or for a number of requests for a message; after the last one everything is answered.
//!
//! | phase | |
//! |---|---|
//! | `ok` | answered; its `calls` are paid ones |
//! | `refused` | nobody listens: connections are refused. For a time only |
//! | `reset` | each connection ends without an answer |
//! | `529`, any status from 400 | refused with it, unpaid |
//! | `key` | 401: the key is not valid |
//! | `quota` | the account has no credit left, as each provider says it |
//! | `limit` | the plan's usage limit is reached; it is over in five hours |

use std::{str::FromStr, time::Duration};

use http::StatusCode;
use outlast_core::words::duration;
use parking_lot::Mutex;
use tokio::{
    sync::{Notify, watch},
    time::Instant,
};

use crate::{
    options::{BadOption, error_status},
    refusal::Refusal,
};

/// Time until a usage limit is over.
const LIMIT: Duration = Duration::from_secs(5 * 3600);

/// Phases of a provider's health, in order. After the last phase the provider is healthy.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Outages(Vec<Phase>);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Phase {
    health: Health,
    lasts: Lasts,
}

/// Health of the provider in one phase.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Health {
    Ok,
    Refused,
    Reset,
    Status(StatusCode),
    Key,
    Quota,
    Limit,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Lasts {
    For(Duration),
    Calls(u64),
}

impl FromStr for Outages {
    type Err = BadOption;
    fn from_str(text: &str) -> Result<Outages, BadOption> {
        text.split(',').map(|phase| phase.trim().parse()).collect::<Result<_, _>>().map(Outages)
    }
}

impl FromStr for Phase {
    type Err = BadOption;
    fn from_str(text: &str) -> Result<Phase, BadOption> {
        let read = || {
            let (health, lasts) = text.split_once(char::is_whitespace)?;
            let health = match health {
                "ok" => Health::Ok,
                "refused" => Health::Refused,
                "reset" => Health::Reset,
                "key" => Health::Key,
                "quota" => Health::Quota,
                "limit" => Health::Limit,
                status => Health::Status(error_status(status)?),
            };
            let calls = lasts.trim().strip_suffix("calls").or_else(|| lasts.trim().strip_suffix("call"));
            let lasts = match calls {
                Some(_) if health == Health::Refused => return None,
                Some(number) => Lasts::Calls(number.trim().parse().ok()?),
                None => Lasts::For(Duration::from_millis(
                    u64::try_from(duration::parse_ms(lasts.trim()).ok()?).ok()?,
                )),
            };
            Some(Phase { health, lasts })
        };
        read().ok_or_else(|| {
            BadOption::new(
                "ok, refused, reset, key, quota, limit or a status, and how long, such as 529 2h",
                text,
            )
        })
    }
}

/// Course of a provider through its phases.
pub(super) struct Course {
    phases: Vec<Phase>,
    now: Mutex<Now>,
    moved: Notify,
    /// Whether the provider's listening socket is closed, so that nobody listens.
    absent: watch::Sender<bool>,
}

struct Now {
    phase: usize,
    began: Instant,
    calls: u64,
}

impl Course {
    /// Begins the course with its first phase.
    pub fn begin(outages: Outages) -> Course {
        let now = Mutex::new(Now { phase: 0, began: Instant::now(), calls: 0 });
        Course { phases: outages.0, now, moved: Notify::new(), absent: watch::Sender::new(false) }
    }

    /// Returns the health now, and the time at which the phase ends; `None` if the phase ends after a number of calls,
    /// or is the last.
    pub fn health(&self) -> (Health, Option<Instant>) {
        let mut now = self.now.lock();
        loop {
            let Some(phase) = self.phases.get(now.phase) else { return (Health::Ok, None) };
            let next = match phase.lasts {
                Lasts::For(time) if now.began.elapsed() >= time => now.began + time,
                Lasts::Calls(calls) if now.calls >= calls => Instant::now(),
                Lasts::For(time) => return (phase.health, Some(now.began + time)),
                Lasts::Calls(_) => return (phase.health, None),
            };
            *now = Now { phase: now.phase + 1, began: next, calls: 0 };
        }
    }

    /// Waits until connections are refused (`wanted`), or are not refused (`!wanted`).
    pub async fn refuses(&self, wanted: bool) {
        loop {
            let moved = self.moved.notified();
            let (health, until) = self.health();
            if (health == Health::Refused) == wanted {
                return;
            }
            let changes = async {
                match until {
                    Some(until) => tokio::time::sleep_until(until).await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                () = moved => {}
                () = changes => {}
            }
        }
    }

    /// Records whether the provider's listening socket is closed (`absent`).
    pub fn is_absent(&self, absent: bool) {
        self.absent.send_replace(absent);
    }

    /// If connections are refused from now on, waits until the listening socket is closed: a client that has got the
    /// last answer then finds nobody there.
    pub async fn settles(&self) {
        let mut absent = self.absent.subscribe();
        tokio::select! {
            _ = absent.wait_for(|absent| *absent) => {}
            () = self.refuses(false) => {}
        }
    }

    /// Counts a request for a message if the phase refuses it. Errors: the refusal.
    pub fn asked(&self) -> Result<(), Refusal> {
        let refusal = match self.health().0 {
            Health::Ok | Health::Refused | Health::Reset => return Ok(()),
            Health::Status(status) => Refusal::Outage(status),
            Health::Key => Refusal::BadKey,
            Health::Quota => Refusal::NoCredit,
            Health::Limit => Refusal::UsageLimit(LIMIT),
        };
        self.count();
        Err(refusal)
    }

    /// Counts a paid request towards the length of a healthy phase.
    pub fn paid(&self) {
        if self.health().0 == Health::Ok {
            self.count();
        }
    }

    /// Returns whether the connection is to be reset without an answer, and counts the request if so.
    pub fn resets(&self) -> bool {
        let resets = self.health().0 == Health::Reset;
        if resets {
            self.count();
        }
        resets
    }

    /// Counts a request. Only the last request of a phase wakes the listener, which waits for the phase to end.
    fn count(&self) {
        let mut now = self.now.lock();
        now.calls += 1;
        let calls = now.calls;
        if self.phases.get(now.phase).is_some_and(|phase| phase.lasts == Lasts::Calls(calls)) {
            drop(now);
            self.moved.notify_waiters();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn phases_are_read_from_their_text() {
        let phase = |health, lasts| Phase { health, lasts };
        let hours = |h: u64| Lasts::For(Duration::from_secs(h * 3600));
        let overloaded = StatusCode::from_u16(529).unwrap();
        assert_eq!(
            "refused 1h, 529 2h,ok 1 call, reset 3 calls, key 0ms".parse::<Outages>().unwrap().0,
            [
                phase(Health::Refused, hours(1)),
                phase(Health::Status(overloaded), hours(2)),
                phase(Health::Ok, Lasts::Calls(1)),
                phase(Health::Reset, Lasts::Calls(3)),
                phase(Health::Key, Lasts::For(Duration::ZERO)),
            ]
        );
        for text in
            ["", "refused", "refused 3 calls", "200 1h", "down 1h", "529 soon", "529 1h,", "ok x calls"]
        {
            assert!(text.parse::<Outages>().is_err(), "{text}");
        }
    }

    #[tokio::test]
    async fn each_phase_lasts_for_its_time_or_its_requests() {
        let course = Course::begin("529 2 calls, ok 1 call, quota 1s, refused 1h".parse().unwrap());
        let refuses = || course.asked().unwrap_err().status().as_u16();
        assert_eq!((refuses(), refuses()), (529, 529));
        assert!(course.asked().is_ok());
        course.paid();
        assert!(matches!(course.asked(), Err(Refusal::NoCredit)));
        course.refuses(true).await;
        assert_eq!(course.health().0, Health::Refused);
        let over = Course::begin("refused 20ms".parse().unwrap());
        over.refuses(false).await;
        assert_eq!(over.health(), (Health::Ok, None));
    }

    #[tokio::test]
    async fn the_last_request_of_a_phase_wakes_the_listener() {
        let course = Course::begin("ok 2 calls, refused 1h".parse().unwrap());
        let requests = async {
            course.paid();
            course.paid();
        };
        tokio::join!(course.refuses(true), requests);
        assert_eq!(course.health().0, Health::Refused);
    }
}
