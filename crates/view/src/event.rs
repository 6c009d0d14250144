//! Events, as readers of the stream and endpoints get them.

use outlast_core::{
    events::{self, Kind},
    run::attempt,
    words::{Micros, RunId, Seq},
};
use serde_json::{Value, json};

use crate::{
    Exit, Time,
    money::{Overrun, usd},
};

shape! {
    /// Event of a run, of a named budget or of the state. `run` is the id of its run.
    pub Event(event: &events::Event, run: Option<RunId>) {
        /// Number in the store; null for what is told of an entry or of progress, which are no rows.
        no: Option<i64> = Some(event.mark.no);
        at: Time = Time(event.at);
        kind: &'static str = event.kind.name();
        run: Option<RunId> = run;
        seq: Option<Seq> = event.seq;
        about: Value = shown(event.kind, &event.about);
    }
}

impl Event {
    /// Returns an event that is no row of the store.
    pub fn told(at: Micros, kind: &'static str, run: Option<RunId>, about: Value) -> Event {
        Event { no: None, at: Time(at), kind, run, seq: None, about }
    }
}

shape! {
    /// Amounts that a call was billed beyond its hold.
    Overran(about: &Value) {
        #[serde(flatten)] overrun: Overrun = Overrun::new(about["nano_usd"].as_i64());
        overrun_tokens: Option<i64> = about["tokens"].as_i64();
    }
}

/// Returns what an event is about in the shapes of this crate: it is stored with times in microseconds, with amounts in
/// nano-dollars alone, and with an attempt's exit as its row has it.
fn shown(kind: Kind, about: &Value) -> Value {
    if kind == Kind::Overrun {
        return json!(Overran::new(about));
    }
    let mut about = about.clone();
    if let Some(nano) = about["held_nano_usd"].as_i64() {
        about["held_usd"] = usd(nano).into();
    }
    for place in ["/wake_at", "/expires_at", "/waited/since", "/began_at"] {
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
    fn times_and_amounts_of_an_event_are_told_as_all_others_are() {
        let check = |kind, about: Value, wanted: Value| assert_eq!(shown(kind, &about), wanted);
        check(
            Kind::Status,
            json!({ "to": "sleeping", "wake_at": 1_700_000_000_123_456_i64, "waited": { "since": 0 } }),
            json!({
                "to": "sleeping", "wake_at": "2023-11-14T22:13:20.123456Z",
                "waited": { "since": "1970-01-01T00:00:00.000000Z" },
            }),
        );
        check(Kind::Status, json!({ "wake_at": null }), json!({ "wake_at": null }));
        check(
            Kind::Doubt,
            json!({ "held_nano_usd": 250_000_000 }),
            json!({ "held_nano_usd": 250_000_000, "held_usd": "0.25" }),
        );
        check(
            Kind::Overrun,
            json!({ "nano_usd": 1, "tokens": 2 }),
            json!({ "overrun_nano_usd": 1, "overrun_usd": "0.000000001", "overrun_tokens": 2 }),
        );
    }
}
