//! The agent's standard input: each attempt reads it from the first byte.

use std::{
    fs::File,
    io::{Seek as _, Write as _},
    sync::Arc,
};

use outlast_core::{
    journal::Role,
    run::Command,
    store::{RunView, Store},
};

use crate::program::error::CliError;
use outlast_process::spawn::Stdin;

/// Returns the agent's standard input: the bytes stored with the run, else this process's terminal, else nothing.
pub fn of(kept: Option<&[u8]>) -> std::io::Result<Stdin> {
    match kept {
        Some(bytes) => {
            let fd = rustix::fs::memfd_create("outlast-stdin", rustix::fs::MemfdFlags::CLOEXEC)?;
            let mut file = File::from(fd);
            file.write_all(bytes)?;
            file.rewind()?;
            Ok(Stdin::File(Arc::new(file)))
        }
        None => {
            use std::io::IsTerminal as _;
            let terminal = std::io::stdin().is_terminal();
            Ok(if terminal { Stdin::Inherit } else { Stdin::Null })
        }
    }
}

pub fn kept(store: &dyn Store, view: &RunView, command: &Command) -> Result<Option<Vec<u8>>, CliError> {
    if !command.stdin_kept {
        return Ok(None);
    }
    let Some(kept) = store.payload(view.run.no, outlast_core::words::id::Seq(0), Role::Stdin)? else {
        return Ok(Some(Vec::new()));
    };
    let bytes = kept.decode().map_err(|e| outlast_core::store::Error::Corrupt {
        what: format!("the kept standard input of {}: {e}", view.run.id),
    })?;
    Ok(Some(bytes.to_vec()))
}
