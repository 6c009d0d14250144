//! A live exchange, shared by its task and its clients: the bytes of an answer in flight.
//!
//! Frames of an answer under way: their bytes in one piece, and where each of them ends.

use std::{collections::VecDeque, sync::Arc};

use http::{HeaderMap, StatusCode};
use outlast_core::{
    call::{
        Visible,
        desk::{ForExchange, Key},
    },
    journal::Opening,
    words::Seq,
};
use parking_lot::Mutex;
use tokio::sync::Notify;

use crate::wire::incoming::append;

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

/// Frames of an answer, numbered as the call machine counts them. A frame that is not for the client is empty.
///
/// The bytes are copied. A slice of what the socket read would keep the whole read buffer: 8 KiB for a token's frame of
/// 200 bytes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Frames {
    bytes: Vec<u8>,
    /// Number of bytes up to the end of each frame. An answer is shorter than 1 GiB.
    ends: Vec<u32>,
}

impl Frames {
    /// Returns the frames of a body that is not a stream: one, which is not copied.
    pub fn whole(body: Vec<u8>) -> Frames {
        Frames { ends: vec![end_of(&body)], bytes: body }
    }

    pub fn push(&mut self, frame: &[u8]) {
        append(&mut self.bytes, frame);
        let end = end_of(&self.bytes);
        append(&mut self.ends, &[end]);
    }

    pub fn is_empty(&self) -> bool {
        self.ends.is_empty()
    }

    pub fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// Returns the bytes of the first `count` frames.
    pub fn first(&self, count: usize) -> &[u8] {
        let last = count.min(self.ends.len()).checked_sub(1);
        let end = last.map_or(0, |last| self.ends[last] as usize);
        &self.bytes[..end]
    }

    /// Returns the length of each frame that is for the client.
    pub fn lengths(&self) -> impl Iterator<Item = u32> + '_ {
        let starts = std::iter::once(0).chain(self.ends.iter().copied());
        self.ends.iter().zip(starts).map(|(end, start)| end - start).filter(|len| *len > 0)
    }
}

fn end_of(bytes: &[u8]) -> u32 {
    u32::try_from(bytes.len()).unwrap_or(u32::MAX)
}

/// Inbox of a task: an ordered queue with many senders and one receiver, in which a newer item may replace the last.
pub struct Inbox<T> {
    queue: Mutex<VecDeque<T>>,
    filled: Notify,
}

impl<T> Default for Inbox<T> {
    fn default() -> Self {
        Inbox { queue: Mutex::default(), filled: Notify::new() }
    }
}

impl<T> Inbox<T> {
    /// Appends `item`, or replaces the last item with it if that one is `outdated`.
    pub fn push(&self, item: T, outdated: impl FnOnce(&T) -> bool) {
        let mut queue = self.queue.lock();
        match queue.back_mut() {
            Some(last) if outdated(last) => *last = item,
            _ => queue.push_back(item),
        }
        drop(queue);
        self.filled.notify_one();
    }

    pub fn pop(&self) -> Option<T> {
        self.queue.lock().pop_front()
    }

    pub fn is_empty(&self) -> bool {
        self.queue.lock().is_empty()
    }

    /// Waits until the inbox has an item. Only the one receiving task may call it.
    pub async fn filled(&self) {
        while self.is_empty() {
            self.filled.notified().await;
        }
    }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt as _;

    use super::*;

    #[test]
    fn frames_are_counted_with_those_that_are_for_nobody() {
        let mut frames = Frames::default();
        assert!(frames.is_empty() && frames.first(3).is_empty());
        for frame in ["a\n\n", "", "bb\n\n"] {
            frames.push(frame.as_bytes());
        }
        let firsts = [0, 1, 2, 3, 4].map(|count| frames.first(count).len());
        assert_eq!(firsts, [0, 3, 3, 7, 7]);
        assert_eq!(frames.lengths().collect::<Vec<_>>(), [3, 4]);
        assert_eq!(Frames::whole(b"{}".to_vec()).lengths().collect::<Vec<_>>(), [2]);
    }

    // Bug: each frame was a slice of the buffer that its socket had read into.
    // Consequence: an answer of 4,000 tokens held 26 bytes for each byte; 20 of them 371 MB.
    // Cause: a slice keeps its whole buffer, and the socket takes a new one of 8 KiB for each read.
    #[test]
    fn an_answer_of_small_frames_holds_at_most_one_and_a_half_bytes_for_each_byte() {
        for len in [24, 200, 3_000] {
            let mut frames = Frames::default();
            for _ in 0..5_000 {
                frames.push(&vec![b'x'; len]);
            }
            let held = frames.bytes.capacity() + frames.ends.capacity() * size_of::<u32>();
            let bytes = frames.bytes.len();
            assert!(held * 2 <= bytes * 3, "{held} bytes for {bytes}, in frames of {len}");
        }
    }

    #[tokio::test]
    async fn what_is_put_in_comes_out_in_its_order_and_wakes_its_task() {
        let inbox = Inbox::default();
        let mut waits = Box::pin(inbox.filled());
        assert!((&mut waits).now_or_never().is_none());
        inbox.push(1, |_| false);
        assert!(waits.now_or_never().is_some());
        inbox.push(2, |_| false);
        inbox.push(3, |last| *last == 2);
        assert_eq!([inbox.pop(), inbox.pop(), inbox.pop()], [Some(1), Some(3), None]);
        // An item that was taken without waiting does not end a later wait.
        assert!(Box::pin(inbox.filled()).now_or_never().is_none());
    }
}
