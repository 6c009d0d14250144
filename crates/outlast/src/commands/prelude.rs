//! Names that most commands use: the store and its nouns, the page and its words, errors and the finding of runs.

pub use std::{path::Path, time::Duration};

pub use clap::{Args, Subcommand};
pub use outlast_core::{
    engine::act::InName,
    envelope::unit::Unit,
    journal::{Entry, Kind, State},
    reads::{entries, items, runs},
    run::{attempt::Attempt, status::Status},
    store::{self, Ask, Durability, RunFilter, RunView, Store},
    words::id::{AttemptNo, Micros, RunId, RunNo, Seq},
};
pub use outlast_view::{self as view, shape};
pub use serde::Serialize;
pub use serde_json::{Map, Value, json};

pub use super::{Desk, FOLLOW};
pub use crate::{
    cli::values,
    program::{
        context::Context,
        error::{CliError, CommandError, FilesError, InputError},
        exit_code,
        find::{self, Verb},
        jsonl,
        say::say,
    },
    render::{
        amount::{amount, cost, some, unit_word, unpaid, usd},
        entry,
        look::{self, Look, Page, Paint},
        next::{ChangedRun, Next, next, next_with},
        short::called,
        table::{Cell, Table},
        text::{clean, clean_line, json_or_text},
        time,
    },
    settings::surroundings::Surroundings,
};
