//! Verbs on the items of a batch: claim, record, give back, reset, and the number that is expected.

use crate::{
    engine::prelude::*,
    journal::{
        ItemClaim, ItemEnded, ItemRun, OnChange,
        job::{ItemDetail, MOST_DEATHS, MOST_FAILED_STARTS, SCOPE, Standing},
        scope,
    },
};

/// Claims the item `key` of a job, or says why there is nothing to run.
///
/// `Committed`: losing the claim to power loss only makes the item look unstarted, and its first call syncs it.
/// `Synced` where the function has effects without calls.
/// An item that is open under a live attempt is `Held`. An item whose process died moves to this worker and its try
/// continues: no new try, but one more death. An item that failed since this start of the job is not run again before
/// the next start.
/// Errors: `NotAJob`; `LeaseLost`, `RunHalted`, `NotRunning` and `RunEnded` write nothing.
#[derive(Clone, Debug)]
pub struct ClaimItem {
    pub actor: Actor,
    pub slot: Slot,
    pub key: String,
    /// Index of the item in the caller's input, from 0.
    pub index: i64,
    /// Digest of the item's content, compared with the recorded one where both are known; `None` if not known.
    pub content: Option<Digest>,
    pub version: Option<Digest>,
    /// Effect if the item's content differs from the one in its last entry.
    pub on_change: OnChange,
    /// Effect if the version of the code differs from the one in the item's last entry.
    pub on_version: OnChange,
    /// Whether nothing else runs in this process, so that an item on its last try may be claimed.
    pub alone: bool,
}

impl ClaimItem {
    pub fn needs(&self) -> Vec<Need> {
        let run = self.actor.run;
        let more = [Need::OpenAttempts(run), Need::Item(run, self.key.clone())];
        guard::needs(&self.actor, self.slot, more)
    }

    pub fn decide(&self, l: &mut Loaded, now: Micros) -> Result<ItemClaim, Error> {
        guard::drives(l, &self.actor)?;
        is_job(l, self.actor.run)?;
        let Some((old, detail)) = newest(l, self.actor.run, &self.key) else {
            let first = ItemDetail { try_no: 1, first_try: 1, ..ItemDetail::default() };
            return self.begin(l, first, None, now);
        };
        let ended = ItemClaim::Ended { seq: old.seq, standing: detail.standing };
        let change = self.change(&detail);
        match detail.standing {
            Standing::Open => self.take_over(l, &old, detail, now),
            Standing::Done | Standing::Skipped | Standing::Dead => match change {
                Some(OnChange::Rerun) => {
                    let next = ItemDetail { failed_starts: 0, deaths: 0, ..anew(&detail) };
                    self.begin(l, next, Some(old.seq), now)
                }
                Some(OnChange::Fail) if detail.standing != Standing::Dead => {
                    Ok(ItemClaim::Changed { seq: old.seq })
                }
                _ => Ok(ended),
            },
            Standing::Failed if self.failed_in_this_start(l, &old) => Ok(ended),
            Standing::Failed => {
                let next = if change == Some(OnChange::Rerun) { anew(&detail) } else { again(&detail) };
                self.begin(l, next, Some(old.seq), now)
            }
        }
    }

    /// Returns the effect of a change of content or code; `None` if nothing is known to have changed.
    fn change(&self, d: &ItemDetail) -> Option<OnChange> {
        let differs = |a: Option<Digest>, b: Option<Digest>| a.zip(b).is_some_and(|(a, b)| a != b);
        let content = differs(self.content, d.content).then_some(self.on_change);
        let version = differs(self.version, d.version).then_some(self.on_version);
        let either = |wanted: OnChange| content == Some(wanted) || version == Some(wanted);
        [OnChange::Fail, OnChange::Rerun, OnChange::Keep].into_iter().find(|w| either(*w))
    }

    /// Returns whether the item failed in this start. A start is one attempt of each of its workers: the item did if
    /// its worker still lives, or if it failed after this worker began.
    fn failed_in_this_start(&self, l: &Loaded, old: &Entry) -> bool {
        let began = l.attempt(self.actor.run, self.actor.attempt).map(|a| a.started_at);
        old.attempt >= self.actor.attempt || l.is_open(old.run, old.attempt) || old.closed_at > began
    }

    fn begin(
        &self,
        l: &mut Loaded,
        detail: ItemDetail,
        old: Option<Seq>,
        now: Micros,
    ) -> Result<ItemClaim, Error> {
        guard::may_open(l, self.actor.run)?;
        let detail = ItemDetail { index: self.index, content: self.content, version: self.version, ..detail };
        let seq = open_item(l, &self.actor, &self.key, detail.clone(), old, now)?;
        Ok(self.claimed(l, seq, &detail, false))
    }

