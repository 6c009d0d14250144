//! SQLite VFS for the writer's log, which turns a synced commit into one system call.
//!
//! By default SQLite writes a commit with two calls per page and then syncs. Here the pages of a commit are gathered
//! (`gathering.rs`) and written through to disk at once. A growing log is extended in large steps, since syncing a
//! file that has grown costs twice as much. Where the file system is not known to honour a write-through
//! (`filesystem.rs`), SQLite's own sync follows the write. Everything else is SQLite's default behaviour. The log's
//! format is unchanged, so connections without this VFS can share the file.
//!
//! A mark beside the store (`mark.rs`) says how far the log was committed. It is checked when a store is opened
//! (`check.rs`).

mod base;
mod check;
mod filesystem;
mod frames;
mod gathering;
mod mark;
#[cfg(test)]
mod tests;

#[cfg(fuzzing)]
pub use frames::Frames;

use std::{
    cell::Cell,
    ffi::{CStr, OsStr, c_char, c_int, c_void},
    fs::File,
    io::IoSlice,
    os::{
        fd::AsRawFd as _,
        unix::{ffi::OsStrExt as _, fs::MetadataExt as _},
    },
    path::{Path, PathBuf},
    sync::{
        OnceLock,
        atomic::{AtomicU64, Ordering},
    },
};

use outlast_core::store::Error;
use rusqlite::ffi::{
    self, SQLITE_IOERR_FSYNC, SQLITE_OK, SQLITE_OPEN_WAL, sqlite3_file, sqlite3_filename, sqlite3_io_methods,
    sqlite3_vfs,
};

pub use check::{KeptPart, Repaired, check, fault_of_mark, place_of, repair};
pub use filesystem::SyncMode;

use base::Database;
use gathering::{Disk, Gathering, Trailer};
use mark::{Mark, Marker};

/// Name of the VFS as registered with SQLite.
const NAME: &CStr = c"outlast";

/// Largest step, in bytes, by which the log grows. Below this the log's size doubles, so that a process that
/// writes little also allocates little.
const GROWTH: u64 = 256 << 10;
const PAGE: u64 = 4 << 10;
static ZEROS: [u8; 64 << 10] = [0; 64 << 10];

/// Largest single write in bytes. A page is never longer, and SQLite's function reports a longer write as a full disk.
const PIECE: usize = 64 << 10;

thread_local! {
    /// Number of the commit that this thread is in (0: none), and the number of its bytes that are not
    /// written yet.
    static COMMIT: Cell<(u64, usize)> = const { Cell::new((0, 0)) };
}

/// Runs `commit`, a synced COMMIT, so that its pages are written together when it syncs.
///
/// Errors: those of `commit`; `Io` if it succeeded without a sync, which SQLite never does.
pub fn in_one_write(commit: impl FnOnce() -> Result<(), Error>) -> Result<(), Error> {
    /// Guard that ends the commit on this thread, whatever its outcome.
    struct Within;
    impl Drop for Within {
        fn drop(&mut self) {
            COMMIT.set((0, 0));
        }
    }
    // Numbers are never reused in a process, so bytes left by a failed commit can belong to no other.
    static LAST: AtomicU64 = AtomicU64::new(0);
    COMMIT.set((LAST.fetch_add(1, Ordering::Relaxed) + 1, 0));
    let _within = Within;
    commit()?;
    match COMMIT.get() {
        (_, 0) => Ok(()),
        (_, unwritten) => Err(Error::Io { why: format!("a commit left {unwritten} bytes unwritten") }),
    }
}

/// Returns the VFS name to open the writer's connection with. Registers it once per process.
pub fn name() -> Result<&'static CStr, Error> {
    static REGISTERED: OnceLock<c_int> = OnceLock::new();
    match *REGISTERED.get_or_init(register) {
        SQLITE_OK => Ok(NAME),
        code => Err(Error::Io { why: format!("SQLite does not take a way of writing its log: {code}") }),
    }
}

/// SQLite's default VFS.
struct Base(*mut sqlite3_vfs);
// SAFETY: SQLite's own structures of this kind are constant once they are registered.
unsafe impl Send for Base {}
unsafe impl Sync for Base {}
static BASE: OnceLock<Base> = OnceLock::new();

