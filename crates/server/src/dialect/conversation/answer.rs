//! An answer's turns, read off its body: whole, streamed, or the first part of a stream.

use std::collections::BTreeMap;

use serde_json::Value;

use super::{
    super::{
        lenient::parse_json,
        sse::{Event, Framer},
    },
    Part, Reader, ToolCall, Turn, chat_calls, filled, items, part,
};

/// Returns the turns of an answer's body, streamed or whole. Unreadable parts are skipped.
pub fn answer(body: &[u8]) -> Vec<Turn> {
    let mut turns: BTreeMap<u64, Vec<Turn>> = BTreeMap::new();
    for ((choice, _), piece) in Answer::read(body).pieces {
        let turns = turns.entry(choice).or_default();
        match turns.last_mut().filter(|turn| turn.role == piece.role) {
            Some(turn) => turn.parts.push(piece.part),
            None => turns.push(Turn { role: piece.role, parts: vec![piece.part] }),
        }
    }
    turns.into_values().flatten().collect()
}

/// Returns the tool calls in an answer's body that the client has to carry out, in the answer's order.
pub fn called(body: &[u8]) -> Vec<ToolCall> {
    calls(body, |_| true)
}

/// Returns the tool calls that are complete in `body`, the first part of a streamed answer. Agents begin a tool as soon
/// as its call is complete, before the answer is.
pub fn called_so_far(body: &[u8]) -> Vec<ToolCall> {
    calls(body, |piece| piece.complete)
}

fn calls(body: &[u8], which: impl Fn(&Piece) -> bool) -> Vec<ToolCall> {
    let call = |piece: Piece| match piece.part {
        Part::Call(call) if !call.id.is_empty() => Some(call),
        _ => None,
    };
    Answer::read(body).pieces.into_values().filter(which).filter_map(call).collect()
}

/// Part of an answer as it is read, perhaps from many events.
struct Piece {
    role: String,
    part: Part,
    complete: bool,
}

/// Parts of an answer, by choice and by place within it.
#[derive(Default)]
struct Answer {
    pieces: BTreeMap<(u64, u64), Piece>,
}

/// Number of places that each item of a response and each kind of a chat completion's parts has.
const PLACES: u64 = 1 << 16;

impl Answer {
    fn read(body: &[u8]) -> Answer {
        let mut answer = Answer::default();
        let start = body.trim_ascii_start();
        if start.starts_with(b"{") {
            answer.take(&parse_json(body).unwrap_or_default());
        } else if start.starts_with(b"[") {
            // Gemini streams one array, unless events are asked for.
            items(&parse_json(body).unwrap_or_default()).for_each(|chunk| answer.take(chunk));
        } else {
            let mut framer = Framer::default();
            let mut events = framer.push(bytes::Bytes::copy_from_slice(body));
            events.push(framer.finish().0);
            for data in events.iter().filter_map(|event| Event::read(event).data) {
                answer.take(&parse_json(&data).unwrap_or_default());
            }
        }
        answer
    }

    /// Takes a whole answer, or an event or a chunk of a streamed one.
    fn take(&mut self, value: &Value) {
        let block = (0, value["index"].as_u64().unwrap_or_default());
        match value["type"].as_str() {
            Some("content_block_start") => {
                self.put(
                    block,
                    Piece { role: "assistant".into(), part: part(&value["content_block"]), complete: false },
                );
            }
            Some("content_block_delta") => {
                let delta = &value["delta"];
                self.say(block, &delta["text"], Part::Text);
                self.say(block, &delta["thinking"], Part::Thinking);
                self.extend_call(block, delta["partial_json"].as_str().unwrap_or_default());
            }
            Some("content_block_stop") => self.complete(|place| *place == block),
            Some("response.output_item.done") => {
                self.take_item(value["output_index"].as_u64().unwrap_or_default(), &value["item"]);
            }
            // The end tells again what came item by item, or nothing.
            Some("response.completed" | "response.incomplete" | "response.failed") => {
                let response = &value["response"];
                if items(&response["output"]).len() > 0 {
                    self.pieces.clear();
                }
                self.take_whole(response);
            }
            Some("error") if value["error"].is_null() => self.take_error(value),
            _ => self.take_whole(value),
        }
    }

