//! Reset item: makes an item run again, by a person's order.

use serde::{Deserialize, Serialize};

use crate::{
    engine::{
        Error,
        actor::Actor,
        item::claim_item::{again, anew, is_job, newest, open_item},
        loaded::{Loaded, Need},
        rule::guard,
    },
    journal::job::{ItemDetail, Standing},
    words::id::{InstanceNo, Micros, RunNo, Seq},
};

/// Makes an item pending again, with a new entry; its earlier outcome becomes history. Synced.
///
/// A failed or dead item keeps its finished steps; a done or skipped item runs anew.
/// `reuse_answers` keeps the scope of its last try, so that paid answers replay to repaired code.
/// A pending item only loses its counts of failures and deaths.
/// Errors: `UnknownItem`; `ItemRunning` while a live worker has it; `NotAJob`.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct ResetItem {
    pub run: RunNo,
    pub key: String,
    pub reuse_answers: bool,
}

impl ResetItem {
    pub fn needs(&self) -> Vec<Need> {
        vec![Need::Run(self.run), Need::OpenAttempts(self.run), Need::Item(self.run, self.key.clone())]
    }

    pub fn decide(&self, l: &mut Loaded, now: Micros) -> Result<Seq, Error> {
        is_job(l, self.run)?;
        let id = l.run(self.run)?.id.to_string();
        let (old, detail) = newest(l, self.run, &self.key)
            .ok_or_else(|| Error::UnknownItem { id: id.clone(), key: self.key.clone() })?;
        let next = match detail.standing {
            Standing::Open => {
                if guard::lives(l, old.instance) && l.is_open(self.run, old.attempt) {
                    return Err(Error::ItemRunning { id, key: self.key.clone() });
                }
                if let Some(e) = l.entry_mut(self.run, old.seq) {
                    e.instance = None;
                    e.item = Some(Box::new(ItemDetail { failed_starts: 0, deaths: 0, ..detail }));
                }
                return Ok(old.seq);
            }
            Standing::Failed | Standing::Dead => again(&detail),
            Standing::Done | Standing::Skipped => anew(&detail),
        };
        let mut next = ItemDetail { failed_starts: 0, deaths: 0, ..next };
        if self.reuse_answers {
            (next.try_no, next.first_try, next.root) = (detail.try_no, detail.try_no, detail.root);
        }
        let nobody = Actor { run: self.run, attempt: old.attempt, instance: InstanceNo::default() };
        open_item(l, &nobody, &self.key, next, Some(old.seq), now)
    }
}
