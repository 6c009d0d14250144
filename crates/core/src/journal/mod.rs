//! The journal: one kind of row for everything a run does.

pub mod approval;
pub mod asked;
mod call;
pub mod divergence;
mod item;
pub mod job;
mod kind;
pub mod payload;
pub mod scope;
mod step;

use std::sync::Arc;

use serde::{Deserialize, Serialize};

pub use call::{CallDetail, Correction};
pub use item::{ItemDetail, Standing};
pub use kind::{Kind, Role, State};
pub use step::StepDetail;

use crate::{
    envelope::unit::Amounts,
    words::{
        digest::MatchKey,
        id::{AttemptNo, EnvelopeNo, InstanceNo, Micros, RunNo, Seq},
    },
};
use asked::ApprovalDetail;

/// One entry of a run's journal.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Entry {
    pub run: RunNo,
    pub seq: Seq,
    pub kind: Kind,
    pub state: State,
    pub attempt: AttemptNo,
    /// Who opened it, and alone may close it.
    pub instance: Option<InstanceNo>,
    /// What its replay never crosses.
    pub scope: Arc<str>,
    /// A step's, loop's or checkpoint's name.
    pub key: Option<String>,
    /// Digest, scope and credential in one: what a repeated call is found by.
    pub match_key: Option<MatchKey>,
    pub opened_at: Micros,
    pub closed_at: Option<Micros>,
    /// What it holds in its run's envelopes now.
    pub held: Amounts,
    /// What it was posted at.
    pub spent: Amounts,
    /// The attempt it was last delivered to whole.
    pub delivered_to: Option<AttemptNo>,
    /// The retry count of the connection it was delivered to.
    pub delivered_count: u32,
    /// The retry of this lost or failed call.
    pub retried_by: Option<Seq>,
    /// Whether its answer can be replayed (2xx and its terminal event seen, and kept).
    pub replayable: bool,
    pub call: Option<Box<CallDetail>>,
    pub step: Option<Box<StepDetail>>,
    pub item: Option<Box<ItemDetail>>,
    pub approval: Option<Box<ApprovalDetail>>,
}

impl Entry {
    /// The item or step it was made in.
    pub fn within(&self) -> Option<Seq> {
        match self.kind {
            Kind::Call => self.call.as_ref()?.within,
            _ => self.step.as_ref()?.within,
        }
    }

    /// The windows of named budgets it is charged to.
    pub fn windows(&self) -> &[EnvelopeNo] {
        self.call.as_ref().map_or(&[], |call| &call.windows)
    }

    /// What it is told from: the lost call that it repeats, and what it was made in.
    pub fn linked(&self) -> impl Iterator<Item = Seq> + use<> {
        let repeats = self.call.as_ref().and_then(|c| c.retry_of);
        repeats.into_iter().chain(self.within())
    }

    pub fn is_lost(&self) -> bool {
        self.kind == Kind::Call && self.state == State::Unknown
    }
}

/// The scope of calls outside items and steps with retries: the iteration.
pub fn iteration_scope(iteration: i64) -> Arc<str> {
    format!("i{iteration}").into()
}
