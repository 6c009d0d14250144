//! Base of a log: pages of the database file as they were when the log began. Kept behind the mark, and with the mark in
//! the log's trailer: a mark that came along with another file does not hide whose log lies there.
//!
//! A log holds changes of one file. SQLite knows a log by its name alone, and puts it over whatever file lies there: an
//! older copy that was put back, or another store. Such a file lacks a page that the log's own file had, or has got from
//! the log since.
//!
//! Pages are read as they are on the disk, without what the log adds ([`Database`]).

use std::{
    collections::HashMap, ffi::c_void, fs::File, marker::PhantomData, os::unix::fs::FileExt as _, path::Path,
};

use rusqlite::{
    Connection,
    ffi::{self, SQLITE_FCNTL_FILE_POINTER, SQLITE_OK, sqlite3_file, sqlite3_filename},
};

use super::{
    check::Missing,
    frames::{Frames, Salts, eight, word},
    mark::{self, LEN as MARK_LEN},
};

const PAGE: usize = 12;
pub const LEN: usize = 8 + 2 * PAGE + 8;

/// Two pages of the database file as they were when a log began, by which the file that belongs to the log is known.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Base {
    /// Salts of the log to which the pages belong.
    pub salts: Salts,
    /// The page written last before the log began, and the last page of the file: number and checksum of each.
    pages: [(u32, u64); 2],
}

impl Base {
    /// Reads the base of the log that began with `salts`. `newest`: number of the page that the log before wrote last;
    /// an older copy of the file has it in an older version. The base is that page and the file's last one. `None` if
    /// the file cannot be read.
    ///
    /// To be called under SQLite's write lock and before the log's first commit is seen by others: nobody changes the
    /// file then.
    pub fn of(salts: Salts, newest: u32, database: &Database<'_>) -> Option<Base> {
        let last = database.pages()?;
        let newest = if (1..=last).contains(&newest) { newest } else { 1 };
        let page = |no| Some((no, mark::sum(&database.page(no)?)));
        Some(Base { salts, pages: [page(newest)?, page(last)?] })
    }

    /// Reads the base that follows a mark in the mark's file; `None` if there is none, or a damaged one.
    pub fn read(mark: &File) -> Option<Base> {
        let mut bytes = [0; LEN];
        mark.read_exact_at(&mut bytes, MARK_LEN as u64).ok()?;
        Base::from_bytes(&bytes)
    }

    /// Returns the known bases of the log of the store at `store`: from the file of its mark, and from the
    /// log's trailer.
    pub fn all(store: &Path, log: &Frames) -> impl Iterator<Item = Base> + Clone {
        let of_mark = File::open(mark::path_of(store)).ok().and_then(|mark| Base::read(&mark));
        [of_mark, Base::in_trailer(log)].into_iter().flatten()
    }

    /// Returns the base that the log's trailer names; `None` if no trailer is left, or an older outlast wrote it.
    fn in_trailer(log: &Frames) -> Option<Base> {
        let mut bases = log.gaps(MARK_LEN + LEN).filter_map(|gap| Base::from_bytes(&gap[MARK_LEN..]));
        bases.find(|base| log.salts == Some(base.salts))
    }

    fn from_bytes(bytes: &[u8]) -> Option<Base> {
        let (content, stored) = bytes.split_at_checked(LEN - 8)?;
        if mark::sum(content).to_be_bytes() != stored {
            return None;
        }
        let page = |at| (word(content, at), u64::from_be_bytes(eight(content, at + 4)));
        Some(Base { salts: eight(content, 0), pages: [page(8), page(8 + PAGE)] })
    }

    /// Writes the base after the mark, into the mark's file. If it cannot be written, later checks do without
    /// it.
    pub fn write(&self, mark: &File) {
        let _ = mark.write_all_at(&self.to_bytes(), MARK_LEN as u64);
    }

    pub fn to_bytes(self) -> [u8; LEN] {
        let mut bytes = [0; LEN];
        bytes[..8].copy_from_slice(&self.salts);
        for (place, (no, sum)) in bytes[8..].chunks_exact_mut(PAGE).zip(self.pages) {
            place[..4].copy_from_slice(&no.to_be_bytes());
            place[4..].copy_from_slice(&sum.to_be_bytes());
        }
        let sum = mark::sum(&bytes[..LEN - 8]);
        bytes[LEN - 8..].copy_from_slice(&sum.to_be_bytes());
        bytes
    }

