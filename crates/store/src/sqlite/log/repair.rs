//! Going on with a store that holds less than its mark says, when a person accepts that.

use std::{
    collections::BTreeMap,
    fs,
    io::ErrorKind,
    path::{Path, PathBuf},
    time::{Duration, SystemTime},
};

use outlast_core::store::Error;
use rusqlite::{Connection, OpenFlags, config::DbConfig};

use super::{
    base::Base,
    check::{Missing, claim, find, is_in, lacks, log_of, place_of},
    database::Database,
    frames::Frames,
    mark::{self, Mark, Point},
};
use crate::sqlite::failure;

/// Result of a repair.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Repaired {
    pub missing: Missing,
    /// Time of the newest commit that the mark knows; `None` if it is not known.
    pub newest: Option<SystemTime>,
    pub rest: KeptPart,
    /// The log as it was found, now beside the store under this name. `None` if there was no log.
    pub kept: Option<PathBuf>,
}

/// Part of a damaged store that a repair keeps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KeptPart {
    /// The database file: it has all that was committed.
    Everything,
    /// The database file and the commits in the log up to this byte.
    Before { byte: u64 },
    /// The database file as it is: the log is gone, its undamaged part is older than the file, or the log
    /// belongs to another file.
    File,
}

/// Returns what the store at `path` lacks and what a repair keeps of it; `None` if it lacks nothing. Carries the repair
/// out if `accepts` is true.
///
/// A repair keeps the log beside the store, and resets the mark, which then asks nothing of the store. Errors:
/// `Unavailable` if another process has the store open.
pub fn repair(path: &Path, accepts: bool) -> Result<Option<Repaired>, Error> {
    let conn = open(path)?;
    if lacks(&conn)?.is_none() {
        return Ok(None);
    }
    conn.close().map_err(|(_, e)| failure(e))?;
    let conn = open(path)?;
    conn.busy_timeout(Duration::ZERO).map_err(failure)?;
    // In this mode SQLite lets nobody else in, from the first read until the connection closes, also where that read
    // finds that the log and the file do not belong together.
    conn.pragma_update(None, "locking_mode", "EXCLUSIVE").map_err(failure)?;
    match conn.query_row("SELECT count(*) FROM sqlite_master", [], |_| Ok(())).map_err(failure) {
        Err(Error::Corrupt { .. }) => {}
        read => read?,
    }
    let store = place_of(&conn);
    let failed = |e: std::io::Error| Error::Io { why: format!("cannot repair {}: {e}", store.display()) };
    let Some(missing) = find(&conn, &store)? else { return Ok(None) };
    let log = log_of(&store);
    let frames = Frames::read(&log).map_err(failed)?;
    let database = Database::of(&conn);
    // A log of another file is put over none.
    let is_anothers = Base::all(&store, &frames).any(|base| base.differs(&frames, &database).is_some());
    let rest = match is_anothers {
        true => KeptPart::File,
        false => rest(&frames, claim(&store), &database),
    };
    let newest = fs::metadata(mark::path_of(&store)).and_then(|found| found.modified()).ok();
    if !accepts {
        return Ok(Some(Repaired { missing, newest, rest, kept: None }));
    }
    let kept = if frames.is_empty() { None } else { Some(keep(&log).map_err(failed)?) };
    match rest {
        KeptPart::Before { .. } => {
            conn.query_row("PRAGMA wal_checkpoint(TRUNCATE)", [], |_| Ok(())).map_err(failure)?
        }
        KeptPart::Everything | KeptPart::File => match fs::remove_file(&log) {
            Err(e) if e.kind() != ErrorKind::NotFound => return Err(failed(e)),
            _ => {}
        },
    }
    match Mark::reset(&mark::path_of(&store), 0) {
        Err(e) if e.kind() != ErrorKind::NotFound => Err(failed(e)),
        _ => Ok(Some(Repaired { missing, newest, rest, kept })),
    }
}

/// Opens a connection that leaves the log alone when it closes.
fn open(path: &Path) -> Result<Connection, Error> {
    let flags = OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let conn = Connection::open_with_flags_and_vfs(path, flags, super::name()?)
        .map_err(|e| Error::Open { place: path.display().to_string(), why: e.to_string() })?;
    conn.set_db_config(DbConfig::SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, true).map_err(failure)?;
    Ok(conn)
}

/// Chooses the newest part of the store that is of one time.
///
/// A checkpoint may have brought the file further than the whole part of the log reaches. The older pages of that part
/// must then not go over the newer ones of the file.
fn rest(log: &Frames, claim: Option<Point>, file: &Database<'_>) -> KeptPart {
    if log.salts.is_none() {
        let has_all = claim.is_some_and(|point| !point.is_closed() && is_in(&point, file));
        return if has_all { KeptPart::Everything } else { KeptPart::File };
    }
    let whole: BTreeMap<u32, &[u8]> = log.pages_before_damage().collect();
    let behind: BTreeMap<u32, &[u8]> = log.pages_behind_damage().collect();
    let has = |(no, page): (&u32, &&[u8])| file.page(*no).is_some_and(|found| found == **page);
    let newest = whole.iter().filter(|(no, _)| !behind.contains_key(no)).chain(&behind);
    let claim = claim.filter(|point| log.salts == Some(point.salts));
    if claim.is_some_and(|point| is_in(&point, file)) && { newest }.all(has) {
        return KeptPart::Everything;
    }
    let is_ahead = behind.iter().any(|(no, page)| whole.get(no) != Some(page) && has((no, page)));
    if is_ahead { KeptPart::File } else { KeptPart::Before { byte: log.committed } }
}

/// Copies the log to a name of its own beside it.
fn keep(log: &Path) -> std::io::Result<PathBuf> {
    let named = (1..).map(|n| {
        let mut name = log.as_os_str().to_owned();
        name.push(format!(".kept-{n}"));
        PathBuf::from(name)
    });
    for name in named {
        match fs::File::options().write(true).create_new(true).open(&name) {
            Err(e) if e.kind() == ErrorKind::AlreadyExists => {}
            made => {
                // The mode is copied with the bytes.
                made.and_then(|_| fs::copy(log, &name))?;
                return Ok(name);
            }
        }
    }
    unreachable!("names do not end")
}
