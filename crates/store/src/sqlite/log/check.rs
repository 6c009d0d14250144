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

use std::path::{Path, PathBuf};

use outlast_core::store::Error;
use rusqlite::Connection;

use super::{
    base::Base,
    database::Database,
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
