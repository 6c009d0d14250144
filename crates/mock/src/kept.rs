//! Responses that the provider keeps, for later requests to continue from.

use std::{borrow::Cow, collections::HashMap};

use serde_json::{Value, json};

use crate::refusal::Refusal;

/// Conversations by their response's id, kept in memory until the provider ends.
#[derive(Debug, Default)]
pub(super) struct Kept(HashMap<String, Conversation>);

#[derive(Debug)]
struct Conversation {
    response: Value,
    /// All items up to and including the response's request, and the output of the response.
    items: Vec<Value>,
}

impl Kept {
    /// Rewrites the request in the shape shared by all dialects: `messages` are the items of the conversation that it
    /// continues and then its own, `system` is its instructions.
    ///
    /// Errors: 404 for a response or an item that is not kept here. A body that is not a JSON object is returned
    /// unchanged; `Request::read` refuses it.
    pub fn expand<'b>(&self, body: &'b [u8]) -> Result<Cow<'b, [u8]>, Refusal> {
        let Ok(mut whole) = serde_json::from_slice::<Value>(body) else { return Ok(body.into()) };
        if !whole.is_object() {
            return Ok(body.into());
        }
        if let Some(other) = ["messages", "system"].into_iter().find(|name| whole.get(name).is_some()) {
            return Err(Refusal::bad(format!("{other}: unknown parameter")));
        }
        let mut items = match whole["previous_response_id"].as_str() {
            Some(id) => self.get(id)?.items.clone(),
            None => Vec::new(),
        };
        match whole["input"].take() {
            Value::String(text) => items.push(json!({"type": "message", "role": "user", "content": text})),
            Value::Array(more) => {
                for item in more {
                    items.push(match item["type"].as_str() {
                        Some("item_reference") => self.item(item["id"].as_str().unwrap_or_default())?,
                        _ => item,
                    });
                }
            }
            _ => {}
        }
        whole["messages"] = Value::Array(items);
        if whole["instructions"].is_string() {
            whole["system"] = whole["instructions"].take();
        }
        Ok(whole.to_string().into_bytes().into())
    }

    /// Keeps `response`, the answer to the expanded request `body`, unless the request has `store: false`.
    pub fn keep(&mut self, body: &[u8], response: Value) {
        let Ok(mut body) = serde_json::from_slice::<Value>(body) else { return };
        let (Some(id), Value::Array(mut items)) = (response["id"].as_str(), body["messages"].take()) else {
            return;
        };
        if body["store"] == false {
            return;
        }
        items.extend(response["output"].as_array().into_iter().flatten().cloned());
        self.0.insert(id.to_owned(), Conversation { response, items });
    }

    /// Returns the kept response as JSON, as it was first answered. Errors: no response of this id is kept.
    pub fn response(&self, id: &str) -> Result<String, Refusal> {
        self.get(id).map(|kept| kept.response.to_string())
    }

    /// Returns the conversation's items before the response's own output, as the API's list in JSON. Errors: no
    /// response of this id is kept.
    pub fn input_items(&self, id: &str) -> Result<String, Refusal> {
        let kept = self.get(id)?;
        let output = kept.response["output"].as_array().map_or(0, Vec::len);
        let items = &kept.items[..kept.items.len() - output];
        Ok(json!({"object": "list", "data": items, "has_more": false}).to_string())
    }

    pub fn delete(&mut self, id: &str) -> Result<String, Refusal> {
        self.0.remove(id).ok_or_else(|| missing("response", id))?;
        Ok(json!({"id": id, "object": "response", "deleted": true}).to_string())
    }

    fn get(&self, id: &str) -> Result<&Conversation, Refusal> {
        self.0.get(id).ok_or_else(|| missing("response", id))
    }

    fn item(&self, id: &str) -> Result<Value, Refusal> {
        let items = self.0.values().flat_map(|kept| &kept.items);
        items.into_iter().find(|item| item["id"] == id).cloned().ok_or_else(|| missing("item", id))
    }
}

fn missing(what: &str, id: &str) -> Refusal {
    Refusal::NotFound { what: format!("{what} {id:?}") }
}
