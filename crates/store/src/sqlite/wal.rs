//! The write-ahead log's file, as the writer has it: a commit's frames go into it in one write.
//!
//! SQLite writes the head and the page of each frame by themselves, a dozen writes for a small commit. They are gathered
//! here until the frame that commits, and only where they are appended: the file is as SQLite means it to be whenever a
//! transaction is over, read, or synced. And while the log is young, the file grows ahead of it, by zeros that no
//! recovery takes for a frame: to sync a write within a file costs half of what it costs to sync its growth.
//!
//! A VFS around SQLite's own, which does all that touches the disk.

use std::{
    ffi::{CStr, c_char, c_int, c_void},
    sync::OnceLock,
};

use rusqlite::ffi::{
    SQLITE_CANTOPEN, SQLITE_ERROR, SQLITE_OK, SQLITE_OPEN_WAL, sqlite3_file, sqlite3_int64,
    sqlite3_io_methods, sqlite3_vfs, sqlite3_vfs_find, sqlite3_vfs_register,
};

/// What it is opened by.
const NAME: &CStr = c"outlast";

/// A frame's head; its second word is not zero in a frame that commits.
const HEAD_LEN: usize = 24;

/// More than this is not gathered, nor written at once: SQLite's own VFS takes less than 128 KiB.
const GATHERED_LEN: usize = 64 << 10;

/// How far the file is grown ahead: at first, and where SQLite starts the log anew.
const FIRST_LEN: usize = 64 << 10;
const WHOLE_LEN: usize = 4 << 20;

/// The name of the VFS, registered once; None where SQLite has none to build on.
pub fn vfs() -> Option<&'static CStr> {
    static REGISTERED: OnceLock<bool> = OnceLock::new();
    REGISTERED.get_or_init(register).then_some(NAME)
}

fn register() -> bool {
    // SAFETY: SQLite's default VFS is never unregistered. Ours is leaked: it lives as long.
    unsafe {
        let Some(inner) = sqlite3_vfs_find(std::ptr::null()).as_ref() else { return false };
        let ours = sqlite3_vfs {
            szOsFile: size_of::<Log>() as c_int + inner.szOsFile,
            zName: NAME.as_ptr(),
            pNext: std::ptr::null_mut(),
            xOpen: Some(open),
            ..*inner
        };
        sqlite3_vfs_register(Box::leak(Box::new(ours)), 0) == SQLITE_OK
    }
}

/// The file as SQLite sees it. Behind it in memory lies the inner one.
#[repr(C, align(8))]
struct Log {
    base: sqlite3_file,
    state: *mut State,
}

#[derive(Default)]
struct State {
    /// Appended and not yet written: heads and pages of frames of one transaction.
    gathered: Vec<u8>,
    /// Where it goes.
    start: i64,
    /// Where the log ends, what is gathered counted.
    end: i64,
    /// Whether the frame that is being written commits.
    commits: bool,
    /// Where was read last: what is written there is changed, and not appended.
    read_at: i64,
    /// The file's length.
    len: i64,
}

static METHODS: sqlite3_io_methods = sqlite3_io_methods {
    iVersion: 1,
    xClose: Some(close),
    xRead: Some(read),
    xWrite: Some(write),
    xTruncate: Some(truncate),
    xSync: Some(sync),
    xFileSize: Some(file_size),
    xLock: Some(lock),
    xUnlock: Some(lock),
    xCheckReservedLock: Some(check_reserved_lock),
    xFileControl: Some(file_control),
    xSectorSize: Some(sector_size),
    xDeviceCharacteristics: Some(device_characteristics),
    xShmMap: None,
    xShmLock: None,
    xShmBarrier: None,
    xShmUnmap: None,
    xFetch: None,
    xUnfetch: None,
};