    /// Describes how `database` differs from the file with which `log` began; `None` if it does not differ, or if this
    /// base belongs to another log.
    pub fn differs(&self, log: &Frames, database: &Database<'_>) -> Option<Missing> {
        if log.salts != Some(self.salts) {
            return None;
        }
        let is_of_log = |no: u32, found: &[u8]| {
            log.pages_before_damage().any(|(of, page)| of == no && page == found) || log.shrinks_below(no)
        };
        let has = |(no, sum): (u32, u64)| match database.page(no) {
            Some(page) => mark::sum(&page) == sum || is_of_log(no, &page),
            None => log.shrinks_below(no),
        };
        // What lies behind the page that was the last one then has come from the log. Zeros: a loss of power in the middle
        // of a checkpoint.
        let grown = || {
            let mut of_log: HashMap<u32, Vec<&[u8]>> = HashMap::new();
            log.pages_before_damage().for_each(|(no, page)| of_log.entry(no).or_default().push(page));
            let is_strange = |no: &u32| {
                let found = database.page(*no).unwrap_or_default();
                let versions = of_log.get(no).map(Vec::as_slice).unwrap_or_default();
                found.iter().any(|byte| *byte != 0) && !versions.contains(&found.as_slice())
            };
            let [_, (last, _)] = self.pages;
            (last + 1..=database.pages()?).find(is_strange).filter(|no| !log.shrinks_below(*no))
        };
        let lacks = self.pages.into_iter().find(|page| !has(*page)).map(|(no, _)| no);
        let no = lacks.or_else(grown)?;
        Some(format!(
            "the file is older than the log, or another one: its page {no} is not the one that the log began with"
        ))
    }
}

/// Database file of an open connection, read through that connection: to open it once more and close it would drop the
/// locks of this process.
pub struct Database<'a> {
    file: Source,
    of: PhantomData<&'a Connection>,
}

enum Source {
    Open(*mut sqlite3_file),
    /// File of the log with this name. SQLite is asked for it when a page is read: each write to the log comes by here,
    /// and few read one.
    Under(sqlite3_filename),
}

impl Database<'_> {
    pub fn of(conn: &Connection) -> Database<'_> {
        let mut file: *mut sqlite3_file = std::ptr::null_mut();
        let out = (&raw mut file).cast::<c_void>();
        // SAFETY: the connection is open; SQLite writes one pointer to `out`, null if there is none.
        unsafe { ffi::sqlite3_file_control(conn.handle(), c"main".as_ptr(), SQLITE_FCNTL_FILE_POINTER, out) };
        Database { file: Source::Open(file), of: PhantomData }
    }

    /// Returns the database file of the log that SQLite has open under `name`; null: none, which has no pages.
    ///
    /// # Safety
    /// `name` is the name that SQLite gave to the log's `xOpen`, or null, and the log is still open while the result is used.
    pub unsafe fn under<'a>(name: sqlite3_filename) -> Database<'a> {
        Database { file: Source::Under(name), of: PhantomData }
    }

    /// Returns the change counter in the file's header; `None` if it cannot be read.
    pub fn counter(&self) -> Option<u32> {
        self.read(24, 4).map(|bytes| word(&bytes, 0))
    }

    /// Returns page `no` of the file, counted from 1; `None` if it cannot be read.
    pub fn page(&self, no: u32) -> Option<Vec<u8>> {
        let len = self.page_len()?;
        self.read(i64::from(no.checked_sub(1)?) * len as i64, len)
    }

    /// Returns the number of pages of the file; `None` if it cannot be read.
    pub fn pages(&self) -> Option<u32> {
        let mut len = 0;
        let file = self.file();
        // SAFETY: as in `read`.
        let code = unsafe {
            let size = file.as_ref()?.pMethods.as_ref()?.xFileSize?;
            size(file, &raw mut len)
        };
        let pages = len.checked_div(self.page_len()? as i64)?;
        (code == SQLITE_OK).then_some(u32::try_from(pages).ok()?)
    }

    fn page_len(&self) -> Option<usize> {
        match self.read(16, 2)?[..] {
            [0, 1] => Some(65536),
            [high, low] => Some(usize::from(u16::from_be_bytes([high, low]))),
            _ => None,
        }
    }

    /// Returns SQLite's open file; null: none.
    fn file(&self) -> *mut sqlite3_file {
        match self.file {
            Source::Open(file) => file,
            Source::Under(name) if name.is_null() => std::ptr::null_mut(),
            // SAFETY: as `under` asks of its caller.
            Source::Under(name) => unsafe { ffi::sqlite3_database_file_object(name) },
        }
    }

    fn read(&self, at: i64, len: usize) -> Option<Vec<u8>> {
        let file = self.file();
        let mut bytes = vec![0; len];
        // SAFETY: the file is open while the connection is borrowed, and an open file has methods.
        let code = unsafe {
            let read = file.as_ref()?.pMethods.as_ref()?.xRead?;
            read(file, bytes.as_mut_ptr().cast(), len as i32, at)
        };
        (code == SQLITE_OK).then_some(bytes)
    }
}
