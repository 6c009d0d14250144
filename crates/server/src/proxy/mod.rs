//! The LLM proxy: byte-faithful, budgeted, journaled, replaying. See docs/design/proxy.md.
//!
//! [`call`] reads a request into a `Call`, [`drive`] drives its connection, and [`live`] carries the exchange of a new
//! call upstream. All decisions are in the core: the engine and the call machine.

pub(crate) mod busy_waiting;
pub(crate) mod call;
pub(crate) mod config;
pub(crate) mod drive;
pub(crate) mod gates;
pub(crate) mod host;
pub(crate) mod kept;
pub(crate) mod live;
pub(crate) mod log;
pub(crate) mod metrics;
pub(crate) mod named;
pub(crate) mod plans;
pub(crate) mod prices;
pub(crate) mod record;
pub(crate) mod registry;
pub(crate) mod remembered;
pub(crate) mod resume_tax;
pub(crate) mod seat;
pub(crate) mod shares;
pub(crate) mod stamp;
pub(crate) mod upstream;

/// Waits for a future; without one, waits for ever.
async fn or_never<F: Future>(future: Option<F>) -> F::Output {
    match future {
        Some(future) => future.await,
        None => std::future::pending().await,
    }
}
