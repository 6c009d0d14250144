//! State that a process holds in memory for its clients and its exchanges, until it ends.

use std::{cell::RefCell, rc::Rc};

use outlast_core::{
    call::{
        Quiet, RequestKey,
        desk::Key,
        exchange::{Ending, Frame},
    },
    engine::{Bill, Delivered},
    journal::Opening,
    words::{AttemptNo, InstanceNo, MatchKey, Seq},
};

use crate::{
    bug::Bug,
    happening::{Request, ToAgent},
    provider::UpstreamRequest,
};

/// Request of one client, and the state of its answer.
pub struct Client {
    pub request: Request,
    pub(super) attempt: Option<AttemptNo>,
    /// Live exchange with the provider that produces the answer; `None` if the answer comes from the store, or has not
    /// begun.
    pub(super) source: Option<Rc<RefCell<Carried>>>,
    pub(super) receiving: Option<Seq>,
    /// Instance that asked for admission last, in whose name the answer is taken.
    pub(super) asked_as: InstanceNo,
    /// Result that the agent is given at the end; `None` until it is known.
    pub(super) result: Option<ToAgent>,
    /// Delivery mark of the answer until the mark is submitted; `None` if there is none.
    pub(super) mark: Option<Delivered>,
    /// Number of the current wait, by which an old timer is recognised.
    pub(super) wait: u64,
    /// Number of the current admission, by which an old timer is recognised.
    pub(super) asked: u64,
    /// Whether the last decision came only because the wait was over, although the waiters had been told of the current
    /// hour.
    pub(super) waited_out: bool,
    /// Whether the last admission found no turn at the upstream.
    pub(super) lacks_turn: bool,
}

impl Client {
    pub(super) fn new(request: Request) -> Client {
        Client {
            request,
            attempt: None,
            source: None,
            receiving: None,
            asked_as: InstanceNo::default(),
            result: None,
            mark: None,
            wait: 0,
            asked: 0,
            waited_out: false,
            lacks_turn: false,
        }
    }

    /// Returns the key by which identical requests of the client's attempt are found.
    pub(super) fn place(&self, attempt: AttemptNo, bug: Option<Bug>) -> RequestKey {
        let r = &self.request;
        let scope = if bug == Some(Bug::ScopeIgnored) { "" } else { &r.scope };
        let key = MatchKey::new(&r.digest(), scope, None);
        RequestKey { run: r.run, attempt, key }
    }
}

/// State that the host keeps for an exchange. Its clients read their answers from it.
pub struct Carried {
    pub(super) key: Key,
    pub(super) asked: UpstreamRequest,
    /// Time since which the call is tried.
    pub(super) began_ms: u64,
    /// Opening of the entry, with the instance that made it. Only that instance may close the entry, even after the
    /// process registered anew.
    pub(super) opening: Opening,
    pub(super) attempt: AttemptNo,
    pub(super) status: Option<u16>,
    pub(super) frames: Vec<Frame>,
    /// Wait for more of an answer that has begun; `None` before its head.
    pub(super) quiet: Option<Quiet>,
    pub(super) metered: Option<Bill>,
    pub(super) aborted: bool,
    /// Last settlement that was submitted; `None` before the first.
    pub(super) last: Option<(Ending, Option<&'static str>)>,
    pub(super) is_first_try: bool,
}
