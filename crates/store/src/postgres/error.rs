//! Mapping of PostgreSQL's errors to the store's.

use outlast_core::{store::Error, words::bad::with_causes};
use tokio_postgres::error::{Severity, SqlState};

/// Returns the text of the error and of all its causes.
pub fn chain(e: &tokio_postgres::Error) -> String {
    if let Some(db) = e.as_db_error() {
        let detail = db.detail().map(|d| format!(" ({d})")).unwrap_or_default();
        return format!("{}{detail}", db.message());
    }
    with_causes(e)
}

/// Maps a PostgreSQL error to the store's error.
///
/// Only the server's own trouble with its files becomes `Io`, which closes the store until it is reopened. All other
/// errors are over by themselves, or guarantee that nothing was changed.
pub fn failure(e: tokio_postgres::Error) -> Error {
    let why = chain(&e);
    let Some(code) = e.code() else {
        return Error::Unavailable { why: format!("the connection to the database was lost: {why}") };
    };
    match code {
        &SqlState::DISK_FULL => Error::Full { why },
        &SqlState::LOCK_NOT_AVAILABLE => {
            Error::Unavailable { why: "another server holds the store's lock for too long".into() }
        }
        // `Same` tells of which store.
        &SqlState::UNDEFINED_TABLE | &SqlState::INVALID_SCHEMA_NAME => {
            Error::Vanished { place: String::new(), file: "its schema".into() }
        }
        code => match &code.code()[..2] {
            // Data exceptions, violated constraints, missing tables and columns, broken pages: the database does
            // not hold what Outlast wrote.
            "22" | "23" | "42" | "3F" | "XX" if *code != SqlState::INSUFFICIENT_PRIVILEGE => {
                Error::Corrupt { what: why }
            }
            "58" => Error::Io { why },
            _ => Error::Unavailable { why },
        },
    }
}

/// Returns whether a failed COMMIT, or a write before it, is known to have changed nothing.
///
/// That is so if the connection survives the error: the transaction was aborted. The commit may have happened if the
/// session ends (FATAL, PANIC, a cut connection), or if a proxy in between reports that it does not know.
pub fn rolled_back(e: &tokio_postgres::Error) -> bool {
    e.as_db_error().is_some_and(|db| {
        // A transaction that stood still was ended before its COMMIT came.
        *db.code() == SqlState::IDLE_IN_TRANSACTION_SESSION_TIMEOUT
            || db.parsed_severity() == Some(Severity::Error)
                && !db.code().code().starts_with("08")
                && *db.code() != SqlState::T_R_STATEMENT_COMPLETION_UNKNOWN
    })
}
