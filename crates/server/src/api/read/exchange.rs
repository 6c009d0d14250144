//! An entry with what is kept of it: a call's request and answer, any other entry's value.

use outlast_core::{
    body,
    journal::{Entry, Kind, Role},
    reads::entries,
    store::{Error, Store},
};
use serde_json::{Value, json};

use crate::{
    dialect::conversation::{self, Part, Turn},
    proxy::record::Answer,
};

/// Entry with its stored request and answer, or description and value.
pub struct Exchange {
    pub entry: Entry,
    /// Body of a call's request; the description of any other entry. `None` if it was not recorded.
    pub request: Option<Vec<u8>>,
    /// Body of a call's answer; the value of any other entry. `None` if it was not recorded.
    pub answer: Option<Vec<u8>>,
}

impl Exchange {
    /// Reads the stored bytes of an entry. Errors: `Corrupt` for damaged bytes; those of the store.
    pub fn read(store: &dyn Store, entry: Entry) -> Result<Exchange, Error> {
        let (request, answer) = match entry.kind {
            Kind::Call => (body::stored(store, entry.run, entry.seq)?, answer_of_call(store, &entry)?),
            _ => (kept(store, &entry, Role::About)?, kept(store, &entry, Role::Value)?),
        };
        Ok(Exchange { request, answer, entry })
    }

    pub fn is_call(&self) -> bool {
        self.entry.kind == Kind::Call
    }

    /// Returns the JSON body of a call's request; `None` if it was not recorded, is not JSON, or the entry is no call.
    pub fn body(&self) -> Option<Value> {
        self.request.as_ref().filter(|_| self.is_call()).and_then(|bytes| serde_json::from_slice(bytes).ok())
    }

    /// Returns the turns of a call's request; none for an entry that is no call.
    pub fn turns(&self) -> Vec<Turn> {
        self.body().map(|body| conversation::request(&body)).unwrap_or_default()
    }

    /// Returns the turns of a call's answer; none for an entry that is no call.
    pub fn answered(&self) -> Vec<Turn> {
        self.answer.as_ref().filter(|_| self.is_call()).map(|b| conversation::answer(b)).unwrap_or_default()
    }

    /// Returns the request in a form for people, as JSON; null if it was not recorded.
    pub fn request_json(&self) -> Value {
        let Some(bytes) = &self.request else { return Value::Null };
        let Some(body) = self.body() else { return json!({ "bytes": bytes.len(), "value": value(bytes) }) };
        let short = |(_, value): &(&String, &Value)| value.is_number() || value.is_boolean();
        let settings: serde_json::Map<String, Value> = body
            .as_object()
            .into_iter()
            .flatten()
            .filter(short)
            .map(|(key, value)| (key.clone(), value.clone()))
            .collect();
        let turns: Vec<Value> = self.turns().iter().map(turn).collect();
        let tools = conversation::tools(&body);
        json!({ "bytes": bytes.len(), "turns": turns, "tools": tools, "settings": settings })
    }

    /// Returns the answer in a form for people, as JSON; null if it was not recorded.
    pub fn answer_json(&self) -> Value {
        let Some(bytes) = &self.answer else { return Value::Null };
        if !self.is_call() {
            return json!({ "bytes": bytes.len(), "value": value(bytes) });
        }
        json!({ "bytes": bytes.len(), "turns": self.answered().iter().map(turn).collect::<Vec<_>>() })
    }
}

/// Reads the stored answer of a call as a conversation, without its request; no turn for one that is not kept.
pub fn answered(store: &dyn Store, call: &Entry) -> Result<Vec<Turn>, Error> {
    Ok(answer_of_call(store, call)?.map(|bytes| conversation::answer(&bytes)).unwrap_or_default())
}

fn answer_of_call(store: &dyn Store, call: &Entry) -> Result<Option<Vec<u8>>, Error> {
    Ok(Answer::of(store, call.run, call.seq)?.map(|answer| answer.body.into()))
}

fn kept(store: &dyn Store, entry: &Entry, role: Role) -> Result<Option<Vec<u8>>, Error> {
    Ok(entries::kept(store, entry.run, entry.seq, role)?.map(Into::into))
}

/// Returns a turn of a conversation as JSON. A part that is no text is given by its kind and size.
pub fn turn(turn: &Turn) -> Value {
    let part = |part: &Part| match part {
        Part::Text(text) => json!({ "type": "text", "text": text }),
        Part::Thinking(text) => json!({ "type": "thinking", "text": text }),
        Part::Call(call) | Part::Served(call) => {
            json!({ "type": "call", "id": call.shown_id(), "name": call.name, "input": call.input })
        }
        Part::Result(result) => json!({ "type": "result", "id": result.shown_id(), "text": result.text }),
        Part::Other { what, bytes } => json!({ "type": "other", "what": what, "bytes": bytes }),
    };
    json!({ "role": turn.role, "parts": turn.parts.iter().map(part).collect::<Vec<_>>() })
}

/// Returns stored bytes for a JSON answer: parsed if they are JSON, else as text if they are UTF-8, else only their
/// number.
pub fn value(bytes: &[u8]) -> Value {
    match (serde_json::from_slice::<Value>(bytes), std::str::from_utf8(bytes)) {
        (Ok(value), _) => value,
        (_, Ok(text)) => text.into(),
        _ => json!({ "bytes": bytes.len() }),
    }
}
