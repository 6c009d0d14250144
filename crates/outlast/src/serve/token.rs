//! File of the API token.

use std::{fs, os::unix::fs::MetadataExt as _, path::Path};

use crate::program::error::{CliError, InputError};

/// Reads the API token from a file: at least 16 characters. Errors: a shorter token, or a file that others can read.
pub fn read_token(path: &Path) -> Result<String, CliError> {
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
    let token = text.trim();
    if token.len() < 16 || token.contains(char::is_whitespace) {
        return Err(bad("wanted one token of at least 16 characters".into()).into());
    }
    Ok(token.to_owned())
}
