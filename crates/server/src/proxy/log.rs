//! A live exchange, shared by its task and its clients: the bytes of an answer in flight.

use std::sync::Arc;

use http::{HeaderMap, StatusCode};
use outlast_core::{
    call::{
        Visible,
        desk::{ForExchange, Key},
    },
    journal::Opening,
    words::id::Seq,
};
use parking_lot::Mutex;
use tokio::sync::Notify;

use super::{frames::Frames, inbox::Inbox};

/// Exchange in flight, shared by the task that carries it and the clients that get its answer.
pub struct Live {
    /// Opening of the exchange's entry, which is presented when the entry is closed.
    pub opening: Opening,
    /// Deeds that the desk decided for the task that carries the exchange.
    pub inbox: Inbox<ForExchange>,
    /// Notified when somebody is held up by the answer: see [`outlast_core::call::Quiet::urge`].
    pub urged: Notify,
    pub log: Mutex<Log>,
}

/// Answer as far as it was received.
#[derive(Default)]
pub struct Log {
    pub status: StatusCode,
    pub headers: HeaderMap,
    pub frames: Frames,
    pub streamed: bool,
}

impl Log {
    /// Returns the bytes of the visible part of the answer, from byte `from` on.
    pub fn visible_from(&self, visible: Visible, from: usize) -> &[u8] {
        let visible = match visible {
            Visible::Nothing => &[],
            Visible::Frames(count) => self.frames.first(count),
            Visible::Whole => self.frames.bytes(),
        };
        visible.get(from..).unwrap_or_default()
    }
}

impl Live {
    pub fn new(opening: Opening) -> Arc<Live> {
        Arc::new(Live { opening, inbox: Inbox::default(), urged: Notify::new(), log: Mutex::default() })
    }

    pub fn key(&self) -> Key {
        (self.opening.run, self.opening.seq)
    }

    pub fn seq(&self) -> Seq {
        self.opening.seq
    }
}
