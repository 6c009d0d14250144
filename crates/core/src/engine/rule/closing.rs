//! Closings: whether an opening still has its entry.

use crate::{
    engine::{Error, Loaded, Need},
    journal::{Entry, Kind, Opening, State},
};

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
    l: &'a Loaded,
    opening: &Opening,
    closes: impl Fn(Kind) -> bool,
) -> Result<&'a Entry, Error> {
    let entry = entry(l, opening, closes)?;
    match entry.state {
        State::Open => Ok(entry),
        state => Err(Error::AlreadySettled { seq: opening.seq.0, state: state.name() }),
    }
}
