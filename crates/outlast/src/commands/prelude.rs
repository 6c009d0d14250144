//! Names that most commands use: the store and its nouns, the page and its words, errors and the finding of runs.

pub use std::{
    collections::{BTreeMap, BTreeSet},
    fs, io,
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

pub use clap::{Args, Subcommand};
pub use outlast_core::{
    engine::act::InName,
    envelope::{Limits, unit::Unit},
    journal::{Entry, Kind, State},
    reads::{
        self, entries,
        lives::{self, Drivers},
        runs, unheld,
    },
    run::{Run, attempt::Attempt, status::Status},
    store::{self, Ask, Durability, RunFilter, RunView, Store},
    words::id::{AttemptNo, Micros, RunId, RunNo, Seq},
};
pub use outlast_process::identity;
pub use outlast_server::api::read::gist;
pub use outlast_view::{self as view, end_words, shape, with, with_children};
pub use serde::Serialize;
pub use serde_json::{Map, Value, json};

pub use super::{Desk, FOLLOW};
pub use crate::{
    cli::values,
    files::{Files, history::History, of_run},
    program::{
        context::Context,
        error::{CliError, CommandError, FilesError, InputError, MachineError, Result, RunError},
        exit_code,
        find::{self, Verb},
        jsonl,
        run_directory::RunDirectory,
        say::say,
    },
    render::{
        amount::{amount, cost, some, unpaid, usd},
        entry,
        look::{self, Look, Page, Paint},
        next::{ChangedRun, Next, next, next_with},
        short::{called, short},
        table::{Cell, Table},
        text::{clean, clean_line, exact_line, json_or_text},
        time::{self, When},
    },
    settings::{store_address::StoreAddress, surroundings::Surroundings},
    supervisor::strays,
};
