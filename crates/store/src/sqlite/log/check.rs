//! Check of the log against its mark, before a store is used.
//!
//! SQLite takes the first frame that is not valid for the end of the log: whatever a crash left there was never
//! committed. After a flipped bit or a cut that is wrong, and what was acknowledged behind it would silently be gone.
//!
//! The point of a mark is the newest synced commit; while the same boot has the same disk, the newest commit.
//!
//! | mark | store and log | then |
//! |---|---|---|
//! | a point | the log has the same salts and reaches the point, with its checksum | whole; what is torn behind it is no commit |
//! | a point | the same salts, and the log ends before the point, or is another one there | **told**: cut, flipped, put back |
//! | a point | the log's first salt is up to 65,536 higher: it began anew, after a whole checkpoint | whole |
//! | a point | the log's first salt is lower by as much | **told**: an older log was put back |
//! | a point | a log of other salts or none, and the database has the page of the point, or a later change counter | whole: a program that writes no marks closed the store |
//! | a point | a log of other salts or none, and the database has neither | **told**: the log is gone |
//! | closed | the change counter in the database is lower than in the mark | **told**: an older file was put back |
//! | a base of this log, behind the mark or in the trailer | the file lacks a page that it had when the log began, and no frame has it as the file has it | **told**: an older file was put back, or another store's |
//! | any | no store | **told**: a new store is not made beside the mark of one that is missing |
//! | any | a trailer in the log has the log's salts, and the log ends before its point | **told**: flipped |
//! | no point of this log | behind the first bad frame a whole commit and more follow, checksum by checksum | **told**: flipped |
//! | no point of this log | else | whole |
//!
//! Events, and the mark after each:
//!
//! | event | mark |
//! |---|---|
//! | a synced COMMIT | written after the sync, under SQLite's write lock, whichever process commits |
//! | a COMMIT without a sync (`Committed`, durability `process`) | its commit counts in this boot only: a kill keeps the page cache |
//! | checkpoint, and the log begins anew | stays, until the next commit |
//! | the last connection closes: SQLite deletes the log | closed, and synced, just before the deletion |
//! | sqlite3 or an older outlast commits | stays, and asks less of the log |
//! | kill -9 between the commit and its mark | one commit behind; nobody was told of that commit |
//! | loss of power | the disk may have an older mark of this log, never one that is ahead of the synced log; the trailer is one commit behind |
//! | a copy of the files without the mark | none: as before there were marks |
//! | a directory that takes no new file | none, or an older one |
//! | `outlast repair --accept-shorter` | closed, and asks nothing |
//!
//! `repair` goes on with a store that holds less than its mark says, when a person accepts that.

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
    base::{Base, Database},
    frames::{Frames, word},
    mark::{self, Mark, Point},
};
use crate::sqlite::failure;

/// Largest difference between the first salts of a log and a point for which both count as the same log: the
/// salt grows by one each time that the log begins anew.
const BEGINNINGS: u32 = 1 << 16;

/// Difference between what a store has to hold and what it holds, in words.
pub type Missing = String;

/// Returns the path of the log of the store at `store`.
pub fn log_of(store: &Path) -> PathBuf {
    let mut path = store.as_os_str().to_owned();
    path.push("-wal");
    path.into()
}

/// Checks the store that `conn` has open. Changes nothing.
///
/// Errors: `Shorter` if the log or the file lacks what the mark says.
pub fn check(conn: &Connection) -> Result<(), Error> {
    let store = place_of(conn);
    match lacks(conn)? {
        Some(what) => Err(Error::Shorter { place: store.display().to_string(), what }),
        None => Ok(()),
    }
}

/// Returns what the store that `conn` has open lacks of what its mark says; `None` if nothing.
pub fn lacks(conn: &Connection) -> Result<Option<Missing>, Error> {
    // Another process may commit or close meanwhile. Only under the write lock is a difference damage.
    let store = place_of(conn);
    let Some(seen) = find(conn, &store)? else { return Ok(None) };
    match conn.execute_batch("BEGIN IMMEDIATE").map_err(failure) {
        // A file and a log that do not belong together are often more than SQLite begins with.
        Err(Error::Corrupt { .. }) => return Ok(Some(seen)),
        begun => begun?,
    }
    let found = find(conn, &store);
    conn.execute_batch("ROLLBACK").map_err(failure)?;
    found
}

