//! The API token's file.

use std::{fs, os::unix::fs::MetadataExt as _, path::Path};

use crate::program::{error::CliError, exit_code};

/// The token that callers have to show: at least 16 characters, from a file nobody else can read.
pub fn read_token(path: &Path) -> Result<String, CliError> {
    let bad = |message: String| CliError::Other {
        exit: exit_code::USAGE,
        code: "bad_api_token_file",
        message: format!("the API token file {}: {message}", path.display()),
        hint: Some("for example: (umask 077; openssl rand -hex 32 > FILE)".into()),
    };
    let meta = fs::metadata(path).map_err(|e| bad(e.to_string()))?;
    if meta.mode() & 0o077 != 0 {
        return Err(bad(format!(
            "it has mode {:o}, and others must not read it (wanted 0600)",
            meta.mode() & 0o777
        )));
    }
    let text = fs::read_to_string(path).map_err(|e| bad(e.to_string()))?;
    let token = text.trim();
    if token.len() < 16 || token.contains(char::is_whitespace) {
        return Err(bad("wanted one token of at least 16 characters".into()));
    }
    Ok(token.to_owned())
}
