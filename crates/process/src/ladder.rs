//! The stop ladder: ask the main process, then all processes, then kill. A pure state machine; [`end_tree`]
//! drives it.
//!
//! [`end_tree`]: super::end_tree

use std::time::Duration;

use rustix::process::Signal;

/// Rung of the ladder from which an attempt is to be ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ask {
    /// First rung: ask the main process to stop by this signal, and give it the whole grace. `None`: send
    /// nothing and only wait, because the process was asked already (the terminal sends its Ctrl-C to the
    /// whole foreground group).
    Stop(Option<Signal>),
    /// Second rung: the main process is dead; end the processes that it left.
    EndRest,
    /// Last rung: kill all processes at once (a second Ctrl-C).
    Force,
}

/// Event that may move the ladder to a rung.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    Asked(Ask),
    /// The main process has ended; other processes of the tree may live.
    MainExited,
    /// No process of the tree is left.
    AllGone,
    /// Time has passed. New processes may have been forked.
    Tick,
}

/// Action that the ladder asks of its caller.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    SignalMain(Signal),
    /// Signal all found processes that have not had this signal yet. On the upper rungs this action repeats with each
    /// tick, for processes forked meanwhile.
    SignalAll(Signal),
    /// Stop trying, and report the processes that survive SIGKILL (they hang in the kernel).
    GiveUp,
}

/// Longest time that is spent on each rung.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Graces {
    /// Time between asking the main process to stop and asking all processes.
    pub main: Duration,
    /// Time between asking all processes to stop and killing them.
    pub all: Duration,
    /// Time between killing all processes and giving up.
    pub kill: Duration,
}

