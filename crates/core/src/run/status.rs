//! Status of a run, and the one exhaustive table of the events that change it.

use serde::{Deserialize, Serialize};

use crate::named;

named! {
    /// Status of a run.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
    #[serde(rename_all = "snake_case")]
    pub enum Status {
        Running "running",
        /// Stopped by a person or by a death. Also a run that was created and not begun.
        Interrupted "interrupted",
        /// Waits for a person, a parent's budget, a window or the provider.
        Waiting "waiting",
        /// Sleeps until a time.
        Sleeping "sleeping",
        /// Halted at a limit; the halt reason says which.
        Halted "halted",
        Completed "completed",
        Failed "failed",
        Cancelled "cancelled",
    }
}

impl Status {
    /// Returns whether the run has ended: nothing more is expected to happen.
    pub fn is_ended(self) -> bool {
        matches!(self, Status::Completed | Status::Failed | Status::Cancelled)
    }
}

/// Event that may change a run's status.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    /// An attempt is opened.
    Begin,
    /// The last open attempt is gone, by a stop or a death.
    Interrupt,
    /// A limit refused something.
    Halt,
    /// The limit that halted the run was raised. `open`: whether an attempt is open.
    Raise {
        open: bool,
    },
    /// The run begins to wait for a parent's budget or for a person.
    Wait,
    /// The provider said when calls will be answered again.
    Sleep,
    /// The event that the run waited for came.
    Wake,
    Complete,
    Fail,
    Cancel,
    /// A batch job that is completed gets more items.
    Reopen,
    /// The run leaves the store in a bundle.
    Move,
}

impl Event {
    pub const ALL: [Event; 13] = [
        Event::Begin,
        Event::Interrupt,
        Event::Halt,
        Event::Raise { open: false },
        Event::Raise { open: true },
        Event::Wait,
        Event::Sleep,
        Event::Wake,
        Event::Complete,
        Event::Fail,
        Event::Cancel,
        Event::Reopen,
        Event::Move,
    ];
}

/// Returns the status after `event`, or `None` if the event cannot happen in `status`.
pub fn next(status: Status, event: Event) -> Option<Status> {
    use Event as E;
    use Status as S;
    Some(match (status, event) {
        // An ended run stays as it is; a failed one may be taken up again by name.
        (S::Failed, E::Begin) => S::Running,
        (S::Completed, E::Complete) => S::Completed,
        (S::Cancelled, E::Cancel) => S::Cancelled,
        (S::Failed, E::Fail) => S::Failed,
        (S::Completed | S::Failed | S::Cancelled, E::Raise { .. }) => status,
        (S::Completed, E::Reopen) => S::Interrupted,
        (_, E::Reopen) => return None,

        // A failed run could be taken up again, and a running one has to be stopped first.
        (S::Failed | S::Interrupted | S::Waiting | S::Sleeping | S::Halted, E::Move) => S::Halted,
        (S::Running | S::Completed | S::Cancelled, E::Move) => return None,

        (S::Completed | S::Failed | S::Cancelled, _) => return None,

        // A halt outlives everything but a raise. That includes a cancel: clients send one when the very error
        // of the halt makes them exit.
        (S::Halted, E::Raise { open: true }) => S::Running,
        (S::Halted, E::Raise { open: false }) => S::Interrupted,
        (S::Halted, E::Complete) => S::Completed,
        (S::Halted, E::Begin | E::Wake | E::Wait | E::Sleep) => return None,
        (S::Halted, E::Interrupt | E::Halt | E::Fail | E::Cancel) => S::Halted,

        (_, E::Begin) => S::Running,
        (_, E::Interrupt) => S::Interrupted,
        (_, E::Halt) => S::Halted,
        (_, E::Raise { .. }) => status,
        (S::Running | S::Interrupted | S::Waiting | S::Sleeping, E::Wait) => S::Waiting,
        (S::Running | S::Interrupted | S::Waiting | S::Sleeping, E::Sleep) => S::Sleeping,
        (S::Waiting | S::Sleeping | S::Running, E::Wake) => S::Running,
        (S::Interrupted, E::Wake) => return None,
        (_, E::Complete) => S::Completed,
        (_, E::Fail) => S::Failed,
        (_, E::Cancel) => S::Cancelled,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_ended_run_never_halts_or_interrupts() {
        for s in [Status::Completed, Status::Failed, Status::Cancelled] {
            for e in [Event::Halt, Event::Interrupt, Event::Wait, Event::Sleep, Event::Wake] {
                assert_eq!(next(s, e), None, "{s:?} {e:?}");
            }
        }
    }

    #[test]
    fn only_a_raise_lets_a_halted_run_go_on() {
        for e in Event::ALL {
            let goes_on = matches!(next(Status::Halted, e), Some(Status::Running | Status::Interrupted));
            assert_eq!(goes_on, matches!(e, Event::Raise { .. }), "{e:?}");
        }
    }

    /// Returns the status diagram in Mermaid syntax, for `docs/reference/statuses.md`.
    fn diagram() -> String {
        let mut out = String::from("stateDiagram-v2\n    [*] --> interrupted: created\n");
        for from in Status::ALL {
            for event in Event::ALL {
                if let Some(to) = next(from, event)
                    && to != from
                {
                    let label = match event {
                        Event::Raise { open: true } => "raise (attempt open)".to_owned(),
                        Event::Raise { open: false } => "raise".to_owned(),
                        e => format!("{e:?}").to_lowercase(),
                    };
                    out.push_str(&format!("    {} --> {}: {label}\n", from.name(), to.name()));
                }
            }
        }
        out
    }

    #[test]
    fn the_diagram_in_docs_is_the_table() {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/reference/statuses.md");
        let page = std::fs::read_to_string(path).unwrap();
        assert!(
            page.contains(&diagram()),
            "docs/reference/statuses.md is not the table; it should contain:\n{}",
            diagram()
        );
    }
}
