//! Deeds of a program in its run: what they are, and the operation of the engine that each of them is.

use outlast_core::{
    engine::{
        BeginStep, Change, Checkpoint, ClaimItem, CountLoop, ExpectItems, ItemEnd, NextTry, Op, Put, Record,
        RecordItem, ResolveStep, ReturnItem, Snapshot, SpareItem, StorePart,
        checkpoint::{Name as CheckpointName, OURS},
    },
    journal::{OnChange, Opening, Payload, Role, iteration_scope},
    state::Name,
    store::{self, Durability, Store},
    words::{Digest, Entropy, Seq},
};
use serde::{Deserialize, Deserializer};
use serde_json::value::RawValue;

use super::{Hand, How};
use crate::reservation;

/// Deed of a program, as REST has it in JSON. Values are any JSON, kept byte for byte.
#[derive(Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum Deed {
    /// Reads the steps that are recorded in the session's iteration, a page at a time.
    Steps {
        after: i64,
    },
    /// Reads the value recorded in an entry.
    Value {
        seq: i64,
    },
    /// Opens a step, or finds its recorded result.
    BeginStep {
        key: String,
        /// Scope of an item's steps, with the item's entry; none: the run's own steps.
        scope: Option<String>,
        within: Option<i64>,
        #[serde(default)]
        at_most_once: bool,
        #[serde(default)]
        retries: bool,
    },
    /// Closes a step with its result or error. With `again`, its next try follows.
    Record {
        seq: i64,
        #[serde(deserialize_with = "json")]
        value: Payload,
        #[serde(default)]
        failed: bool,
        #[serde(default)]
        again: bool,
        #[serde(default, deserialize_with = "changes")]
        changes: Vec<Change>,
    },
    /// Says what came of a step in doubt. `seq`: its newest entry, none if this program recorded it.
    ResolveStep {
        key: String,
        scope: Option<String>,
        seq: Option<i64>,
        #[serde(deserialize_with = "json")]
        value: Payload,
        #[serde(default)]
        failed: bool,
    },
    /// Counts a turn of the program's loop, once for a key.
    CountLoop {
        key: Option<String>,
    },
    SaveCheckpoint {
        name: String,
        #[serde(deserialize_with = "json")]
        value: Payload,
    },
    LatestCheckpoint {
        name: String,
    },
    /// Names the run's present point.
    NameSnapshot {
        name: String,
    },
    /// Changes the state under the attempt's fence.
    Put {
        #[serde(deserialize_with = "changes")]
        changes: Vec<Change>,
    },
    /// Reads a key of the state.
    Get {
        namespace: String,
        agent: String,
        key: String,
    },
    /// Reserves money for a call that does not go through the proxy.
    Reserve {
        label: String,
        nano_usd: u64,
        tokens: u64,
    },
    /// Settles a reserved call at its cost; none: it was never sent.
    Settle {
        seq: i64,
        nano_usd: Option<u64>,
        tokens: u64,
    },
    /// Reads a job's items, a page at a time.
    Items {
        after: i64,
    },
    ExpectItems {
        items: i64,
    },
    ClaimItem {
        key: String,
        index: i64,
        /// Digests of the item's content and of the code's version, of which a client sends the texts.
        #[serde(default, deserialize_with = "digest")]
        content: Option<Digest>,
        #[serde(default, deserialize_with = "digest")]
        version: Option<Digest>,
        #[serde(default)]
        on_change: OnChange,
        #[serde(default)]
        on_version: OnChange,
        #[serde(default)]
        alone: bool,
    },
    /// Begins the next try of an item or a step.
    NextTry {
        seq: i64,
    },
    RecordItem {
        seq: i64,
        #[serde(deserialize_with = "end")]
        end: ItemEnd,
        #[serde(default, deserialize_with = "changes")]
        changes: Vec<Change>,
        /// Whether the result lasts nowhere else, so that it is synced.
        #[serde(skip, default = "yes")]
        lasting: bool,
    },
    /// Gives an item back: it is pending again, and its claim counts neither as a try nor as a death.
    ReturnItem {
        seq: i64,
    },
    /// Takes back that the failure recorded as `seq` counts against its item.
    SpareItem {
        key: String,
        seq: i64,
    },
    /// Ends the session.
    End {
        how: How,
    },
}

