//! Nesting: work done in an open item or step belongs to it and is charged to it.

use std::sync::Arc;

use crate::{engine::prelude::*, journal::scope, run::Own};

/// Checks that the entry and everything around it are items or steps that are open in the actor's attempt.
pub fn check(l: &Loaded, actor: &Actor, seq: Seq) -> Result<(), Error> {
    let not = Error::NotWithin { seq: seq.0 };
    let mut next = Some(seq);
    while let Some(seq) = next {
        let open = l.entry(actor.run, seq).filter(|e| {
            matches!(e.kind, Kind::Item | Kind::Step) && e.state == State::Open && e.attempt == actor.attempt
        });
        next = open.ok_or_else(|| not.clone())?.within();
    }
    Ok(())
}

/// Returns the scope of the calls made in the entry; `None` if it can hold none.
pub fn calls(l: &Loaded, run: RunNo, seq: Seq) -> Option<Arc<str>> {
    scope::calls_in(l.entry(run, seq)?, &|seq| l.entry(run, seq))
}

/// Returns the items and steps around an entry, innermost first.
pub fn around(l: &Loaded, run: RunNo, seq: Seq) -> Vec<Seq> {
    let mut out = Vec::new();
    let mut next = l.entry(run, seq).and_then(Entry::within);
    while let Some(seq) = next {
        out.push(seq);
        next = l.entry(run, seq).and_then(Entry::within);
    }
    out
}

/// Returns whether an item or step around the entry is done, so that nobody asks for the entry's answer again.
pub fn is_over(l: &Loaded, run: RunNo, seq: Seq) -> bool {
    around(l, run, seq).into_iter().any(|s| l.entry(run, s).is_some_and(|e| e.state == State::Done))
}

/// Calls as they were before an operation changed them.
pub struct Charged(Vec<(RunNo, Seq, Own)>);

impl Charged {
    pub fn of(l: &Loaded) -> Charged {
        let calls = l.all::<Entry>().filter(|e| e.kind == Kind::Call);
        Charged(calls.map(|e| (e.run, e.seq, Own::of(e))).collect())
    }

    /// Adds what changed in each call since [`Charged::of`] to the sums of its run, and its amounts to the items and steps
    /// around it.
    pub fn post(self, l: &mut Loaded) -> Result<(), Error> {
        for (run, seq, before) in self.0 {
            let after = l.entry(run, seq).map_or(before, Own::of);
            if after == before {
                continue;
            }
            l.run_mut(run)?.own.replace(&before, &after);
            let posted =
                Amounts::of(after.cost_nano_usd - before.cost_nano_usd, after.tokens - before.tokens)
                    .with(Unit::Calls, after.calls - before.calls);
            for outer in around(l, run, seq) {
                if let Some(e) = l.entry_mut(run, outer).filter(|_| !posted.is_zero()) {
                    e.spent += posted;
                }
            }
        }
        Ok(())
    }
}
