//! Spans of time in which a run waited, as its events tell them.

use super::happened;
use crate::{
    events::{Event, Kind, Mark},
    named,
    store::{self, Store},
    words::{Micros, RunNo},
};

named! {
    /// Cause of a run's waiting.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub enum For {
        /// A provider that answers no call.
        Provider "provider",
        /// The end of a provider's usage limit, or of a plan's window.
        Limit "limit",
        /// Room in a budget above its own.
        Budget "budget",
        /// A person's decision.
        Person "person",
    }
}

impl For {
    /// Returns what is waited for, as words that follow `waits for`.
    pub fn words(self) -> &'static str {
        match self {
            For::Provider => "its provider",
            For::Limit => "a usage limit",
            For::Budget => "room in a budget",
            For::Person => "a person",
        }
    }
}

/// Span of time in which a run waited.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Wait {
    pub for_what: For,
    /// Newest reason in words; empty if none is recorded.
    pub why: String,
    /// Time since which that reason holds.
    pub why_since: Micros,
    /// Provider whose outage it waited for.
    pub upstream: Option<String>,
    pub from: Micros,
    /// End of the span; `None` while the run still waits.
    pub to: Option<Micros>,
}

/// Returns the spans of time in which a run waited, oldest first.
pub fn list(store: &dyn Store, run: RunNo) -> Result<Vec<Wait>, store::Error> {
    let mut waits: Vec<Wait> = Vec::new();
    for event in happened::each(store, Some(run), Mark::default()) {
        add(&mut waits, &event?);
    }
    Ok(waits)
}

fn add(waits: &mut Vec<Wait>, event: &Event) {
    let about = |key: &str| event.about[key].as_str();
    let message = about("message").unwrap_or_default().to_owned();
    let current = waits.last_mut().filter(|wait| wait.to.is_none());
    match event.kind {
        Kind::Status => {
            if let Some(over) = current {
                over.to = Some(event.at);
            }
            let for_what = match (about("to"), about("code")) {
                (Some("sleeping"), _) => For::Limit,
                (Some("waiting"), Some(code)) if code.ends_with("_exceeded") => For::Budget,
                (Some("waiting"), Some(_)) => For::Provider,
                (Some("waiting"), None) => For::Person,
                _ => return,
            };
            // A run that is taken up in an outage waits on, and no other event tells that.
            let upstream = about("upstream").map(str::to_owned);
            waits.push(Wait {
                for_what,
                why: message,
                why_since: event.at,
                upstream,
                from: event.at,
                to: None,
            });
        }
        // Comes with the change of status, with another cause, or while the run waits for something else.
        Kind::OutageBegan => {
            if let Some(wait) = current {
                (wait.for_what, wait.why, wait.why_since) = (For::Provider, message, event.at);
                wait.upstream = about("upstream").map(str::to_owned);
            }
        }
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn event(at: i64, kind: Kind, about: Value) -> Event {
        Event { mark: Mark::default(), at: Micros(at), run: None, seq: None, kind, about }
    }

    #[test]
    fn each_wait_is_told_with_what_it_was_for_until_it_ended() {
        let mut waits = Vec::new();
        for (at, kind, about) in [
            (1, Kind::Status, json!({ "to": "waiting", "code": "provider_outage", "message": "halted" })),
            (1, Kind::OutageBegan, json!({ "upstream": "a", "message": "a fails with 529" })),
            (3, Kind::OutageBegan, json!({ "upstream": "a", "message": "a refuses the key (401)" })),
            (5, Kind::Status, json!({ "to": "running" })),
            (5, Kind::OutageEnded, json!({ "upstream": "a" })),
            (6, Kind::Status, json!({ "to": "sleeping" })),
            (8, Kind::Status, json!({ "to": "waiting", "code": "cost_exceeded", "message": "no room" })),
            (9, Kind::Status, json!({ "to": "waiting", "code": null })),
            (10, Kind::Status, json!({ "to": "interrupted" })),
            (
                11,
                Kind::Status,
                json!({ "to": "waiting", "code": "key_refused", "message": "a is out", "upstream": "a" }),
            ),
        ] {
            add(&mut waits, &event(at, kind, about));
        }
        let wait = |for_what, (why, why_since): (&str, i64), from, to: Option<i64>| Wait {
            for_what,
            why: why.into(),
            why_since: Micros(why_since),
            upstream: (for_what == For::Provider).then(|| "a".to_owned()),
            from: Micros(from),
            to: to.map(Micros),
        };
        let wanted = [
            wait(For::Provider, ("a refuses the key (401)", 3), 1, Some(5)),
            wait(For::Limit, ("", 6), 6, Some(8)),
            wait(For::Budget, ("no room", 8), 8, Some(9)),
            wait(For::Person, ("", 9), 9, Some(10)),
            wait(For::Provider, ("a is out", 11), 11, None),
        ];
        assert_eq!(waits, wanted);
    }
}
