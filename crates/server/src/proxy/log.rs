//! A live exchange, shared by its task and its clients: the bytes of an answer in flight.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use bytes::Bytes;
use http::{HeaderMap, StatusCode};
use outlast_core::{
    call::{
        Visible,
        desk::{ForExchange, Key},
    },
    journal::Opening,
    words::id::Seq,
};

use super::inbox::Inbox;

/// Exchange in flight, shared by the task that carries it and the clients that get its answer.
pub struct Live {
    /// Opening of the exchange's entry, which is presented when the entry is closed.
    pub opening: Opening,
    /// Deeds that the desk decided for the task that carries the exchange.
    pub inbox: Inbox<ForExchange>,
    log: Mutex<Log>,
}

/// Answer as far as it was received.
#[derive(Default)]
pub struct Log {
    pub status: StatusCode,
    pub headers: HeaderMap,
    /// Frames of the answer, numbered as the call machine counts them. A frame that is not for the client is empty.
    pub frames: Vec<Bytes>,
    pub streamed: bool,
}

impl Log {
    /// Returns the bytes of the visible part of the answer, from byte `from` on.
    pub fn visible_from(&self, visible: Visible, from: usize) -> Vec<u8> {
        let upto = match visible {
            Visible::Nothing => 0,
            Visible::Frames(n) => n.min(self.frames.len()),
            Visible::Whole => self.frames.len(),
        };
        let (mut skip, mut out) = (from, Vec::new());
        for frame in &self.frames[..upto] {
            out.extend_from_slice(frame.get(skip..).unwrap_or_default());
            skip = skip.saturating_sub(frame.len());
        }
        out
    }
}

impl Live {
    pub fn new(opening: Opening) -> Arc<Live> {
        Arc::new(Live { opening, inbox: Inbox::default(), log: Mutex::default() })
    }

    pub fn key(&self) -> Key {
        (self.opening.run, self.opening.seq)
    }

    pub fn seq(&self) -> Seq {
        self.opening.seq
    }

    pub fn log(&self) -> MutexGuard<'_, Log> {
        self.log.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