/// Opens a log as ours, and any other file as the inner VFS does.
unsafe extern "C" fn open(
    _: *mut sqlite3_vfs,
    name: *const c_char,
    file: *mut sqlite3_file,
    flags: c_int,
    out_flags: *mut c_int,
) -> c_int {
    // SAFETY: SQLite gives `szOsFile` bytes, which hold a `Log` and an inner file; `pMethods` tells it which it is.
    unsafe {
        let inner = sqlite3_vfs_find(std::ptr::null());
        let Some(open) = inner.as_ref().and_then(|vfs| vfs.xOpen) else { return SQLITE_CANTOPEN };
        if flags & SQLITE_OPEN_WAL == 0 {
            return open(inner, name, file, flags, out_flags);
        }
        (*file).pMethods = std::ptr::null();
        let opened = open(inner, name, inner_of(file), flags, out_flags);
        if opened != SQLITE_OK {
            return opened;
        }
        let mut state = State { read_at: -1, ..State::default() };
        if call(file, |m, f| m.xFileSize.map(|size| size(f, &mut state.len))) != SQLITE_OK {
            state.len = 0;
        }
        (*file.cast::<Log>()).state = Box::into_raw(Box::new(state));
        (*file).pMethods = &METHODS;
        SQLITE_OK
    }
}

/// The inner file of a `Log`. SAFETY: `file` lies in front of one.
unsafe fn inner_of(file: *mut sqlite3_file) -> *mut sqlite3_file {
    // SAFETY: `szOsFile` has room for both.
    unsafe { file.cast::<Log>().add(1).cast() }
}

/// One of the inner file's methods. SAFETY: it is open.
unsafe fn call(
    file: *mut sqlite3_file,
    method: impl FnOnce(&sqlite3_io_methods, *mut sqlite3_file) -> Option<c_int>,
) -> c_int {
    // SAFETY: an open file has methods.
    unsafe {
        let inner = inner_of(file);
        (*inner).pMethods.as_ref().and_then(|m| method(m, inner)).unwrap_or(SQLITE_ERROR)
    }
}

/// SAFETY: `file` is a `Log` that is open; SQLite uses it from one thread at a time.
unsafe fn state<'a>(file: *mut sqlite3_file) -> &'a mut State {
    // SAFETY: made by `open`, and dropped by `close` only.
    unsafe { &mut *(*file.cast::<Log>()).state }
}

/// Writes to the file itself. SAFETY: as `state`.
unsafe fn write_through(file: *mut sqlite3_file, bytes: &[u8], mut at: i64) -> c_int {
    for chunk in bytes.chunks(GATHERED_LEN) {
        // SAFETY: the inner file reads so many bytes.
        unsafe {
            let written =
                call(file, |m, f| Some(m.xWrite?(f, chunk.as_ptr().cast(), chunk.len() as c_int, at)));
            if written != SQLITE_OK {
                return written;
            }
            at += chunk.len() as i64;
            let s = state(file);
            s.len = s.len.max(at);
        }
    }
    SQLITE_OK
}

/// Writes what is gathered. SAFETY: as `state`.
unsafe fn flush(file: *mut sqlite3_file) -> c_int {
    // SAFETY: as the caller's.
    unsafe {
        let s = state(file);
        if s.gathered.is_empty() {
            return SQLITE_OK;
        }
        let (start, mut gathered) = (s.start, std::mem::take(&mut s.gathered));
        let len = gathered.len();
        let ahead = ahead(s.len, start + len as i64);
        gathered.resize(len + ahead, 0);
        let mut written = write_through(file, &gathered, start);
        if written != SQLITE_OK && ahead > 0 {
            // There may be room for the frames alone.
            written = write_through(file, &gathered[..len], start);
        }
        gathered.clear();
        gathered.shrink_to(GATHERED_LEN);
        state(file).gathered = gathered;
        written
    }
}

/// How many zeros to add behind a write that ends at `end`, in a file of `len` bytes: twice the length each time.
fn ahead(len: i64, end: i64) -> usize {
    let end = usize::try_from(end).unwrap_or(usize::MAX);
    if end as i64 <= len || end >= WHOLE_LEN {
        return 0;
    }
    (2 * end).clamp(FIRST_LEN, WHOLE_LEN) - end
}

