//! Migration of an older store's file, once and durably; a copy of the file as it was stays beside it.

use std::{
    fs::{self, File},
    path::{Path, PathBuf},
};

use outlast_core::{run::Instance, store::Error, words::Micros};
use rusqlite::{Connection, Transaction};

use super::{connect, failure, query, schema};
use crate::{
    format::FORMAT,
    migration::{added_since, is_idle},
    tables::LIVE,
};

/// Brings the store to this program's format. Does nothing if another process has done so.
///
/// A copy of the store as it was is complete and on disk beside it before anything changes.
/// Errors: `Open` while a process of the older version uses the store; `Full` and `Io`, with the store as it was.
pub fn migrate(conn: &mut Connection, path: &Path, now: Micros) -> Result<(), Error> {
    let place = path.display().to_string();
    let tx = Transaction::new(conn, rusqlite::TransactionBehavior::Immediate).map_err(failure)?;
    // Read again under the lock: another process may have migrated it meanwhile.
    let found = schema::found_in(&tx, &place)?;
    if found == FORMAT {
        return Ok(());
    }
    is_idle(&query::many::<Instance>(&tx, &format!("WHERE life = {LIVE}"), [])?, now, &place)?;
    let copy = copy(path, found)?;
    tx.execute_batch(&added_since(found, "", "INTEGER")).map_err(failure)?;
    tx.execute_batch(schema::EVENTS).map_err(failure)?;
    tx.pragma_update(None, "user_version", FORMAT).map_err(failure)?;
    tx.commit().map_err(failure)?;
    tracing::warn!(
        "{place} was brought from format {found} to {FORMAT}; as it was, it is in {}",
        copy.display()
    );
    Ok(())
}

/// Copies the store's committed content to `<store>.format-<n>`, mode 0600, and syncs it.
fn copy(path: &Path, format: i64) -> Result<PathBuf, Error> {
    let beside = |suffix: &str| {
        let mut name = path.as_os_str().to_owned();
        name.push(format!(".format-{format}{suffix}"));
        PathBuf::from(name)
    };
    let failed = |e: std::io::Error| match e.raw_os_error() {
        Some(libc::ENOSPC | libc::EDQUOT) => Error::Full { why: e.to_string() },
        _ => Error::Io { why: format!("{}: {e}", path.display()) },
    };
    let (unfinished, done) = (beside("-unfinished"), beside(""));
    match fs::remove_file(&unfinished) {
        Err(e) if e.kind() != std::io::ErrorKind::NotFound => return Err(failed(e)),
        _ => {}
    }
    // A reader's connection: it sees what is committed, the log included, while the writer's lock is held.
    let reader = connect::reader(path)?;
    reader.pragma_update(None, "query_only", false).map_err(failure)?;
    reader.execute("VACUUM INTO ?1", [unfinished.to_string_lossy()]).map_err(failure)?;
    let file = File::open(&unfinished).map_err(failed)?;
    file.set_permissions(std::os::unix::fs::PermissionsExt::from_mode(0o600)).map_err(failed)?;
    file.sync_all().map_err(failed)?;
    fs::rename(&unfinished, &done).map_err(failed)?;
    let directory = path.parent().filter(|d| !d.as_os_str().is_empty()).unwrap_or(Path::new("."));
    File::open(directory).and_then(|d| d.sync_all()).map_err(failed)?;
    Ok(done)
}
