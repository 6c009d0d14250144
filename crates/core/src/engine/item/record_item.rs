//! Record item: closes an item with its outcome and the state it changed.

use crate::{
    engine::{
        Error,
        actor::Actor,
        item::claim_item::close_item,
        loaded::{Loaded, Need},
        rule::closing,
        state::put::Change,
    },
    journal::{
        Kind, Opening, Role,
        job::{ItemDetail, ItemEnded, MOST_FAILED_STARTS, Standing},
        payload::Payload,
    },
    words::id::Micros,
};

/// Outcome with which an item ends.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ItemEnd {
    /// The item's result.
    Done(Payload),
    /// The item's error, as the journal keeps it. The item runs again at the job's next start; after three failed
    /// starts it is dead.
    Failed(Payload),
    /// The function refused the item: no start runs it again while its content is the same.
    Skipped { reason: String },
}

/// Closes an open item; the state changes of the item commit with it.
///
/// Synced: a caller sees an item's result only after this. Authorised by the entry's own instance, even if its
/// attempt is over; with changes also by the fence of that attempt, without which nothing is recorded.
/// The item's cost is the sum of its calls, posted as they settled.
/// Errors: `AlreadyTaken` when another worker has it now; `AlreadySettled`; `UnknownEntry`; with changes
/// `LeaseLost` and `InstanceDead`.
#[derive(Clone, Debug)]
pub struct RecordItem {
    pub opening: Opening,
    pub end: ItemEnd,
    pub changes: Vec<Change>,
}

impl RecordItem {
    pub fn needs(&self) -> Vec<Need> {
        let mut needs = closing::needs(&self.opening);
        needs.extend(Change::needs_of_result(&self.changes, self.opening.run, self.opening.instance));
        needs
    }

    pub fn decide(&self, l: &mut Loaded, now: Micros) -> Result<ItemEnded, Error> {
        let Opening { run, seq, instance, .. } = self.opening;
        let entry = closing::open_entry(l, &self.opening, |kind| kind == Kind::Item)?;
        let (attempt, spent) = (entry.attempt, entry.spent);
        let mut detail = entry.item.as_deref().cloned().unwrap_or_default();
        let standing = self.standing(&mut detail);
        let tries = detail.tries();
        close_item(l, run, seq, detail, standing, now)?;
        if let ItemEnd::Done(value) | ItemEnd::Failed(value) = &self.end {
            l.keep_payload(run, seq, Role::Value, value.clone());
        }
        let actor = Actor { run, attempt, instance };
        Change::apply_with_result(&self.changes, l, actor, now)?;
        Ok(ItemEnded { seq, standing, tries, spent })
    }

    fn standing(&self, d: &mut ItemDetail) -> Standing {
        match &self.end {
            ItemEnd::Done(_) => Standing::Done,
            ItemEnd::Skipped { reason } => {
                d.reason = Some(reason.clone());
                Standing::Skipped
            }
            ItemEnd::Failed(_) => {
                d.failed_starts += 1;
                if d.failed_starts < MOST_FAILED_STARTS {
                    return Standing::Failed;
                }
                d.reason = Some(format!("it failed in {} starts", d.failed_starts));
                Standing::Dead
            }
        }
    }
}