/// Returns the store's path as SQLite has resolved it: links followed. The log and the mark lie beside that.
pub fn place_of(conn: &Connection) -> PathBuf {
    conn.path().map(PathBuf::from).unwrap_or_default()
}

/// Returns what `store` lacks of what its mark says, as seen now; `None` if nothing. A write in progress may look like
/// a lack.
pub fn find(conn: &Connection, store: &Path) -> Result<Option<Missing>, Error> {
    let (log, mark) = (log_of(store), mark::path_of(store));
    let failed = |e: std::io::Error| Error::Io { why: format!("cannot read {}: {e}", log.display()) };
    // The mark first: the log has what it says by then, and may have more.
    let claim = claim(store);
    let frames = Frames::read(&log).map_err(failed)?;
    let database = Database::of(conn);
    let of_mark = match claim {
        Some(point) if !point.is_closed() => behind(&point, &frames, &database),
        Some(closed) => database.counter().filter(|had| *had < closed.counter).map(|had| {
            let wanted = closed.counter;
            format!("the file has change counter {had}, and {} was closed at {wanted}", mark.display())
        }),
        None => None,
    };
    let of_base = || Base::all(store, &frames).find_map(|base| base.differs(&frames, &database));
    let has_point = claim.is_some_and(|point| frames.salts == Some(point.salts));
    let missing = of_mark
        .or_else(of_base)
        .or_else(|| Mark::in_trailers(&frames).and_then(|point| behind(&point, &frames, &database)))
        .or_else(|| {
            let is_flipped = !has_point && frames.goes_on_behind_damage();
            is_flipped
                .then(|| format!("the log is damaged at byte {}, and commits follow there", frames.valid()))
        });
    Ok(missing.map(|what| what.replace("the log", &log.display().to_string())))
}

/// Returns the point that the log of a store has to reach by its mark; `None` if the mark is missing or damaged.
pub fn claim(store: &Path) -> Option<Point> {
    Some(Mark::read(&mark::path_of(store)).ok()??.claim(mark::device(store)))
}

/// Returns a message if the mark of the store that `conn` has open cannot be read; `None` if it can, or if
/// there is none. The next commit writes the mark anew.
pub fn fault_of_mark(conn: &Connection) -> Option<String> {
    let path = mark::path_of(&place_of(conn));
    let why = Mark::read(&path).err()?;
    Some(format!("the mark {} cannot be read: {why}", path.display()))
}

/// Returns what a log lacks of `point`.
fn behind(point: &Point, log: &Frames, database: &Database<'_>) -> Option<Missing> {
    let wanted = point.end;
    let Some(salts) = log.salts else {
        return match log.is_empty() {
            true if is_in(point, database) => None,
            true => Some(format!("the log is gone, and was committed up to byte {wanted}")),
            false => Some(format!("the log has a damaged header, and was committed up to byte {wanted}")),
        };
    };
    if salts == point.salts {
        return match log.holds(point.end, point.checksum) {
            true => None,
            false if log.committed >= wanted => {
                Some(format!("the log is not the one that was committed up to byte {wanted}"))
            }
            false => Some(format!(
                "the log was committed up to byte {wanted}, and is whole up to byte {}",
                log.committed
            )),
        };
    }
    let ahead = word(&salts, 0).wrapping_sub(word(&point.salts, 0));
    match ahead {
        1..=BEGINNINGS => None,
        _ if ahead.wrapping_neg() <= BEGINNINGS => {
            Some("the log is older than the one that was committed last".into())
        }
        _ if is_in(point, database) => None,
        _ => Some(format!("the log is another one than that which was committed up to byte {wanted}")),
    }
}

/// Returns whether the database file has all commits up to `point`.
pub fn is_in(point: &Point, database: &Database<'_>) -> bool {
    database.counter().is_some_and(|had| had > point.counter)
        || database.page(point.page).is_some_and(|page| mark::sum(&page) == point.page_sum)
}

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