    /// Claims an open item: a live worker has it, its process died, or it was given back.
    fn take_over(
        &self,
        l: &mut Loaded,
        old: &Entry,
        mut detail: ItemDetail,
        now: Micros,
    ) -> Result<ItemClaim, Error> {
        let holder = old.instance.and_then(|no| l.instance(no)).map(|i| i.life);
        if holder == Some(Life::Live) && l.is_open(old.run, old.attempt) {
            return Ok(ItemClaim::Held { seq: old.seq });
        }
        guard::may_open(l, self.actor.run)?;
        let mut continued = true;
        match self.change(&detail) {
            Some(OnChange::Fail) => return Ok(ItemClaim::Changed { seq: old.seq }),
            Some(OnChange::Rerun) => {
                detail = ItemDetail { failed_starts: 0, deaths: 0, ..anew(&detail) };
                continued = false;
            }
            _ => detail.deaths += i64::from(holder == Some(Life::Dead)),
        }
        if detail.deaths >= MOST_DEATHS {
            detail.reason = Some(format!("its process died {} times while it ran", detail.deaths));
            close_item(l, old.run, old.seq, detail, Standing::Dead, now)?;
            return Ok(ItemClaim::Ended { seq: old.seq, standing: Standing::Dead });
        }
        if detail.deaths == MOST_DEATHS - 1 && !self.alone {
            return Ok(ItemClaim::Suspect { seq: old.seq, deaths: detail.deaths });
        }
        let detail = ItemDetail {
            index: self.index,
            content: self.content.or(detail.content),
            version: self.version.or(detail.version),
            ..detail
        };
        let claimed = self.claimed(l, old.seq, &detail, continued);
        if let Some(e) = l.take_over(&self.actor, old.seq) {
            e.item = Some(Box::new(detail));
        }
        Ok(claimed)
    }

    fn claimed(&self, l: &Loaded, seq: Seq, d: &ItemDetail, continued: bool) -> ItemClaim {
        ItemClaim::Run(ItemRun {
            opening: l.opening(&self.actor, seq),
            try_no: d.try_no,
            tries: d.tries(),
            continued,
            deaths: d.deaths,
            steps: scope::item_steps(&self.key, d.generation),
        })
    }
}

/// Returns the details of an ended item's next try, in which the results of its finished steps are reused.
pub fn again(d: &ItemDetail) -> ItemDetail {
    ItemDetail {
        try_no: d.try_no + 1,
        first_try: d.try_no + 1,
        standing: Standing::Open,
        reason: None,
        ..d.clone()
    }
}

/// Returns the next try of an item whose content or code changed: neither steps nor answers are reused.
pub fn anew(d: &ItemDetail) -> ItemDetail {
    ItemDetail { generation: d.generation + 1, root: d.generation + 1, ..again(d) }
}

/// Returns the id of a run that is a job. Errors: `NotAJob`.
pub fn is_job(l: &Loaded, run: RunNo) -> Result<String, Error> {
    let run = l.run(run)?;
    let id = run.id.to_string();
    if run.job.is_some() { Ok(id) } else { Err(Error::NotAJob { id }) }
}

/// Returns the newest entry of an item, as `Need::Item` loaded it; `None` if there is none.
pub fn newest(l: &Loaded, run: RunNo, key: &str) -> Option<(Entry, ItemDetail)> {
    let entry =
        l.all::<Entry>().find(|e| e.run == run && e.kind == Kind::Item && e.key.as_deref() == Some(key))?;
    let detail = entry.item.as_deref().cloned().unwrap_or_default();
    Some((entry.clone(), detail))
}

/// Appends an entry for an item; `old` is its newest entry so far, which becomes history.
pub fn open_item(
    l: &mut Loaded,
    actor: &Actor,
    key: &str,
    detail: ItemDetail,
    old: Option<Seq>,
    now: Micros,
) -> Result<Seq, Error> {
    let seq = life::append(l, actor, Kind::Item, State::Open, SCOPE, Some(key.to_owned()), now)?.seq;
    let (mut before, mut earlier) = (None, Amounts::default());
    if let Some(e) = old.and_then(|old| l.entry_mut(actor.run, old)) {
        e.retried_by = Some(seq);
        before = e.item.as_ref().map(|d| d.standing);
        earlier = e.spent + e.item.as_ref().map_or_else(Amounts::default, |d| d.earlier);
    }
    if let Some(e) = l.entry_mut(actor.run, seq) {
        e.instance = Some(actor.instance).filter(|no| *no != InstanceNo::default());
        e.item = Some(Box::new(ItemDetail { earlier, ..detail }));
    }
    count(l, actor.run, before, Standing::Open)?;
    Ok(seq)
}

/// Closes an item's entry.
pub fn close_item(
    l: &mut Loaded,
    run: RunNo,
    seq: Seq,
    detail: ItemDetail,
    standing: Standing,
    now: Micros,
) -> Result<(), Error> {
    life::close(l, run, seq, standing.state(), now)?.item = Some(Box::new(ItemDetail { standing, ..detail }));
    count(l, run, Some(Standing::Open), standing)
}