fn register() -> c_int {
    // SAFETY: asks for the default; SQLite initialises itself.
    let base = unsafe { ffi::sqlite3_vfs_find(std::ptr::null()) };
    if base.is_null() {
        return ffi::SQLITE_ERROR;
    }
    let base = BASE.get_or_init(|| Base(base)).0;
    // SAFETY: found, so it is there for the life of the process.
    let theirs = unsafe { *base };
    let ours = sqlite3_vfs {
        szOsFile: place_of_ours(&theirs) as c_int + size_of::<*mut Log>() as c_int,
        pNext: std::ptr::null_mut(),
        zName: NAME.as_ptr(),
        xOpen: Some(open),
        xDelete: Some(delete),
        ..theirs
    };
    // SAFETY: leaked, so it stays for the life of the process. Never the default.
    unsafe { ffi::sqlite3_vfs_register(Box::leak(Box::new(ours)), 0) }
}

/// Returns the offset of our pointer in an open file's structure, behind SQLite's own part.
fn place_of_ours(base: &sqlite3_vfs) -> usize {
    (base.szOsFile as usize).next_multiple_of(align_of::<*mut Log>())
}

/// Outlast's own data for a log that SQLite has open.
struct Log {
    base: &'static sqlite3_io_methods,
    /// Our own descriptor, as SQLite's is private. The log carries no locks that closing it could drop.
    file: File,
    size: u64,
    /// Whether commits are written through; false from the start where that is not known to reach the disk.
    writes_through: bool,
    gathering: Gathering,
    marker: Marker,
    /// Name under which SQLite has the log open.
    name: sqlite3_filename,
}

