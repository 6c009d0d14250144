//! The life of an entry, whatever its kind: it is opened, held by an opening, and closed.

use std::sync::Arc;

use crate::engine::prelude::*;

/// Returns the rows that `entry` and `open_entry` need.
pub fn needs(opening: &Opening) -> Vec<Need> {
    vec![Need::Run(opening.run), Need::Entry(opening.run, opening.seq)]
}

/// Returns the entry of `opening`, if the opening still has it and `closes` accepts its kind.
///
/// Errors: `UnknownEntry` when there is none: its opening was lost before it was on disk, or the kind is another;
/// `AlreadyTaken` when another opening has the entry, or its number.
pub fn entry<'a>(
    l: &'a Loaded,
    opening: &Opening,
    closes: impl Fn(Kind) -> bool,
) -> Result<&'a Entry, Error> {
    let (id, seq) = (&l.run(opening.run)?.id, opening.seq.0);
    let entry = l.entry(opening.run, opening.seq).filter(|e| closes(e.kind));
    let entry = entry.ok_or_else(|| Error::UnknownEntry { id: id.to_string(), seq })?;
    if Opening::of(entry) == Some(*opening) { Ok(entry) } else { Err(Error::AlreadyTaken { seq }) }
}

/// Returns the entry that `opening` opened, if the entry is still open. `closes` returns whether the
/// operation may close an entry of a kind. Errors: those of `entry`, and `AlreadySettled` for a closed entry.
pub fn open_entry<'a>(
    l: &'a mut Loaded,
    opening: &Opening,
    closes: impl Fn(Kind) -> bool,
) -> Result<&'a mut Entry, Error> {
    match entry(l, opening, closes)?.state {
        State::Open => of(l, opening.run, opening.seq),
        state => Err(Error::AlreadySettled { seq: opening.seq.0, state: state.name() }),
    }
}

/// Appends an entry other than a call to the journal.
pub fn append<'a>(
    l: &'a mut Loaded,
    actor: &Actor,
    kind: Kind,
    state: State,
    scope: impl Into<Arc<str>>,
    key: Option<String>,
    now: Micros,
) -> Result<&'a mut Entry, Error> {
    let run = l.run_mut(actor.run)?;
    let seq = run.next_seq;
    run.next_seq = Seq(seq.0 + 1);
    run.closed += i64::from(state == State::Done);
    l.insert_entry(Entry {
        instance: Some(actor.instance),
        key,
        ..Entry::new(actor.run, seq, kind, state, actor.attempt, scope.into(), now)
    });
    of(l, actor.run, seq)
}

/// Closes an entry other than a call. One that is done counts as progress of its run.
pub fn close(l: &mut Loaded, run: RunNo, seq: Seq, state: State, now: Micros) -> Result<&mut Entry, Error> {
    l.run_mut(run)?.closed += i64::from(state == State::Done);
    let entry = of(l, run, seq)?;
    (entry.state, entry.closed_at) = (state, Some(now));
    Ok(entry)
}

/// Returns an entry that the operation has loaded.
pub fn of(l: &mut Loaded, run: RunNo, seq: Seq) -> Result<&mut Entry, Error> {
    l.entry_mut(run, seq).ok_or(Error::NotLoaded("the entry"))
}