fn count(l: &mut Loaded, run: RunNo, from: Option<Standing>, to: Standing) -> Result<(), Error> {
    if let Some(job) = &mut l.run_mut(run)?.job {
        if let Some(from) = from {
            *job.counts.of_mut(from) -= 1;
        }
        *job.counts.of_mut(to) += 1;
    }
    Ok(())
}

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
        Change::needs_of_result(&self.changes, &self.opening)
    }

    pub fn decide(&self, l: &mut Loaded, now: Micros) -> Result<ItemEnded, Error> {
        let Opening { run, seq, instance, .. } = self.opening;
        let entry = life::open_entry(l, &self.opening, |kind| kind == Kind::Item)?;
        let (attempt, spent) = (entry.attempt, entry.spent);
        let mut detail = entry.item.as_deref().cloned().unwrap_or_default();
        let standing = self.standing(&mut detail);
        let (tries, spent) = (detail.tries(), spent + detail.earlier);
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

/// Gives a claimed item back: its call was refused, its run halted, or its worker stops.
///
/// `Committed`. No try, failure or death is counted; the next claim continues its try, with the answers
/// that were paid. Authorised by the entry's own instance.
/// Errors: `AlreadyTaken`, `AlreadySettled`, `UnknownEntry`.
#[derive(Clone, Debug)]
pub struct ReturnItem {
    pub opening: Opening,
}

impl ReturnItem {
    pub fn needs(&self) -> Vec<Need> {
        life::needs(&self.opening)
    }

    pub fn decide(&self, l: &mut Loaded, _now: Micros) -> Result<(), Error> {
        life::open_entry(l, &self.opening, |kind| kind == Kind::Item)?.instance = None;
        Ok(())
    }
}

/// Takes back that the failure recorded as `seq` counts against its item: a condition outside of the item made it fail,
/// as a missing key does. Returns the item's standing: one that was dead by that failure is failed.
///
/// Synced. Not idempotent: the caller spares each failure once. An item that runs again, or did not fail, stays as it is.
/// Errors: `UnknownItem`, `NotAJob`.
#[derive(Clone, Debug)]
pub struct SpareItem {
    pub run: RunNo,
    pub key: String,
    pub seq: Seq,
}

impl SpareItem {
    pub fn needs(&self) -> Vec<Need> {
        vec![Need::Run(self.run), Need::Item(self.run, self.key.clone())]
    }

    pub fn decide(&self, l: &mut Loaded, _now: Micros) -> Result<Standing, Error> {
        let (id, key) = (is_job(l, self.run)?, self.key.clone());
        let (old, detail) = newest(l, self.run, &key).ok_or(Error::UnknownItem { id, key })?;
        let is_dead = detail.standing == Standing::Dead && detail.failed_starts >= MOST_FAILED_STARTS;
        if old.seq != self.seq
            || detail.failed_starts == 0
            || !(is_dead || detail.standing == Standing::Failed)
        {
            return Ok(detail.standing);
        }
        count(l, self.run, Some(detail.standing), Standing::Failed)?;
        let failed_starts = detail.failed_starts - 1;
        if let Some(e) = l.entry_mut(self.run, self.seq) {
            let spared = ItemDetail { failed_starts, standing: Standing::Failed, reason: None, ..detail };
            e.item = Some(Box::new(spared));
        }
        Ok(Standing::Failed)
    }
}

/// Makes an item pending again, with a new entry; its earlier outcome becomes history. Synced.
///
/// A completed job is interrupted by it, since it has an item to run.
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
        let id = is_job(l, self.run)?;
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
        if l.run(self.run)?.status == Status::Completed {
            let run = l.run_mut(self.run)?;
            guard::shift(run, Event::Reopen, now)?;
            run.error = Some("items of it are pending again".to_owned());
        }
        let nobody = Actor { run: self.run, attempt: old.attempt, instance: InstanceNo::default() };
        open_item(l, &nobody, &self.key, next, Some(old.seq), now)
    }
}

/// Records the number of items in the input that a start of the job has read, so that reads can tell how much is left.
///
/// A start with another input replaces the number. Nothing depends on it. Errors: `NotAJob`.
#[derive(Clone, Debug)]
pub struct ExpectItems {
    pub run: RunNo,
    pub items: i64,
    /// Number of recorded items that are not among them.
    pub vanished: i64,
}

impl ExpectItems {
    pub fn needs(&self) -> Vec<Need> {
        vec![Need::Run(self.run)]
    }

    pub fn decide(&self, l: &mut Loaded, _now: Micros) -> Result<(), Error> {
        is_job(l, self.run)?;
        if let Some(job) = &mut l.run_mut(self.run)?.job {
            (job.counts.expected, job.counts.vanished) = (self.items, self.vanished);
        }
        Ok(())
    }
}
