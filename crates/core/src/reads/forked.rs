//! Reads of forks: a store in which a fork shows the entries it shares as its own.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    sync::{Arc, Mutex, PoisonError},
};

use crate::{
    engine::{Op, Outcome},
    journal::{Entry, ItemRow, Payload, Role},
    run::Origin,
    store::{Answer, Durability, Error, Page, Question, Sought, StepRow, Store, Ticket, WHOLE_VALUE},
    words::{RunNo, Seq},
};

/// Largest number of runs whose origins are cached. Origins never change.
const KEPT: usize = 4096;

/// Store that adds the shared parts of forks to the reads of entries, items, steps and values of another store.
///
/// `entries` (the journal as it is printed) and `attempts` show only the run's own rows. A run that is no fork costs
/// one read of its row, once.
pub struct Forked {
    inner: Arc<dyn Store>,
    origins: Mutex<HashMap<RunNo, Arc<[Origin]>>>,
}

impl Forked {
    pub fn new(inner: Arc<dyn Store>) -> Self {
        Self { inner, origins: Mutex::default() }
    }

    fn origins(&self, run: RunNo) -> Result<Arc<[Origin]>, Error> {
        let known = || self.origins.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(origins) = known().get(&run) {
            return Ok(origins.clone());
        }
        // A run that does not exist yet may be created later.
        let Some(view) = self.inner.run(run)? else { return Ok(Arc::from([])) };
        let mut known = known();
        if known.len() >= KEPT {
            known.clear();
        }
        known.insert(run, view.run.origins.clone());
        Ok(view.run.origins)
    }

    /// Returns a page of the merged rows: the run's own, and those of each origin that pass its test.
    fn page<T>(
        &self,
        run: RunNo,
        (after, limit): (Seq, usize),
        seq_of: fn(&T) -> Seq,
        own: impl Fn(Seq, usize) -> Result<Vec<T>, Error>,
        shared: impl Fn(&Origin, Seq, usize) -> Result<Vec<(Seq, Option<T>)>, Error>,
    ) -> Result<Vec<T>, Error> {
        let origins = self.origins(run)?;
        if origins.first().is_none_or(|o| after >= o.seq) {
            return own(after, limit);
        }
        let mut whole: BTreeMap<Seq, T> = BTreeMap::new();
        let mut changed = self.changed(run, after, origins[0].seq)?;
        for origin in origins.iter() {
            let (mut from, mut taken) = (after, 0);
            while taken < limit {
                let page = shared(origin, from, limit)?;
                let full = page.len() == limit;
                from = page.last().map_or(from, |(seq, _)| *seq);
                for (seq, row) in page {
                    if let Some(row) = row.filter(|_| !changed.contains(&seq)) {
                        whole.entry(seq).or_insert(row);
                        taken += 1;
                    }
                }
                if !full || from >= origin.seq {
                    break;
                }
            }
            if origins.len() > 1 {
                changed.extend(self.changed(origin.run, after, origin.seq)?);
            }
        }
        whole.extend(own(after, limit)?.into_iter().map(|row| (seq_of(&row), row)));
        Ok(whole.into_values().take(limit).collect())
    }

    /// Returns the numbers of the entries after `after` and up to `upto` for which `run` has rows of its own: few in a
    /// fork, all of them in the run that wrote the entries.
    fn changed(&self, run: RunNo, after: Seq, upto: Seq) -> Result<BTreeSet<Seq>, Error> {
        let mut found = BTreeSet::new();
        let mut from = after;
        loop {
            let page = self.inner.entries(run, from, 256)?;
            let seqs: Vec<Seq> = page.iter().map(|e| e.seq).take_while(|seq| *seq <= upto).collect();
            let whole = seqs.len() == 256;
            from = seqs.last().copied().unwrap_or(from);
            found.extend(seqs);
            if !whole {
                return Ok(found);
            }
        }
    }

    /// Returns an item's result if it is small enough to be returned with the item.
    fn small_value(&self, run: RunNo, seq: Seq) -> Result<Option<Payload>, Error> {
        let value = self.inner.payload(run, seq, Role::Value)?;
        Ok(value.filter(|p| p.bytes.len() as i64 <= WHOLE_VALUE))
    }
}

