//! Errors of unusable input: a file, a name, or standard input.

use std::{io, path::PathBuf};

use crate::{
    program::exit_code::{REFUSED, USAGE},
    settings::{env_file, prices},
};

error_rows! {
    #[derive(Debug, thiserror::Error)]
    pub enum InputError {
        #[error(transparent)]
        Prices(#[from] prices::Error as e) => ("bad_prices", USAGE), e.hint();
        #[error("the API token file {}: {why}", .path.display())]
        ApiToken { path: PathBuf, why: String } => ("bad_api_token_file", USAGE),
            "for example: (umask 077; openssl rand -hex 32 > FILE)";
        #[error("no policy {name:?}")]
        UnknownPolicy { name: String, known: Vec<String> } => ("unknown_policy", USAGE), match known.as_slice() {
            [] => "write it into outlast.toml, as [policies.NAME]: see docs/guides/approvals.md".into(),
            known => format!("there are: {}", known.join(", ")),
        };
        #[error("no upstream is named {name:?} here")]
        UnknownUpstream { name: String } => ("unknown_upstream", USAGE),
            "upstreams are named in ~/.config/outlast/outlast.toml, as [upstreams.NAME]";
        #[error("--stdin {path}: {why}")]
        Iteration { path: String, why: String } => ("stdin", USAGE),
            "each iteration reads it anew; what it is to begin with has to be a readable file";
        #[error("cannot read standard input: {0}")]
        Stdin(io::Error as e) => ("stdin", REFUSED);
        #[error(transparent)]
        EnvFile(#[from] env_file::Error as e) => ("bad_env_file", USAGE),
            "wanted a file of NAME=VALUE lines, which each start of the run reads";
        #[error("cannot work on {}: {why}", .path.display())]
        Results { path: PathBuf, why: io::Error } => ("results_unreadable", REFUSED),
            "give a JSONL file of results; nothing was changed";
        #[error("reference {name}: {why}")]
        Reference { name: String, why: io::Error } => ("unreadable_reference", REFUSED),
            "its digest cannot be taken, and nothing was kept; make it readable";
        #[error("there is no {}", .path.display())]
        NoSettings { path: PathBuf } => ("no_settings", REFUSED),
            "what is trusted is the outlast.toml of the current directory";
        #[error("cannot record what you trust of {}: {why}", .path.display())]
        Trust { path: PathBuf, why: io::Error } => ("trust_not_kept", REFUSED),
            "what you trust is kept in ~/.config/outlast/trusted; nothing was changed";
        #[error("cannot read the dump {}: {why}", .path.display())]
        NoDump { path: PathBuf, why: io::Error } => ("bad_dump", REFUSED), "`outlast state dump > FILE` writes one";
        #[error("the dump, line {line}: {why}")]
        Dump { line: usize, why: String } => ("bad_dump", REFUSED),
            "nothing was restored; `outlast state dump > FILE` writes a dump";
    }
}
