//! The replay rule: which recorded answer, if any, serves a request. One rule for restarts, client
//! retries, disconnects and joins.

use crate::engine::{Admit, prelude::*};

/// Decision of the replay rule: what serves the request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Choice {
    Replay(Seq),
    Join(Seq, InstanceNo),
    /// A new call. `stands_for` is the entry that was answered with an error and that this marked retry repeats.
    New {
        stands_for: Option<Seq>,
    },
}

/// Applies the rule to the entries of the request's key.
pub fn choose(l: &Loaded, asked: &Admit) -> Choice {
    let matching: Vec<&Entry> = l
        .all::<Entry>()
        .filter(|e| e.run == asked.actor.run && e.kind == Kind::Call && e.match_key == Some(asked.match_key))
        .collect();
    let lowest_of = |is_meant: &dyn Fn(&Entry) -> bool| {
        let free = || {
            let candidates = matching.iter().filter(|e| is_candidate(l, e, asked.actor.attempt));
            candidates.filter(|e| !is_taken(e, asked) && is_meant(e))
        };
        free().find(|e| !is_passed_over(&matching, e)).or_else(|| free().next()).and_then(|e| serve(e))
    };
    let lowest = || lowest_of(&|e| !taking::is_taken_elsewhere(l, e, &asked.actor));
    if !is_marked_retry(&matching, asked) {
        return lowest().unwrap_or(Choice::New { stands_for: None });
    }
    let stands_for = matching.iter().find(|e| answered_badly(e, asked)).map(|e| e.seq);
    if stands_for.is_some() || asked.answered_with_error {
        return lowest().unwrap_or(Choice::New { stands_for });
    }
    lowest()
        // Another server may not know yet that the client of an earlier try has left, or may have died with it.
        .or_else(|| lowest_of(&|_| true))
        .or_else(|| {
            // The answer was flushed whole, but the client did not get it: a retry costs nothing.
            matching
                .iter()
                .rev()
                .find(|e| is_candidate(l, e, asked.actor.attempt) && delivered_earlier(e, asked))
                .and_then(|e| serve(e))
        })
        .unwrap_or(Choice::New { stands_for: None })
}

fn serve(e: &Entry) -> Option<Choice> {
    match (e.state, e.instance) {
        (State::Open, Some(instance)) => Some(Choice::Join(e.seq, instance)),
        (State::Done, _) => Some(Choice::Replay(e.seq)),
        _ => None,
    }
}

/// Returns whether the entry can serve: done with its terminal event seen, or in flight; opened by this attempt or by
/// an ended one, never by a live sibling. An open entry's instance is live: entries of dead instances were swept.
fn is_candidate(l: &Loaded, e: &Entry, attempt: AttemptNo) -> bool {
    let answers = match e.state {
        State::Done => e.replayable,
        State::Open => true,
        State::Failed | State::Void | State::Unknown => false,
    };
    answers && (e.attempt == attempt || !l.is_open(e.run, e.attempt))
}

fn is_taken(e: &Entry, asked: &Admit) -> bool {
    e.delivered_to == Some(asked.actor.attempt) || asked.taken.contains(&e.seq)
}

/// Tells whether another try of the entry's request was delivered and the entry was not: a late answer, which its agent
/// never had. It serves only when nothing else does.
fn is_passed_over(matching: &[&Entry], e: &Entry) -> bool {
    let request = last_try(matching, e);
    e.delivered_to.is_none()
        && matching.iter().any(|other| {
            other.state == State::Done && other.delivered_to.is_some() && last_try(matching, other) == request
        })
}

/// Returns the last try of the request that the entry is a try of: a lost call and its retry are tries of one request.
fn last_try(matching: &[&Entry], e: &Entry) -> Seq {
    let later = |seq: Seq| matching.iter().find(|e| e.seq == seq)?.retried_by.filter(|by| *by > seq);
    std::iter::successors(Some(e.seq), |seq| later(*seq)).last().unwrap_or(e.seq)
}

fn same_key(e: &Entry, asked: &Admit) -> bool {
    asked.idempotency_key.is_some()
        && e.call.as_ref().and_then(|c| c.idempotency_key.as_ref()) == asked.idempotency_key.as_ref()
}

fn is_marked_retry(matching: &[&Entry], asked: &Admit) -> bool {
    asked.retry_count > 0 || matching.iter().any(|e| same_key(e, asked))
}

fn answered_badly(e: &Entry, asked: &Admit) -> bool {
    e.attempt == asked.actor.attempt
        && e.retried_by.is_none()
        && matches!(e.state, State::Failed | State::Void | State::Unknown)
        && (asked.idempotency_key.is_none() || same_key(e, asked) || asked.retry_count > 0)
}

fn delivered_earlier(e: &Entry, asked: &Admit) -> bool {
    e.delivered_to == Some(asked.actor.attempt)
        && !asked.taken.contains(&e.seq)
        && (e.delivered_count < asked.retry_count || same_key(e, asked))
}
