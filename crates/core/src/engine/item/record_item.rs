//! Record item: closes an item with its outcome and the state it changed.

use crate::{
    engine::{
        Error,
        actor::Actor,
        item::claim_item::close_item,
        loaded::{Loaded, Need, NewPayload},
        state::put::Change,
    },
    journal::{
        Entry, Kind, Role, State,
        job::{ItemDetail, ItemEnded, MOST_FAILED_STARTS, Standing},
        payload::Payload,
    },
    words::id::{InstanceNo, Micros, RunNo, Seq},
};

/// Outcome with which an item ends.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ItemEnd {
    /// The item's result.
    Done(Payload),
    /// The item's error as journaled. It runs again at the next start; after three failed starts it is dead.
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
    pub run: RunNo,
    pub seq: Seq,
    pub instance: InstanceNo,
    pub end: ItemEnd,
    pub changes: Vec<Change>,
}

impl RecordItem {
    pub fn needs(&self) -> Vec<Need> {
        let mut needs = vec![Need::Run(self.run), Need::Entry(self.run, self.seq)];
        needs.extend(Change::needs_of_result(&self.changes, self.run, self.instance));
        needs
    }

    pub fn decide(&self, l: &mut Loaded, now: Micros) -> Result<ItemEnded, Error> {
        let entry = open_under(l, self.run, self.seq, self.instance)?;
        let (attempt, spent) = (entry.attempt, entry.spent);
        let mut detail = entry.item.as_deref().cloned().unwrap_or_default();
        let standing = self.standing(&mut detail);
        let tries = detail.tries();
        close_item(l, self.run, self.seq, detail, standing, now)?;
        if let ItemEnd::Done(value) | ItemEnd::Failed(value) = &self.end {
            l.payloads.push(NewPayload {
                run: self.run,
                seq: self.seq,
                role: Role::Value,
                payload: value.clone(),
            });
        }
        let actor = Actor { run: self.run, attempt, instance: self.instance };
        Change::apply_with_result(&self.changes, l, actor, now)?;
        Ok(ItemEnded { seq: self.seq, standing, tries, spent })
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

/// Returns the item's entry, if it is open under this instance.
pub fn open_under(l: &Loaded, run: RunNo, seq: Seq, instance: InstanceNo) -> Result<&Entry, Error> {
    let id = l.run(run)?.id.to_string();
    let entry =
        l.entry(run, seq).filter(|e| e.kind == Kind::Item).ok_or(Error::UnknownEntry { id, seq: seq.0 })?;
    if entry.instance != Some(instance) {
        return Err(Error::AlreadyTaken { seq: seq.0 });
    }
    if entry.state != State::Open {
        return Err(Error::AlreadySettled { seq: seq.0, state: entry.state.name() });
    }
    Ok(entry)
}
