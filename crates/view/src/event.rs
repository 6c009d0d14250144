//! Events, as readers of the stream and endpoints get them.

use outlast_core::{
    events,
    run::attempt,
    words::id::{Micros, RunId, Seq},
};
use serde::Serialize;
use serde_json::{Value, json};

use crate::{Exit, Time};

/// Event of a run, of a named budget or of the state.
#[derive(Clone, Debug, Serialize)]
pub struct Event {
    /// Number in the store; null for what is told of an entry or of progress, which are no rows.
    pub no: Option<i64>,
    pub at: Time,
    pub kind: &'static str,
    pub run: Option<RunId>,
    pub seq: Option<Seq>,
    pub about: Value,
}

impl Event {
    /// Returns an event of the store. `run` is the id of its run.
    pub fn new(event: &events::Event, run: Option<RunId>) -> Event {
        Event {
            no: Some(event.mark.no),
            at: Time(event.at),
            kind: event.kind.name(),
            run,
            seq: event.seq,
            about: shown(&event.about),
        }
    }
}

/// Returns what an event is about in the shapes of this crate: it is stored with times in microseconds and with an
/// attempt's exit as its row has it.
fn shown(about: &Value) -> Value {
    let mut about = about.clone();
    for place in ["/wake_at", "/expires_at", "/waited/since"] {
        if let Some(at) = about.pointer_mut(place)
            && let Some(us) = at.as_i64()
        {
            *at = json!(Time(Micros(us)));
        }
    }
    if let Some(exit) = about.get_mut("exit")
        && let Ok(row) = serde_json::from_value::<attempt::Exit>(exit.clone())
    {
        *exit = json!(Exit::new(&row));
    }
    about
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_of_an_event_are_told_as_all_others_are() {
        let about = shown(
            &json!({ "to": "sleeping", "wake_at": 1_700_000_000_123_456_i64, "waited": { "since": 0 } }),
        );
        let wanted = json!({
            "to": "sleeping", "wake_at": "2023-11-14T22:13:20.123456Z",
            "waited": { "since": "1970-01-01T00:00:00.000000Z" },
        });
        assert_eq!(about, wanted);
        assert_eq!(shown(&json!({ "wake_at": null })), json!({ "wake_at": null }));
    }
}