impl Default for Graces {
    /// Returns 30 s (time for an agent to finish a turn) for `main`, 5 s for `all` and 10 s for `kill`.
    fn default() -> Self {
        Graces { main: Duration::from_secs(30), all: Duration::from_secs(5), kill: Duration::from_secs(10) }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Rung {
    Idle,
    Main { until: Duration },
    All { until: Duration },
    Kill { until: Duration },
    Over,
}

/// State of ending one attempt: its rung on the ladder.
#[derive(Clone, Debug)]
pub struct Ladder {
    graces: Graces,
    rung: Rung,
}

impl Ladder {
    pub fn new(graces: Graces) -> Ladder {
        Ladder { graces, rung: Rung::Idle }
    }

    /// Takes an event and returns the caller's next action; `None`: nothing is to be done. `now`: monotonic time since
    /// any fixed moment.
    ///
    /// The ladder only climbs: a request for a rung already reached changes nothing and does not prolong its grace.
    pub fn on(&mut self, event: Event, now: Duration) -> Option<Action> {
        match (self.rung, event) {
            (Rung::Over, _) => None,
            (_, Event::AllGone) => {
                self.rung = Rung::Over;
                None
            }
            (Rung::Kill { .. }, Event::Asked(Ask::Force)) => None,
            (_, Event::Asked(Ask::Force)) => self.kill(now),
            (Rung::Idle, Event::Asked(Ask::Stop(signal))) => {
                self.rung = Rung::Main { until: now.saturating_add(self.graces.main) };
                signal.map(Action::SignalMain)
            }
            (Rung::Idle | Rung::Main { .. }, Event::Asked(Ask::EndRest)) => self.ask_all(now),
            (_, Event::Asked(_)) => None,
            // Processes that the main process left behind have nobody to finish for.
            (Rung::Main { .. }, Event::MainExited) => self.ask_all(now),
            (_, Event::MainExited) => None,
            (Rung::Idle, Event::Tick) => None,
            (Rung::Main { until }, Event::Tick) if now >= until => self.ask_all(now),
            (Rung::Main { .. }, Event::Tick) => None,
            (Rung::All { until }, Event::Tick) if now >= until => self.kill(now),
            (Rung::All { .. }, Event::Tick) => Some(Action::SignalAll(Signal::TERM)),
            (Rung::Kill { until }, Event::Tick) if now >= until => {
                self.rung = Rung::Over;
                Some(Action::GiveUp)
            }
            (Rung::Kill { .. }, Event::Tick) => Some(Action::SignalAll(Signal::KILL)),
        }
    }

    /// Returns the time, on the clock of `now`, at which the next rung is due; `None` if no rung follows.
    pub fn due(&self) -> Option<Duration> {
        match self.rung {
            Rung::Main { until } | Rung::All { until } | Rung::Kill { until } => Some(until),
            Rung::Idle | Rung::Over => None,
        }
    }

    /// Returns whether the whole tree is being ended; false as long as only its main process was asked.
    pub fn ends_all(&self) -> bool {
        matches!(self.rung, Rung::All { .. } | Rung::Kill { .. })
    }

    pub fn is_killing(&self) -> bool {
        matches!(self.rung, Rung::Kill { .. })
    }

    /// Returns whether all processes are gone, or the ladder gave up.
    pub fn is_over(&self) -> bool {
        self.rung == Rung::Over
    }

    fn ask_all(&mut self, now: Duration) -> Option<Action> {
        self.rung = Rung::All { until: now.saturating_add(self.graces.all) };
        Some(Action::SignalAll(Signal::TERM))
    }

    fn kill(&mut self, now: Duration) -> Option<Action> {
        self.rung = Rung::Kill { until: now.saturating_add(self.graces.kill) };
        Some(Action::SignalAll(Signal::KILL))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use {Action::*, Event::*};

    const TERM_ALL: Option<Action> = Some(SignalAll(Signal::TERM));
    const KILL_ALL: Option<Action> = Some(SignalAll(Signal::KILL));
    const STOP: Event = Asked(Ask::Stop(Some(Signal::INT)));
    const FORCE: Event = Asked(Ask::Force);

    /// Steps: at second, event, action wanted. Returns whether the ladder is over after them.
    #[track_caller]
    fn check(steps: &[(u64, Event, Option<Action>)]) -> bool {
        let mut ladder = Ladder::new(Graces::default());
        for (number, &(second, event, want)) in steps.iter().enumerate() {
            let got = ladder.on(event, Duration::from_secs(second));
            assert_eq!(got, want, "step {number}: {event:?} at {second} s");
        }
        ladder.is_over()
    }

    #[test]
    fn main_is_asked_then_all_then_all_are_killed_then_it_gives_up() {
        let over = check(&[
            (100, Tick, None),
            (100, STOP, Some(SignalMain(Signal::INT))),
            (129, Tick, None),
            (130, Tick, TERM_ALL),
            (132, Tick, TERM_ALL),
            (135, Tick, KILL_ALL),
            (144, Tick, KILL_ALL),
            (145, Tick, Some(GiveUp)),
            (146, Tick, None),
            (147, FORCE, None),
        ]);
        assert!(over);
    }

    #[test]
    fn exit_of_main_ends_its_grace_and_begins_that_of_the_rest() {
        let over = check(&[
            (0, STOP, Some(SignalMain(Signal::INT))),
            (7, MainExited, TERM_ALL),
            (11, Tick, TERM_ALL),
            (11, MainExited, None),
            (12, Tick, KILL_ALL),
            (12, AllGone, None),
        ]);
        assert!(over);
    }

    #[test]
    fn after_a_crash_the_rest_is_asked_at_once() {
        assert!(check(&[(0, Asked(Ask::EndRest), TERM_ALL), (1, AllGone, None), (9, Tick, None)]));
    }

    #[test]
    fn terminal_that_asked_already_is_only_waited_for() {
        assert!(!check(&[(0, Asked(Ask::Stop(None)), None), (29, Tick, None), (30, Tick, TERM_ALL)]));
    }

    #[test]
    fn force_kills_from_every_rung_and_once() {
        assert!(!check(&[(0, FORCE, KILL_ALL), (1, FORCE, None), (1, Tick, KILL_ALL)]));
        assert!(!check(&[(0, STOP, Some(SignalMain(Signal::INT))), (1, FORCE, KILL_ALL)]));
        assert!(check(&[
            (0, Asked(Ask::EndRest), TERM_ALL),
            (1, FORCE, KILL_ALL),
            (10, FORCE, None),
            (11, Tick, Some(GiveUp))
        ]));
    }

    #[test]
    fn asking_again_prolongs_nothing() {
        check(&[
            (0, STOP, Some(SignalMain(Signal::INT))),
            (20, STOP, None),
            (30, Tick, TERM_ALL),
            (31, STOP, None),
            (32, Asked(Ask::EndRest), None),
            (35, Tick, KILL_ALL),
            (36, Asked(Ask::EndRest), None),
            (45, Tick, Some(GiveUp)),
        ]);
    }

    #[test]
    fn due_names_the_next_rung() {
        let mut ladder = Ladder::new(Graces::default());
        assert_eq!(ladder.due(), None);
        ladder.on(STOP, Duration::from_secs(10));
        assert_eq!((ladder.due(), ladder.ends_all()), (Some(Duration::from_secs(40)), false));
        ladder.on(MainExited, Duration::from_secs(11));
        assert_eq!((ladder.due(), ladder.ends_all()), (Some(Duration::from_secs(16)), true));
        ladder.on(FORCE, Duration::from_secs(12));
        assert_eq!((ladder.due(), ladder.is_killing()), (Some(Duration::from_secs(22)), true));
        ladder.on(AllGone, Duration::from_secs(13));
        assert_eq!((ladder.due(), ladder.ends_all()), (None, false));
    }
}
