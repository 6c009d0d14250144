//! Embeddings in OpenAI's shape.

use std::borrow::Cow;

use base64::Engine as _;
use serde_json::{Value, json};
use sha2::{Digest, Sha256};

use super::{answer::Answer, request::Request};
use crate::refusal::Refusal;

/// Number of dimensions of a vector if the request names none.
const DIMENSIONS: usize = 16;

/// Rewrites the request in the shape shared by all dialects: each input is a message of the user.
///
/// Errors: no input, or an empty one. A body that is not a JSON object is returned unchanged; `Request::read` refuses
/// it.
pub(super) fn expand(body: &[u8]) -> Result<Cow<'_, [u8]>, Refusal> {
    let Ok(mut whole) = serde_json::from_slice::<Value>(body) else { return Ok(body.into()) };
    if !whole.is_object() {
        return Ok(body.into());
    }
    if whole.get("messages").is_some() {
        return Err(Refusal::bad("messages: unknown parameter"));
    }
    let inputs = match whole["input"].take() {
        Value::Array(all) if all.first().is_some_and(Value::is_string) => all,
        // Lists of token ids, or one such list.
        Value::Array(all) if all.first().is_some_and(Value::is_array) => {
            all.iter().map(|ids| ids.to_string().into()).collect()
        }
        Value::Array(ids) if !ids.is_empty() => vec![Value::Array(ids).to_string().into()],
        text @ Value::String(_) if text != "" => vec![text],
        _ => return Err(Refusal::bad("input: wanted a text, texts or token ids, had none")),
    };
    let message = |input: Value| json!({"role": "user", "content": input});
    whole["messages"] = inputs.into_iter().map(message).collect();
    Ok(whole.to_string().into_bytes().into())
}

/// Returns the answer's body: a vector for each input, different each time it is paid for.
pub(super) fn whole(request: &Request<'_>, answer: &Answer<'_>) -> String {
    let dimensions = request.wire.dimensions.unwrap_or(DIMENSIONS);
    let in_base64 = request.wire.encoding_format.as_deref() == Some("base64");
    let embedding = |index: usize| {
        let vector = vector(&format!("{} {index}", answer.id), dimensions);
        let embedding = if in_base64 { base64(&vector).into() } else { json!(vector) };
        json!({"object": "embedding", "index": index, "embedding": embedding})
    };
    let data: Vec<Value> = (0..request.messages()).map(embedding).collect();
    let usage = json!({"prompt_tokens": answer.usage.input, "total_tokens": answer.usage.input});
    json!({"object": "list", "data": data, "model": answer.model, "usage": usage}).to_string()
}

/// Derives numbers from -1 to 1 from `seed`; they are exact in both encodings.
fn vector(seed: &str, dimensions: usize) -> Vec<f32> {
    let bytes = (0..dimensions.div_ceil(32))
        .flat_map(|n| Sha256::new_with_prefix(seed).chain_update(n.to_le_bytes()).finalize().to_vec());
    bytes.take(dimensions).map(|byte| f32::from(byte) / 128.0 - 1.0).collect()
}

/// Encodes floats, little-endian, in base64, as the SDKs ask for them by default.
fn base64(vector: &[f32]) -> String {
    let bytes: Vec<u8> = vector.iter().flat_map(|number| number.to_le_bytes()).collect();
    base64::engine::general_purpose::STANDARD.encode(bytes)
}
