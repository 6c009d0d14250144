//! Errors of unusable input: a file, a name, or standard input.

use std::{io, path::PathBuf};

use crate::{
    program::exit_code::{REFUSED, USAGE},
    settings::{env_file, prices},
};

#[derive(Debug, thiserror::Error)]
pub enum InputError {
    #[error(transparent)]
    Prices(#[from] prices::Error),
    #[error("the API token file {}: {why}", .path.display())]
    ApiToken { path: PathBuf, why: String },
    #[error("no policy {name:?}")]
    UnknownPolicy { name: String, known: Vec<String> },
    #[error("no upstream is named {name:?} here")]
    UnknownUpstream { name: String },
    #[error("--stdin {path}: {why}")]
    Iteration { path: String, why: String },
    #[error(transparent)]
    EnvFile(#[from] env_file::Error),
    #[error("cannot read standard input: {0}")]
    Stdin(io::Error),
    #[error("cannot work on {}: {why}", .path.display())]
    Results { path: PathBuf, why: io::Error },
    #[error("reference {name}: {why}")]
    Reference { name: String, why: io::Error },
    #[error("cannot read the dump {}: {why}", .path.display())]
    NoDump { path: PathBuf, why: io::Error },
    #[error("there is no {}", .path.display())]
    NoSettings { path: PathBuf },
    #[error("cannot record what you trust of {}: {why}", .path.display())]
    Trust { path: PathBuf, why: io::Error },
    #[error("the dump, line {line}: {why}")]
    Dump { line: usize, why: String },
}

impl InputError {
    /// Returns the stable code, by which programs tell errors apart, and the exit code.
    pub fn fact(&self) -> (&'static str, u8) {
        match self {
            InputError::Prices(_) => ("bad_prices", USAGE),
            InputError::ApiToken { .. } => ("bad_api_token_file", USAGE),
            InputError::UnknownPolicy { .. } => ("unknown_policy", USAGE),
            InputError::UnknownUpstream { .. } => ("unknown_upstream", USAGE),
            InputError::Iteration { .. } => ("stdin", USAGE),
            InputError::Stdin(_) => ("stdin", REFUSED),
            InputError::EnvFile(_) => ("bad_env_file", USAGE),
            InputError::Results { .. } => ("results_unreadable", REFUSED),
            InputError::Reference { .. } => ("unreadable_reference", REFUSED),
            InputError::NoSettings { .. } => ("no_settings", REFUSED),
            InputError::Trust { .. } => ("trust_not_kept", REFUSED),
            InputError::NoDump { .. } | InputError::Dump { .. } => ("bad_dump", REFUSED),
        }
    }

    /// Returns the hint that is printed below the error: what to do about it; `None` if there is none.
    pub fn hint(&self) -> Option<String> {
        let hint = match self {
            InputError::Prices(e) => e.hint(),
            InputError::ApiToken { .. } => "for example: (umask 077; openssl rand -hex 32 > FILE)",
            InputError::UnknownPolicy { known, .. } if known.is_empty() => {
                "write it into outlast.toml, as [policies.NAME]: see docs/guides/approvals.md"
            }
            InputError::UnknownPolicy { known, .. } => {
                return Some(format!("there are: {}", known.join(", ")));
            }
            InputError::UnknownUpstream { .. } => {
                "upstreams are named in ~/.config/outlast/outlast.toml, as [upstreams.NAME]"
            }
            InputError::Iteration { .. } => {
                "each iteration reads it anew; what it is to begin with has to be a readable file"
            }
            InputError::EnvFile(_) => "wanted a file of NAME=VALUE lines, which each start of the run reads",
            InputError::Stdin(_) => return None,
            InputError::Results { .. } => "give a JSONL file of results; nothing was changed",
            InputError::Reference { .. } => {
                "its digest cannot be taken, and nothing was kept; make it readable"
            }
            InputError::NoSettings { .. } => "what is trusted is the outlast.toml of the current directory",
            InputError::Trust { .. } => {
                "what you trust is kept in ~/.config/outlast/trusted; nothing was changed"
            }
            InputError::NoDump { .. } => "`outlast state dump > FILE` writes one",
            InputError::Dump { line: 1, .. } => {
                "nothing was restored; `outlast state dump > FILE` writes a dump"
            }
            InputError::Dump { .. } => {
                "what came before that line was restored; the same restore goes on behind it"
            }
        };
        Some(hint.into())
    }
}
