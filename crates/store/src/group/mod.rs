//! Group commit: one writer decides all queued operations inside one transaction.
//!
//! An operation fails only in its decision, before any write, so a group needs no savepoints. When a write fails,
//! the whole group is rolled back and each operation is tried once more, alone.
//!
//! `queue` says what runs when, `turn` runs it on a backend: both without a thread or a clock. `writer` is the thread
//! that drives them in a store, and beside it `Steps`, with which a simulation drives them by hand.

mod queue;
mod turn;
mod writer;

pub use writer::{Hands, Step, Steps, Writer};