impl Forked {
    fn any_entry(&self, run: RunNo, seq: Seq) -> Result<Option<Entry>, Error> {
        if let Some(own) = self.inner.entry(run, seq)? {
            return Ok(Some(own));
        }
        for origin in self.origins(run)?.iter().filter(|o| seq <= o.seq) {
            if let Some(e) = self.inner.entry(origin.run, seq)? {
                return Ok(origin.entry(run, e));
            }
        }
        Ok(None)
    }

    fn any_items(&self, run: RunNo, page: &Page) -> Result<Vec<(ItemRow, Option<Payload>)>, Error> {
        let shared = |o: &Origin, after, limit| {
            let rows =
                self.inner.items(o.run, &Page { after, limit, upto: o.seq.min(page.upto), values: false })?;
            rows.into_iter()
                .map(|(row, _)| {
                    let seq = row.seq;
                    let Some(row) = o.item(row) else { return Ok((seq, None)) };
                    let value = page.values.then(|| self.small_value(o.run, seq)).transpose()?.flatten();
                    Ok((seq, Some((row, value))))
                })
                .collect()
        };
        let own = |after, limit| self.inner.items(run, &Page { after, limit, ..*page });
        self.page(run, (page.after, page.limit), |(row, _)| row.seq, own, shared)
    }

    fn any_steps(
        &self,
        run: RunNo,
        after: Seq,
        limit: usize,
    ) -> Result<Vec<(StepRow, Option<Payload>)>, Error> {
        let shared = |o: &Origin, from, limit| {
            let rows = self.inner.steps(o.run, from, limit)?;
            let done = |row: &StepRow| o.was_done(row.seq, row.state, row.closed_at);
            Ok(rows.into_iter().map(|(row, v)| (row.seq, done(&row).then_some((row, v)))).collect())
        };
        let own = |from, limit| self.inner.steps(run, from, limit);
        self.page(run, (after, limit), |(row, _)| row.seq, own, shared)
    }

    fn any_newest(&self, run: RunNo, sought: &Sought) -> Result<Option<Entry>, Error> {
        if let Some(own) = self.inner.newest(run, sought)? {
            return Ok(Some(own));
        }
        for origin in self.origins(run)?.iter() {
            let sought = Sought { upto: origin.seq.min(sought.upto), ..sought.clone() };
            if let Some(e) = self.inner.newest(origin.run, &sought)? {
                return Ok(origin.entry(run, e));
            }
        }
        Ok(None)
    }

    fn any_payload(&self, run: RunNo, seq: Seq, role: Role) -> Result<Option<Payload>, Error> {
        if let Some(own) = self.inner.payload(run, seq, role)? {
            return Ok(Some(own));
        }
        for origin in self.origins(run)?.iter().filter(|o| seq <= o.seq) {
            if let Some(shared) = self.inner.payload(origin.run, seq, role)? {
                return Ok(Some(shared));
            }
        }
        Ok(None)
    }
}

impl Store for Forked {
    fn answer(&self, question: &Question) -> Result<Answer, Error> {
        Ok(match question {
            Question::Entry { run, seq } => Answer::Entry(self.any_entry(*run, *seq)?),
            Question::Items { run, page } => Answer::Items(self.any_items(*run, page)?),
            Question::Steps { run, after, limit } => Answer::Steps(self.any_steps(*run, *after, *limit)?),
            Question::Newest { run, sought } => Answer::Newest(self.any_newest(*run, sought)?),
            Question::Payload { run, seq, role } => Answer::Payload(self.any_payload(*run, *seq, *role)?),
            // A run's own rows, or rows that belong to no run.
            question => return self.inner.answer(question),
        })
    }

    fn submit(&self, op: Op, durability: Durability) -> Ticket {
        self.inner.submit(op, durability)
    }
    fn submit_here(&self, op: Op, durability: Durability) -> Ticket {
        self.inner.submit_here(op, durability)
    }
    fn ahead(&self, op: Op) -> Result<Result<Outcome, Error>, Op> {
        self.inner.ahead(op)
    }
    fn place(&self) -> String {
        self.inner.place()
    }
    fn within(&self) -> Option<&dyn Store> {
        Some(self.inner.as_ref())
    }
}
