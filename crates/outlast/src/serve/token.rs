//! File of API tokens.

use std::{fs, os::unix::fs::MetadataExt as _, path::Path};

use outlast_server::door::ApiTokens;

use crate::program::error::{CliError, InputError};

/// Reads the one API token of a file, as a client shows it. Errors: those of [`read_tokens`]; several tokens.
pub fn read_token(path: &Path) -> Result<String, CliError> {
    let several = || InputError::ApiToken { path: path.to_owned(), why: "wanted one token in it".into() };
    Ok(read_tokens(path)?.only().ok_or_else(several)?.to_owned())
}

/// Reads the API tokens of a file: one in each line, with its bearer's name before it or without. Errors: a token of fewer
/// than 16 characters, a line that is none, or a file that others can read.
pub fn read_tokens(path: &Path) -> Result<ApiTokens, CliError> {
    let bad = |why: String| InputError::ApiToken { path: path.to_owned(), why };
    let meta = fs::metadata(path).map_err(|e| bad(e.to_string()))?;
    if meta.mode() & 0o077 != 0 {
        return Err(bad(format!(
            "it has mode {:o}, and others must not read it (wanted 0600)",
            meta.mode() & 0o777
        ))
        .into());
    }
    let text = fs::read_to_string(path).map_err(|e| bad(e.to_string()))?;
    Ok(ApiTokens::parse(&text).map_err(|e| bad(e.to_string()))?)
}
