//! Causes of an attempt's end: a person, the machine, `--kill-at`, and what signals to the supervisor mean.

use outlast_core::{run::status::Status, words::id::Seq};
use outlast_process::{ladder::Ask, reap, signals::suspend_self, spawn::Child};
use outlast_server::door::Seen;
use rustix::process::Signal;

use crate::cli::values::KillAt;

/// Cause of an attempt's end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EndedBy {
    Itself,
    /// A person asked for the end: by Ctrl-C or `outlast stop`.
    Person,
    /// SIGTERM or SIGHUP: the machine shuts down, or the terminal was closed.
    Machine,
    /// The run has this status now, because of a limit or a cancel.
    Halt(Status),
    /// The agent waited at the provider's usage limit, and was stopped.
    Limit,
    /// The provider had an outage for too long, and the agent was stopped.
    Outage,
    /// This process was declared dead, and another one may drive the run now.
    LostLease,
}

/// Signals that ask the supervisor to end the run.
pub const ENDING: [Signal; 4] = [Signal::INT, Signal::QUIT, Signal::TERM, Signal::HUP];

/// Returns who asks by these signals that the run stops, a person or the machine; `None` if no signal asks for it.
pub fn asked(signals: &[Signal]) -> Option<EndedBy> {
    signals.iter().find_map(|signal| match *signal {
        Signal::INT | Signal::QUIT => Some(EndedBy::Person),
        Signal::TERM | Signal::HUP => Some(EndedBy::Machine),
        _ => None,
    })
}

/// Handles signals that the supervisor has received. Returns how the attempt is to be ended (`None`: it
/// continues), and who asked for that.
pub fn heard(signals: &[Signal], child: &Child) -> std::io::Result<(Option<Ask>, EndedBy)> {
    for signal in signals {
        match *signal {
            Signal::INT | Signal::QUIT => {
                // On a terminal the agent's group has received the Ctrl-C already.
                let to_child = child.leads_own_group().then_some(*signal);
                return Ok((Some(Ask::Stop(to_child)), EndedBy::Person));
            }
            Signal::TERM | Signal::HUP => {
                return Ok((Some(Ask::Stop(Some(Signal::TERM))), EndedBy::Machine));
            }
            Signal::TSTP => {
                if child.leads_own_group() {
                    child.signal_group(Signal::TSTP)?;
                }
                suspend_self()?;
                if child.leads_own_group() {
                    child.signal_group(Signal::CONT)?;
                }
            }
            Signal::CHILD => {
                // A child that is not reaped would hide the ones that are asked about.
                child.try_wait()?;
                reap::reap_adopted()?;
            }
            _ => {}
        }
    }
    Ok((None, EndedBy::Itself))
}

/// Point at which the agent is killed, once.
#[derive(Clone, Copy, Debug)]
pub struct KillPoint {
    pub at: KillAt,
    /// Number of new calls that the agent has made so far.
    pub calls: u64,
    armed: Option<Seq>,
}

impl KillPoint {
    pub fn new(at: KillAt) -> KillPoint {
        KillPoint { at, calls: 0, armed: None }
    }

    /// Returns whether the agent is to be killed at the event `seen` of the proxy.
    pub fn is_now(&mut self, seen: &Seen) -> bool {
        match seen {
            Seen::Opened { seq } => {
                self.calls += 1;
                if self.calls == self.at.call {
                    self.armed = Some(*seq);
                    return !self.at.mid;
                }
                false
            }
            Seen::Streaming { seq } => self.at.mid && self.armed == Some(*seq),
            _ => false,
        }
    }
}
