//! Bodies of requests, read whole.
//!
//! Growth of a buffer that is filled piece by piece and then kept.

use bytes::Bytes;
use http_body_util::{BodyExt as _, LengthLimitError, Limited};
use hyper::body::Incoming;

use super::refuse::Refusal;

/// Reads a request's body. Errors: `body_too_large` above `limit` bytes; `body_cut_off`.
pub async fn whole(body: Incoming, limit: usize) -> Result<Bytes, Refusal> {
    let (mut body, mut whole) = (Limited::new(body, limit), Vec::new());
    while let Some(frame) = body.frame().await {
        let frame = frame.map_err(|e| match e.downcast_ref::<LengthLimitError>() {
            Some(_) => Refusal::BodyTooLarge { limit },
            None => Refusal::BodyCutOff(e.to_string()),
        })?;
        frame.data_ref().into_iter().for_each(|data| append(&mut whole, data));
    }
    whole.shrink_to_fit();
    Ok(whole.into())
}

/// Appends `more`. Room is made for a quarter more than there is, where a vector by itself would double: what is kept
/// holds at most 1.25 bytes for each byte.
pub fn append<T: Copy>(to: &mut Vec<T>, more: &[T]) {
    if to.capacity() - to.len() < more.len() {
        to.reserve_exact(more.len().max(to.len() / 4));
    }
    to.extend_from_slice(more);
}