unsafe extern "C" fn write(
    file: *mut sqlite3_file,
    data: *const c_void,
    len: c_int,
    at: sqlite3_int64,
) -> c_int {
    // SAFETY: SQLite gives `len` bytes.
    unsafe {
        let bytes = std::slice::from_raw_parts(data.cast::<u8>(), len as usize);
        let s = state(file);
        let is_head = bytes.len() == HEAD_LEN;
        let appends = at == s.end && at != s.read_at && (is_head || !s.gathered.is_empty());
        if !appends {
            let flushed = flush(file);
            let written = if flushed == SQLITE_OK { write_through(file, bytes, at) } else { flushed };
            let s = state(file);
            // The head of the whole log starts it anew.
            s.end = if at == 0 { i64::from(len) } else { s.end.max(at + i64::from(len)) };
            return written;
        }
        if s.gathered.is_empty() {
            s.start = at;
        }
        s.gathered.extend_from_slice(bytes);
        s.end += i64::from(len);
        if is_head {
            s.commits = bytes[4..8] != [0; 4];
            return SQLITE_OK;
        }
        if s.commits || s.gathered.len() >= GATHERED_LEN { flush(file) } else { SQLITE_OK }
    }
}

unsafe extern "C" fn read(
    file: *mut sqlite3_file,
    data: *mut c_void,
    len: c_int,
    at: sqlite3_int64,
) -> c_int {
    // SAFETY: SQLite gives room for `len` bytes.
    unsafe {
        match flush(file) {
            SQLITE_OK => {
                state(file).read_at = at;
                call(file, |m, f| Some(m.xRead?(f, data, len, at)))
            }
            failed => failed,
        }
    }
}

unsafe extern "C" fn truncate(file: *mut sqlite3_file, len: sqlite3_int64) -> c_int {
    // SAFETY: as `flush`.
    unsafe {
        match flush(file) {
            SQLITE_OK => {
                let cut = call(file, |m, f| Some(m.xTruncate?(f, len)));
                if cut == SQLITE_OK {
                    let s = state(file);
                    (s.len, s.end) = (len, s.end.min(len));
                }
                cut
            }
            failed => failed,
        }
    }
}

unsafe extern "C" fn sync(file: *mut sqlite3_file, flags: c_int) -> c_int {
    // SAFETY: as `flush`.
    unsafe {
        match flush(file) {
            SQLITE_OK => call(file, |m, f| Some(m.xSync?(f, flags))),
            failed => failed,
        }
    }
}

unsafe extern "C" fn file_size(file: *mut sqlite3_file, len: *mut sqlite3_int64) -> c_int {
    // SAFETY: as `flush`.
    unsafe {
        match flush(file) {
            SQLITE_OK => call(file, |m, f| Some(m.xFileSize?(f, len))),
            failed => failed,
        }
    }
}

unsafe extern "C" fn close(file: *mut sqlite3_file) -> c_int {
    // SAFETY: nobody uses it any more. What is gathered is of a transaction that did not commit.
    unsafe {
        drop(Box::from_raw((*file.cast::<Log>()).state));
        call(file, |m, f| Some(m.xClose?(f)))
    }
}

// SQLite locks the database's file and the log's index, never the log.
unsafe extern "C" fn lock(_: *mut sqlite3_file, _: c_int) -> c_int {
    SQLITE_OK
}

unsafe extern "C" fn check_reserved_lock(_: *mut sqlite3_file, found: *mut c_int) -> c_int {
    // SAFETY: SQLite gives a place for it.
    unsafe { *found = 0 };
    SQLITE_OK
}

unsafe extern "C" fn file_control(file: *mut sqlite3_file, what: c_int, arg: *mut c_void) -> c_int {
    // SAFETY: the inner file knows what the argument is.
    unsafe { call(file, |m, f| Some(m.xFileControl?(f, what, arg))) }
}

unsafe extern "C" fn sector_size(file: *mut sqlite3_file) -> c_int {
    // SAFETY: it is open.
    unsafe { call(file, |m, f| Some(m.xSectorSize?(f))) }
}

