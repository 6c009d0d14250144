//! Inbox of a task: an ordered queue with many senders and one receiver, in which a newer item may replace the last.

use std::collections::VecDeque;

use parking_lot::Mutex;
use tokio::sync::Notify;

/// Inbox of one task.
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