/// Method table for logs, with our functions in it, and SQLite's table that it was made from.
static METHODS: OnceLock<(&'static sqlite3_io_methods, sqlite3_io_methods)> = OnceLock::new();

/// Opens a file with SQLite's VFS. A log gets our methods.
unsafe extern "C" fn open(
    _: *mut sqlite3_vfs,
    name: sqlite3_filename,
    file: *mut sqlite3_file,
    flags: c_int,
    out: *mut c_int,
) -> c_int {
    let Some(base) = BASE.get() else { return ffi::SQLITE_CANTOPEN };
    // SAFETY: SQLite's own arguments for SQLite's own function; `file` is larger than that one needs.
    let code = unsafe {
        match (*base.0).xOpen {
            Some(open) => open(base.0, name, file, flags, out),
            None => ffi::SQLITE_CANTOPEN,
        }
    };
    if code != SQLITE_OK || flags & SQLITE_OPEN_WAL == 0 || name.is_null() {
        return code;
    }
    // SAFETY: an open file has methods, and those are constants of SQLite's.
    let theirs: &'static sqlite3_io_methods = unsafe { &*(*file).pMethods };
    let (of, ours) = METHODS.get_or_init(|| (theirs, with_ours(theirs)));
    // SAFETY: SQLite's file names end in a zero.
    let path = OsStr::from_bytes(unsafe { CStr::from_ptr(name) }.to_bytes());
    // If this fails, SQLite's own methods work as well.
    let Ok(own) = File::options().write(true).open(path) else { return code };
    if !std::ptr::eq(*of, theirs) {
        return code;
    }
    let device = own.metadata().map_or(0, |found| found.dev());
    let log = Box::new(Log {
        base: theirs,
        size: 0,
        writes_through: SyncMode::at(path.as_ref()).writes_through(),
        gathering: Gathering::default(),
        marker: Marker::new(mark_of(path.as_ref()), device),
        file: own,
        name,
    });
    // SAFETY: `szOsFile` has room for the pointer; the file is ours until SQLite closes it.
    unsafe {
        ours_in(file).write(Box::into_raw(log));
        (*file).pMethods = ours;
    }
    code
}

/// Deletes a file with SQLite's VFS. SQLite deletes a log when all of it is in the database.
unsafe extern "C" fn delete(_: *mut sqlite3_vfs, name: *const c_char, syncs_directory: c_int) -> c_int {
    let Some(base) = BASE.get() else { return ffi::SQLITE_IOERR_DELETE };
    // SAFETY: SQLite's file names end in a zero.
    let path = Path::new(OsStr::from_bytes(unsafe { CStr::from_ptr(name) }.to_bytes()));
    if path.as_os_str().as_bytes().ends_with(b"-wal") {
        // A mark that stays as it was finds the last page in the database.
        let _ = Mark::close(&mark_of(path));
    }
    // SAFETY: SQLite's own arguments for SQLite's own function.
    unsafe {
        (*base.0).xDelete.map_or(ffi::SQLITE_IOERR_DELETE, |delete| delete(base.0, name, syncs_directory))
    }
}

/// Returns the path of the mark that belongs to a log.
fn mark_of(log: &Path) -> PathBuf {
    let log = log.as_os_str().as_bytes();
    mark::path_of(Path::new(OsStr::from_bytes(log.strip_suffix(b"-wal").unwrap_or(log))))
}

fn with_ours(theirs: &sqlite3_io_methods) -> sqlite3_io_methods {
    sqlite3_io_methods {
        xClose: Some(close),
        xRead: Some(read),
        xWrite: Some(write),
        xTruncate: Some(truncate),
        xSync: Some(sync),
        ..*theirs
    }
}

/// Returns the location of our pointer in an open file.
unsafe fn ours_in(file: *mut sqlite3_file) -> *mut *mut Log {
    // SAFETY: the caller's `file` is one that `open` was given; `BASE` was set before.
    unsafe {
        let place = BASE.get().map_or(0, |base| place_of_ours(&*base.0));
        file.cast::<u8>().add(place).cast()
    }
}

/// Calls `act` with our data of `file`, its disk, and the number of the commit that this thread is in; then `marked`
/// with the marker, if that succeeded.
unsafe fn with_log(
    file: *mut sqlite3_file,
    act: impl FnOnce(&mut Gathering, &mut OnDisk<'_>, u64) -> Result<(), c_int>,
    marked: impl FnOnce(&mut Marker, u64, &Database<'_>),
) -> c_int {
    // SAFETY: only files that `open` gave our methods come here, and SQLite uses a connection's files on
    // one thread at a time.
    let log = unsafe { &mut **ours_in(file) };
    let mut disk = OnDisk {
        base: log.base,
        sqlite: file,
        file: &log.file,
        size: &mut log.size,
        writes_through: &mut log.writes_through,
        sync_flags: ffi::SQLITE_SYNC_NORMAL,
    };
    let (commit, _) = COMMIT.get();
    let done = act(&mut log.gathering, &mut disk, commit);
    if commit != 0 {
        COMMIT.set((commit, log.gathering.kept(commit)));
    }
    match done {
        // SAFETY: SQLite closes the database after its log.
        Ok(()) => marked(&mut log.marker, commit, &unsafe { Database::under(log.name) }),
        Err(code) => return code,
    }
    SQLITE_OK
}

unsafe extern "C" fn write(file: *mut sqlite3_file, bytes: *const c_void, len: c_int, at: i64) -> c_int {
    // SAFETY: SQLite gives `len` bytes.
    unsafe {
        let bytes = std::slice::from_raw_parts(bytes.cast::<u8>(), len as usize);
        with_log(
            file,
            |gathering, disk, commit| gathering.write(disk, commit, at as u64, bytes),
            |marker, commit, database| {
                // What is gathered is in the file only when it is synced.
                if marker.saw(at as u64, bytes) && commit == 0 {
                    marker.mark(false, database);
                }
            },
        )
    }
}

unsafe extern "C" fn sync(file: *mut sqlite3_file, flags: c_int) -> c_int {
    // SAFETY: as in `with_log`.
    unsafe {
        let log = &mut **ours_in(file);
        let (commit, _) = COMMIT.get();
        let begins = log.gathering.begins(commit);
        let trailer = (commit != 0).then(|| log.marker.trailer(begins, &Database::under(log.name))).flatten();
        with_log(
            file,
            |gathering, disk, commit| {
                disk.sync_flags = flags;
                gathering.sync(disk, commit, trailer.as_ref().map(|(at, bytes)| Trailer { at: *at, bytes }))
            },
            |marker, commit, database| {
                // A checkpoint syncs the log too, without the write lock.
                if commit != 0 {
                    marker.mark(true, database);
                }
            },
        )
    }
}

unsafe extern "C" fn read(file: *mut sqlite3_file, into: *mut c_void, len: c_int, at: i64) -> c_int {
    // SAFETY: as in `with_log`; the arguments are SQLite's own for SQLite's own function.
    unsafe {
        with_log(
            file,
            |gathering, disk, commit| {
                gathering.before_read(disk, commit)?;
                let read = disk.base.xRead.ok_or(ffi::SQLITE_IOERR_READ)?;
                ended(read(file, into, len, at))
            },
            |_, _, _| (),
        )
    }
}

unsafe extern "C" fn truncate(file: *mut sqlite3_file, size: i64) -> c_int {
    // SAFETY: as in `read`.
    unsafe {
        with_log(
            file,
            |gathering, disk, _| {
                gathering.forget();
                *disk.size = 0;
                let truncate = disk.base.xTruncate.ok_or(ffi::SQLITE_IOERR_TRUNCATE)?;
                ended(truncate(file, size))
            },
            |_, _, _| (),
        )
    }
}

unsafe extern "C" fn close(file: *mut sqlite3_file) -> c_int {
    // SAFETY: the last that SQLite does with the file; the pointer was made by `Box::into_raw`.
    unsafe {
        let log = Box::from_raw(ours_in(file).replace(std::ptr::null_mut()));
        log.base.xClose.map_or(SQLITE_OK, |close| close(file))
    }
}

fn ended(code: c_int) -> Result<(), c_int> {
    if code == SQLITE_OK { Ok(()) } else { Err(code) }
}

/// Log file, accessed by SQLite's functions and ours. Errors are SQLite's codes.
struct OnDisk<'a> {
    base: &'static sqlite3_io_methods,
    sqlite: *mut sqlite3_file,
    file: &'a File,
    /// Known lower bound of the file's length.
    size: &'a mut u64,
    /// Whether write-through is supported; a call may show that it is not.
    writes_through: &'a mut bool,
    sync_flags: c_int,
}

impl Disk for OnDisk<'_> {
    type Error = c_int;

    fn write(&mut self, at: u64, bytes: &[u8]) -> Result<(), c_int> {
        let write = self.base.xWrite.ok_or(ffi::SQLITE_IOERR_WRITE)?;
        let mut at = at as i64;
        for piece in bytes.chunks(PIECE) {
            // SAFETY: SQLite's own function on a file that it opened.
            ended(unsafe { write(self.sqlite, piece.as_ptr().cast(), piece.len() as c_int, at) })?;
            at += piece.len() as i64;
        }
        Ok(())
    }

    fn sync(&mut self) -> Result<(), c_int> {
        let sync = self.base.xSync.ok_or(SQLITE_IOERR_FSYNC)?;
        // SAFETY: as in `write`.
        ended(unsafe { sync(self.sqlite, self.sync_flags) })
    }

    fn write_through(&mut self, at: u64, bytes: &[u8]) -> Result<bool, c_int> {
        if !*self.writes_through {
            return Ok(false);
        }
        let zeros = self.growth(at + bytes.len() as u64);
        let whole = ZEROS.len();
        let all = std::iter::once(bytes)
            .chain((0..zeros / whole).map(|_| &ZEROS[..]))
            .chain(std::iter::once(&ZEROS[..zeros % whole]));
        let all: Vec<IoSlice<'_>> = all.map(IoSlice::new).collect();
        // Called through the C library, as SQLite does: a test that intercepts disk calls then sees this one too.
        // SAFETY: an `IoSlice` is an iovec, and the bytes of all of them outlive the call.
        let written = unsafe {
            let (first, n) = (all.as_ptr().cast(), all.len() as c_int);
            libc::pwritev2(self.file.as_raw_fd(), first, n, at as libc::off_t, libc::RWF_DSYNC)
        };
        if usize::try_from(written).is_ok_and(|n| n == bytes.len() + zeros) {
            return Ok(true);
        }
        *self.size = 0;
        let error = if written < 0 { std::io::Error::last_os_error().raw_os_error() } else { None };
        match error {
            Some(libc::EIO) => return Err(SQLITE_IOERR_FSYNC),
            // The kernel or file system lacks this call.
            Some(libc::EOPNOTSUPP | libc::EINVAL | libc::ENOSYS | libc::EPERM) => {
                *self.writes_through = false
            }
            // A full disk or a signal: SQLite's own write tells which.
            _ => {}
        }
        Ok(false)
    }
}

impl OnDisk<'_> {
    /// Returns how many zeros to write after `end`, 0 if the file is already longer.
    fn growth(&mut self, end: u64) -> usize {
        if end <= *self.size {
            return 0;
        }
        // Another process may have extended the file. Bytes behind the log's end belong to nobody.
        let Ok(found) = self.file.metadata() else { return 0 };
        *self.size = found.len();
        if end <= *self.size {
            return 0;
        }
        *self.size = (end + end.min(GROWTH)).next_multiple_of(PAGE);
        (*self.size - end) as usize
    }
}
