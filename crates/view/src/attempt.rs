//! Attempts of runs: when each lived, and how it ended.

use outlast_core::{
    reads::{lives::Loss, waits},
    run::attempt,
    words::{AttemptNo, Outage, Seq, Slot},
};

use crate::Time;

shape! {
    /// One life of a run's agent, and what it was lost with if nobody saw its end.
    pub Attempt(a: &attempt::Attempt, loss: Option<Loss>, up_ms: i64) {
        attempt: AttemptNo = a.no;
        slot: Slot = a.slot;
        label: Option<String> = a.label.clone();
        iteration: i64 = a.iteration;
        started_at: Time = Time(a.started_at);
        ended_at: Option<Time> = a.ended_at.map(Time);
        /// Time for which it has lived: while it goes on, until the last heartbeat of its process.
        wall_ms: i64 = up_ms;
        active_ms: i64 = a.active_ms;
        died: bool = a.died();
        /// End of the attempt, in words; `open` while it goes on.
        how: String = a.exit.as_ref().map_or_else(|| "open".to_owned(), |exit| end_words(exit, loss));
        exit: Option<Exit> = a.exit.as_ref().map(Exit::new);
        /// Recorded answers that it left untaken.
        untaken: i64 = a.untaken;
        /// Entry of its first new call while answers were untaken.
        diverged_at: Option<Seq> = a.diverged;
        diverged_untaken: Option<i64> = a.diverged.map(|_| a.diverged_untaken);
    }
}

shape! {
    /// Facts that were seen of an attempt's end.
    pub Exit(e: &attempt::Exit) {
        code: Option<i32> = e.code;
        signal: Option<i32> = e.signal;
        /// Whether the kernel killed it because memory ran out.
        oom: bool = e.oom;
        /// Whether it died together with its driver.
        lost: bool = e.lost;
        stopped: bool = e.stopped;
        at_limit: bool = e.at_limit;
        /// Whether it ended while its calls waited for a budget above its run's own.
        for_room: bool = e.for_room;
        outage: Option<ExitOutage> = e.outage.as_ref().map(ExitOutage::new);
        /// Requests that passed unread on opened hosts.
        unread: i64 = e.unread;
        /// Code and message with which the proxy itself refused the attempt's last call, if the agent did not do without.
        refused: Option<String> = e.refused.clone();
    }
}

shape! {
    /// Span of time in which a run waited.
    pub Wait(wait: &waits::Wait) {
        kind: &'static str = wait.for_what.name();
        /// Cause of the wait, in words.
        whom: &'static str = wait.for_what.words();
        /// Newest reason of the wait.
        why: String = wait.why.clone();
        /// Time since which that reason holds.
        why_since: Time = Time(wait.why_since);
        from: Time = Time(wait.from);
        /// Null while it still waits.
        to: Option<Time> = wait.to.map(Time);
    }
}

shape! {
    /// Outage of a provider during which an attempt ended.
    pub ExitOutage(outage: &Outage) {
        upstream: String = outage.upstream.clone();
        code: &'static str = outage.cause.code();
        message: String = outage.to_string();
    }
}

/// Describes an exit: `killed by SIGKILL`, `exited with 1`, `finished`, `stopped (killed by SIGTERM)`,
/// `at a usage limit (exited with 1)`, `exited with 1, refused: no_provider_key: …`.
pub fn exit_words(exit: &attempt::Exit) -> String {
    end_words(exit, None)
}

/// Describes an exit, as [`exit_words`] does, with what the attempt was lost with.
pub fn end_words(exit: &attempt::Exit, loss: Option<Loss>) -> String {
    let end = seen(exit, loss.unwrap_or(Loss::Supervisor));
    if exit.for_room {
        return format!("waiting for room above it ({end})");
    }
    match &exit.outage {
        Some(outage) if exit.lost => return format!("{end}, {outage}"),
        Some(outage) => return format!("{outage}; {end}"),
        None => {}
    }
    match (exit.at_limit, exit.stopped) {
        (true, _) => format!("at a usage limit ({end})"),
        (_, true) if exit.code.is_none() && exit.signal.is_none() => match &exit.why {
            Some(why) => format!("stopped: {why}"),
            None => "stopped".into(),
        },
        (_, true) => format!("stopped ({end})"),
        (_, false) => match &exit.refused {
            Some(why) => format!("{end}, refused: {why}"),
            None => end,
        },
    }
}

fn seen(exit: &attempt::Exit, loss: Loss) -> String {
    let signal = exit.signal.map(signal_name);
    match (exit.oom, exit.lost, signal, exit.code) {
        (true, _, _, _) => "killed for its memory (OOM)".into(),
        (_, _, Some(signal), _) => format!("killed by {signal}"),
        (_, _, None, Some(0)) => "finished".into(),
        (_, _, None, Some(code)) => format!("exited with {code}"),
        (_, true, None, None) => loss.name().into(),
        (_, false, None, None) if exit.relieved => "followed by the next attempt".into(),
        (_, false, None, None) => "ended".into(),
    }
}

/// Returns a signal's name by its number on Linux.
fn signal_name(number: i32) -> String {
    let name = match number {
        1 => "HUP",
        2 => "INT",
        3 => "QUIT",
        4 => "ILL",
        5 => "TRAP",
        6 => "ABRT",
        7 => "BUS",
        8 => "FPE",
        9 => "KILL",
        10 => "USR1",
        11 => "SEGV",
        12 => "USR2",
        13 => "PIPE",
        14 => "ALRM",
        15 => "TERM",
        24 => "XCPU",
        25 => "XFSZ",
        31 => "SYS",
        _ => return format!("signal {number}"),
    };
    format!("SIG{name}")
}

#[cfg(test)]
mod tests {
    use outlast_core::words::{Cause, Outage};

    use attempt::Exit;

    use super::{attempt, exit_words};

    #[test]
    fn ends_are_told_by_what_was_seen() {
        let exit = Exit::default();
        let outage = Outage { upstream: "openai".into(), cause: Cause::Failing(529) };
        for (exit, wanted) in [
            (Exit { code: Some(0), ..exit.clone() }, "finished"),
            (Exit { code: Some(3), ..exit.clone() }, "exited with 3"),
            (
                Exit { code: Some(1), refused: Some("no_key: none is known".into()), ..exit.clone() },
                "exited with 1, refused: no_key: none is known",
            ),
            (Exit { signal: Some(9), ..exit.clone() }, "killed by SIGKILL"),
            (Exit { signal: Some(40), ..exit.clone() }, "killed by signal 40"),
            (Exit { signal: Some(9), oom: true, ..exit.clone() }, "killed for its memory (OOM)"),
            (Exit { lost: true, ..exit.clone() }, "lost with its supervisor"),
            (Exit { relieved: true, ..exit.clone() }, "followed by the next attempt"),
            (Exit { signal: Some(15), stopped: true, ..exit.clone() }, "stopped (killed by SIGTERM)"),
            (Exit { stopped: true, ..exit.clone() }, "stopped"),
            (Exit { stopped: true, why: Some("no key".into()), ..exit.clone() }, "stopped: no key"),
            (Exit { code: Some(1), at_limit: true, ..exit.clone() }, "at a usage limit (exited with 1)"),
            (
                Exit { code: Some(1), outage: Some(outage), ..exit.clone() },
                "openai fails with 529; exited with 1",
            ),
            (exit, "ended"),
        ] {
            assert_eq!(exit_words(&exit), wanted);
        }
    }
}