/// Operation that a deed is.
pub struct Task {
    /// Parts of a long value, in order. Each is committed before the operation, in its own commit.
    pub parts: Vec<StorePart>,
    pub op: Op,
    pub durability: Durability,
    /// Whether something is opened or changed in the attempt's name, so that only the run's driver may do it. What is open
    /// is closed by who opened it.
    pub opens: bool,
}

/// Reason why a deed is no operation.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error(transparent)]
    Store(#[from] store::Error),
    #[error("a checkpoint's name cannot begin with {OURS:?}, had {0:?}")]
    CheckpointName(String),
    /// The run is completed: nothing is opened or changed in it.
    #[error("the run is completed, and only replays")]
    Replays,
    /// A read, or the end of a session, is no operation.
    #[error("the deed changes nothing")]
    NoOperation,
}

impl Hand {
    /// Returns the operation that a deed is. Openings survive `kill -9`, all else is on disk when it is answered. Only
    /// `ResolveStep` reads from the store.
    pub fn task(&self, store: &dyn Store, entropy: &dyn Entropy, deed: Deed) -> Result<Task, Error> {
        use Durability::{Committed, Synced};
        let mut opens = false;
        let mut attempt = || {
            opens = true;
            self.attempt.ok_or(Error::Replays)
        };
        let own = |scope: Option<String>| scope.map_or_else(|| iteration_scope(self.iteration), Into::into);
        let mut parts = Vec::new();
        let mut whole = |opening: Opening, value| {
            let (before, last) = StorePart::before(opening, Role::Value, value);
            parts = before;
            last
        };
        let (op, durability): (Op, _) = match deed {
            Deed::BeginStep { key, scope, within, at_most_once, retries } => {
                let ((actor, slot), within) = (attempt()?, within.map(Seq));
                let begin = BeginStep { actor, slot, scope: own(scope), key, within, retries, at_most_once };
                (begin.into(), if at_most_once { Synced } else { Committed })
            }
            Deed::Record { seq, value, failed, again, changes } => {
                let opening = self.opening(Seq(seq));
                let value = whole(opening, value);
                (Record { opening, value, failed, again, changes }.into(), Synced)
            }
            Deed::ResolveStep { key, scope, seq, value, failed } => {
                let instance = attempt()?.0.instance;
                let seen = match seq {
                    Some(seq) => store.entry(self.run, Seq(seq))?.and_then(|entry| entry.instance),
                    None => Some(instance),
                };
                let (run, scope, by) = (self.run, own(scope), Some(instance));
                (ResolveStep { run, scope, key, seen, by, value, failed }.into(), Synced)
            }
            Deed::CountLoop { key } => {
                let (actor, slot) = attempt()?;
                (CountLoop { actor, slot, iteration: self.iteration, key }.into(), Synced)
            }
            Deed::SaveCheckpoint { name, value } => {
                let (actor, slot) = attempt()?;
                let name = CheckpointName::of_agent(&*name).ok_or(Error::CheckpointName(name))?;
                (Checkpoint { actor, slot, name, value }.into(), Synced)
            }
            Deed::NameSnapshot { name } => {
                (Snapshot { run: self.run, id: self.id.clone(), name }.into(), Synced)
            }
            Deed::Put { changes } => {
                (Put { actor: Some(attempt()?), changes, transaction: None }.into(), Synced)
            }
            Deed::Reserve { label, nano_usd, tokens } => {
                let (actor, slot) = attempt()?;
                let at = (actor, slot, self.iteration);
                let admit = reservation::admission(at, &label, amount(nano_usd), amount(tokens), entropy);
                (admit.into(), Synced)
            }
            Deed::Settle { seq, nano_usd, tokens } => {
                let (actor, _) = self.attempt.ok_or(Error::Replays)?;
                let (opening, cost) = (self.opening(Seq(seq)), nano_usd.map(amount));
                (reservation::settlement(opening, actor.attempt, cost, amount(tokens)).into(), Synced)
            }
            Deed::ExpectItems { items } => {
                (ExpectItems { run: self.run, items, vanished: 0 }.into(), Committed)
            }
            Deed::ClaimItem { key, index, content, version, on_change, on_version, alone } => {
                let (actor, slot) = attempt()?;
                let claim =
                    ClaimItem { actor, slot, key, index, content, version, on_change, on_version, alone };
                (claim.into(), Committed)
            }
            Deed::NextTry { seq } => {
                let (actor, slot) = attempt()?;
                (NextTry { actor, slot, opening: self.opening(Seq(seq)) }.into(), Committed)
            }
            Deed::RecordItem { seq, end, changes, lasting } => {
                let opening = self.opening(Seq(seq));
                let end = match end {
                    ItemEnd::Done(value) => ItemEnd::Done(whole(opening, value)),
                    ItemEnd::Failed(value) => ItemEnd::Failed(whole(opening, value)),
                    skipped @ ItemEnd::Skipped { .. } => skipped,
                };
                (RecordItem { opening, end, changes }.into(), if lasting { Synced } else { Committed })
            }
            Deed::ReturnItem { seq } => {
                let opening = self.opening(Seq(seq));
                self.openings.lock().forget(self.run, Seq(seq));
                (ReturnItem { opening }.into(), Committed)
            }
            Deed::SpareItem { key, seq } => (SpareItem { run: self.run, key, seq: Seq(seq) }.into(), Synced),
            Deed::Steps { .. }
            | Deed::Value { .. }
            | Deed::LatestCheckpoint { .. }
            | Deed::Get { .. }
            | Deed::Items { .. }
            | Deed::End { .. } => return Err(Error::NoOperation),
        };
        Ok(Task { parts, op, durability, opens })
    }
}

