//! Who ends an attempt, and what signals to the supervisor ask of it.

use outlast_core::run::status::Status;
use rustix::process::Signal;

use outlast_process::{ladder::Ask, reap, signals::suspend_self, spawn::Child};

/// Who ended the attempt, if not the agent itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EndedBy {
    Itself,
    /// Ctrl-C, or `outlast stop`.
    Person,
    /// SIGTERM or SIGHUP: the machine goes down, the terminal went.
    Machine,
    /// A limit, or a cancel.
    Halt(Status),
    /// The provider's usage limit: it waited there by itself, and was not to.
    Limit,
    /// We had been declared dead: somebody else may drive the run now.
    LostLease,
}

/// Who asks by these signals that the run stops.
pub fn asked(signals: &[Signal]) -> Option<EndedBy> {
    signals.iter().find_map(|signal| match *signal {
        Signal::INT | Signal::QUIT => Some(EndedBy::Person),
        Signal::TERM | Signal::HUP => Some(EndedBy::Machine),
        _ => None,
    })
}

/// What signals to the supervisor ask of the attempt.
pub fn heard(signals: &[Signal], child: &Child) -> std::io::Result<(Option<Ask>, EndedBy)> {
    for signal in signals {
        match *signal {
            Signal::INT | Signal::QUIT => {
                // On a terminal its Ctrl-C has reached the agent already.
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
                // Unreaped it would stand before those that are asked about.
                child.try_wait()?;
                reap::reap_adopted()?;
            }
            _ => {}
        }
    }
    Ok((None, EndedBy::Itself))
}
