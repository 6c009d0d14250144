//! Shapes of Outlast's JSON: what the command line prints with `--json`, REST answers, the page reads and Python parses.
//!
//! Each noun is one struct, so that a fact has one name everywhere. Three rules hold for all of them: a time is RFC 3339
//! in UTC with six digits after the second ([`Time`]); an amount of dollars is written twice ([`money`]); any other amount
//! is a whole number of the unit in its name. A face adds facts of its own to
//! a shape by [`with`], or flattens it into a shape of its own.
#![cfg_attr(test, allow(clippy::unwrap_used))]

use serde_json::{Value, json};

/// Declares a struct that is written as JSON, with `new`, which makes it from rows of the store. One row a fact: its name,
/// its type, and where its value comes from. What follows `let` in the head is bound for all rows.
#[macro_export]
macro_rules! shape {
    (
        $(#[$about:meta])*
        $vis:vis $name:ident($($from:ident: $source:ty),* $(; let $bound:pat = $value:expr)?) {
            $($(#[$attribute:meta])* $fact:ident: $kind:ty = $read:expr;)*
        }
    ) => {
        #[derive(Clone, Debug, ::serde::Serialize)]
        $(#[$about])*
        $vis struct $name {
            $($(#[$attribute])* $vis $fact: $kind,)*
        }

        impl $name {
            $vis fn new($($from: $source),*) -> $name {
                $(let $bound = $value;)?
                $name { $($fact: $read,)* }
            }
        }
    };
}

/// Returns a shape as JSON, with the members of `more` behind its own.
pub fn with(shape: impl serde::Serialize, more: Value) -> Value {
    let mut whole = json!(shape);
    if let (Value::Object(whole), Value::Object(more)) = (&mut whole, more) {
        whole.extend(more);
    }
    whole
}

mod attempt;
mod budget;
mod digest;
mod entry;
mod event;
pub mod money;
mod run;
mod spend;
mod time;

pub use attempt::{Attempt, Exit, Wait, end_words, exit_words};
pub use budget::{BudgetLine, NamedBudget, lines};
pub use digest::{Digest, DigestCost, DigestOutage, DigestRemoved, DigestRun, Standing};
pub use entry::{Approval, Entry, FileChange, Item};
pub use event::Event;
pub use run::{Fork, Job, Run, RunDetail, Tightest, job, listed, with_children};
pub use spend::{Plan, Spend};
pub use time::Time;