unsafe extern "C" fn device_characteristics(file: *mut sqlite3_file) -> c_int {
    // SAFETY: it is open.
    unsafe { call(file, |m, f| Some(m.xDeviceCharacteristics?(f))) }
}

#[cfg(test)]
mod tests {
    use rusqlite::{Connection, OpenFlags};

    use super::*;

    /// What a process that is killed now leaves, as SQLite's own VFS reads it: (rows, sum, whole).
    fn left(path: &std::path::Path) -> (i64, i64, String) {
        let copied = tempfile::tempdir().unwrap();
        let copy = copied.path().join("copy.db");
        std::fs::copy(path, &copy).unwrap();
        std::fs::copy(path.with_extension("db-wal"), copy.with_extension("db-wal")).unwrap();
        let conn = Connection::open(copy).unwrap();
        let row = "SELECT count(*), coalesce(sum(n), 0), (SELECT integrity_check FROM pragma_integrity_check) FROM t";
        conn.query_row(row, [], |r| Ok((r.get(0)?, r.get(1)?, r.get(2)?))).unwrap()
    }

    /// Of a transaction larger than the page cache, SQLite writes pages before the commit, and some of them again.
    #[test]
    fn what_is_committed_is_in_the_file_whole_however_large_and_nothing_else_is() {
        let check = |rows: i64, turns: i64, cache: i64, synchronous: &str| {
            let place = tempfile::tempdir().unwrap();
            let path = place.path().join("log.db");
            let flags = OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_CREATE;
            let conn = Connection::open_with_flags_and_vfs(&path, flags, vfs().unwrap()).unwrap();
            let of = format!("{rows} rows, {turns} turns, a cache of {cache} pages, {synchronous}");
            conn.pragma_update(None, "journal_mode", "WAL").unwrap();
            conn.pragma_update(None, "synchronous", synchronous).unwrap();
            conn.pragma_update(None, "cache_size", cache).unwrap();
            conn.execute_batch("CREATE TABLE t (id INTEGER PRIMARY KEY, n INTEGER, filler BLOB)").unwrap();
            let fill = |first: i64| {
                conn.execute_batch("BEGIN IMMEDIATE").unwrap();
                let mut insert =
                    conn.prepare_cached("INSERT INTO t VALUES (?1, 0, randomblob(900))").unwrap();
                for id in first..first + rows {
                    insert.execute((id,)).unwrap();
                }
                for _ in 0..turns {
                    conn.execute("UPDATE t SET n = n + 1 WHERE id >= ?1", (first,)).unwrap();
                }
            };
            for (round, (before, end)) in
                [(0, "COMMIT"), (1, "ROLLBACK"), (1, "COMMIT")].into_iter().enumerate()
            {
                fill(round as i64 * rows);
                assert_eq!(left(&path), (before * rows, before * rows * turns, "ok".into()), "{of}: open");
                conn.execute_batch(end).unwrap();
                let after = before + i64::from(end == "COMMIT");
                assert_eq!(left(&path), (after * rows, after * rows * turns, "ok".into()), "{of}: {end}");
            }
        };
        for synchronous in ["NORMAL", "FULL"] {
            check(1, 1, 1000, synchronous);
            check(40, 2, 1000, synchronous);
            check(2_000, 3, 10, synchronous);
            check(6_000, 1, 1000, synchronous);
        }
    }

    #[test]
    fn a_log_grows_ahead_by_as_much_as_it_has_and_no_further_than_where_it_starts_anew() {
        let check = |len: i64, end: i64, wanted: usize| assert_eq!(ahead(len, end), wanted, "{len} {end}");
        check(0, 32, FIRST_LEN - 32);
        check(65_536, 60_000, 0);
        check(65_536, 70_000, 70_000);
        check(131_072, 3 << 20, 1 << 20);
        check(4 << 20, (4 << 20) + 4120, 0);
        check(0, 5 << 20, 0);
    }
}
