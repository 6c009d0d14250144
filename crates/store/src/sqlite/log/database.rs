//! Pages of the database file as they are on the disk, without what the log adds.

use std::{ffi::c_void, marker::PhantomData};

use rusqlite::{
    Connection,
    ffi::{self, SQLITE_FCNTL_FILE_POINTER, SQLITE_OK, sqlite3_file, sqlite3_filename},
};

use super::frames::word;

/// Database file of an open connection, read through that connection: to open it once more and close it would drop the
/// locks of this process.
pub struct Database<'a> {
    file: File,
    of: PhantomData<&'a Connection>,
}

enum File {
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
        Database { file: File::Open(file), of: PhantomData }
    }

    /// Returns the database file of the log that SQLite has open under `name`; null: none, which has no pages.
    ///
    /// # Safety
    /// `name` is the name that SQLite gave to the log's `xOpen`, or null, and the log is still open while the result is used.
    pub unsafe fn under<'a>(name: sqlite3_filename) -> Database<'a> {
        Database { file: File::Under(name), of: PhantomData }
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
            File::Open(file) => file,
            File::Under(name) if name.is_null() => std::ptr::null_mut(),
            // SAFETY: as `under` asks of its caller.
            File::Under(name) => unsafe { ffi::sqlite3_database_file_object(name) },
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
