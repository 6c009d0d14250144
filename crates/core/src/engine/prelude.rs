//! Names that most verbs use: the rows that they load and change, the numbers of those, and the rules that they share.

pub use serde::{Deserialize, Serialize};

pub use crate::{
    engine::{
        Actor, Change, Error, Loaded, Need,
        rule::{doubt, guard, life, taking, windows, within},
    },
    envelope::{Amounts, Budget, Envelope, Limits, Refusal, Unit},
    journal::{Entry, Kind, Opening, Payload, Role, State, iteration_scope},
    run::{
        Attempt, Exit, Instance, Lease, Life, Run, Spec, Status,
        status::{self, Event},
    },
    state::Name,
    words::{
        AttemptNo, BudgetNo, Digest, EnvelopeNo, Fence, InstanceNo, MatchKey, Micros, Row, RunId, RunNo, Seq,
        Slot,
    },
};