    fn take_whole(&mut self, value: &Value) {
        for (n, choice) in items(&value["choices"]).enumerate() {
            let n = choice["index"].as_u64().unwrap_or(n as u64);
            match choice.get("message") {
                Some(message) => self.take_turn(n, 0, Reader::default().turn(message, "assistant")),
                None => self.take_delta(n, choice),
            }
        }
        for (n, candidate) in items(&value["candidates"]).enumerate() {
            self.take_content(candidate["index"].as_u64().unwrap_or(n as u64), &candidate["content"]);
        }
        for (n, item) in items(&value["output"]).enumerate() {
            self.take_item(n as u64, item);
        }
        if value["content"].is_array() {
            self.take_turn(0, 0, Reader::default().turn(value, "assistant"));
        }
        if let Some(error) = value.get("error").filter(|error| !error.is_null()) {
            self.take_error(error);
        }
    }

    /// Takes an output item of a response, which comes whole.
    fn take_item(&mut self, index: u64, item: &Value) {
        self.take_turn(0, index.saturating_mul(PLACES), Reader::default().turn(item, "assistant"));
    }

    /// Takes a complete turn, whose parts have the places from `place` on.
    fn take_turn(&mut self, choice: u64, place: u64, turn: Turn) {
        for (n, part) in turn.parts.into_iter().enumerate() {
            let piece = Piece { role: turn.role.clone(), part, complete: true };
            self.put((choice, place.saturating_add(n as u64)), piece);
        }
    }

    /// Takes the content of a Gemini model, or a part of it, which may be cut anywhere in a text. Each call comes whole.
    fn take_content(&mut self, candidate: u64, content: &Value) {
        for part in Reader::default().turn(content, "model").parts {
            let last = self.pieces.range_mut((candidate, 0)..=(candidate, u64::MAX)).next_back();
            let next = match (last, part) {
                (Some((_, Piece { part: Part::Text(text), .. })), Part::Text(more))
                | (Some((_, Piece { part: Part::Thinking(text), .. })), Part::Thinking(more)) => {
                    text.push_str(&more);
                    continue;
                }
                (last, part) => (last.map_or(0, |((_, place), _)| place + 1), part),
            };
            self.put((candidate, next.0), Piece { role: "model".into(), part: next.1, complete: true });
        }
    }

    /// Takes a chunk of OpenAI's chat completions.
    fn take_delta(&mut self, choice: u64, chunk: &Value) {
        let delta = &chunk["delta"];
        self.say((choice, 0), &delta["reasoning_content"], Part::Thinking);
        self.say((choice, 0), &delta["reasoning"], Part::Thinking);
        self.say((choice, 1), &delta["content"], Part::Text);
        self.say((choice, 1), &delta["refusal"], Part::Text);
        for (n, more) in chat_calls(delta) {
            let piece = self.pieces.entry((choice, PLACES + n)).or_insert_with(|| Piece {
                role: "assistant".into(),
                part: Part::Call(ToolCall::default()),
                complete: false,
            });
            if let Part::Call(call) = &mut piece.part {
                call.id.push_str(&more.id);
                call.name.push_str(&more.name);
                call.input.push_str(&more.input);
            }
        }
        if !chunk["finish_reason"].is_null() {
            self.complete(|place| place.0 == choice);
        }
    }

    fn take_error(&mut self, error: &Value) {
        let text = filled(&error["message"]).map_or_else(|| error.to_string(), str::to_owned);
        self.take_turn(u64::MAX, 0, Turn { role: "error".into(), parts: vec![Part::Text(text)] });
    }

    fn put(&mut self, place: (u64, u64), piece: Piece) {
        self.pieces.insert(place, piece);
    }

    /// Appends a text to the part at `place`, which it begins if there is none.
    fn say(&mut self, place: (u64, u64), more: &Value, new: fn(String) -> Part) {
        let Some(more) = filled(more) else { return };
        let begun = || Piece { role: "assistant".into(), part: new(String::new()), complete: false };
        if let Part::Text(text) | Part::Thinking(text) =
            &mut self.pieces.entry(place).or_insert_with(begun).part
        {
            text.push_str(more);
        }
    }

    fn extend_call(&mut self, place: (u64, u64), more: &str) {
        if more.is_empty() {
            return;
        }
        if let Some(Part::Call(call) | Part::Served(call)) =
            self.pieces.get_mut(&place).map(|piece| &mut piece.part)
        {
            // A block begins with an empty object, which its pieces replace.
            if call.input == "{}" {
                call.input.clear();
            }
            call.input.push_str(more);
        }
    }

    fn complete(&mut self, which: impl Fn(&(u64, u64)) -> bool) {
        self.pieces.iter_mut().filter(|(place, _)| which(place)).for_each(|(_, piece)| piece.complete = true);
    }
}