fn amount(whole: u64) -> i64 {
    i64::try_from(whole).unwrap_or(i64::MAX)
}

fn yes() -> bool {
    true
}

fn encoded(value: &RawValue) -> Payload {
    Payload::encode(value.get().as_bytes())
}

fn json<'de, D: Deserializer<'de>>(from: D) -> Result<Payload, D::Error> {
    Ok(encoded(&Box::<RawValue>::deserialize(from)?))
}

fn digest<'de, D: Deserializer<'de>>(from: D) -> Result<Option<Digest>, D::Error> {
    Ok(Option::<String>::deserialize(from)?.map(|text| Digest::of(text.as_bytes())))
}

fn end<'de, D: Deserializer<'de>>(from: D) -> Result<ItemEnd, D::Error> {
    #[derive(Deserialize)]
    #[serde(rename_all = "snake_case")]
    enum End {
        Done(Box<RawValue>),
        Failed(Box<RawValue>),
        Skipped(String),
    }
    Ok(match End::deserialize(from)? {
        End::Done(value) => ItemEnd::Done(encoded(&value)),
        End::Failed(value) => ItemEnd::Failed(encoded(&value)),
        End::Skipped(reason) => ItemEnd::Skipped { reason },
    })
}

fn changes<'de, D: Deserializer<'de>>(from: D) -> Result<Vec<Change>, D::Error> {
    /// Change of the state. Without a value the key is deleted.
    #[derive(Deserialize)]
    #[serde(deny_unknown_fields)]
    struct StateChange {
        namespace: String,
        agent: String,
        key: String,
        #[serde(default, deserialize_with = "there")]
        value: Option<Box<RawValue>>,
        expected: Option<i64>,
    }
    let change = |one: StateChange| {
        let name = Name::new(one.namespace, one.agent, one.key);
        let change = match &one.value {
            Some(value) => Change::set(name, value.get().as_bytes()),
            None => Change::delete(name),
        };
        Change { expected: one.expected, ..change }
    };
    Ok(Vec::<StateChange>::deserialize(from)?.into_iter().map(change).collect())
}

/// Reads a value so that `null` becomes `Some`: only a missing member is `None`.
pub(crate) fn there<'de, D: Deserializer<'de>>(from: D) -> Result<Option<Box<RawValue>>, D::Error> {
    Box::<RawValue>::deserialize(from).map(Some)
}
