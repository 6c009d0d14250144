//! Pages of the database file as they are on the disk, without what the log adds.

use std::{ffi::c_void, marker::PhantomData};

use rusqlite::{
    Connection,
    ffi::{self, SQLITE_FCNTL_FILE_POINTER, SQLITE_OK, sqlite3_file},
};

use super::frames::word;

/// Database file of an open connection, read through that connection: to open it once more and close it would drop the
/// locks of this process.
pub struct Database<'a> {
    file: *mut sqlite3_file,
    of: PhantomData<&'a Connection>,
}

impl Database<'_> {
    pub fn of(conn: &Connection) -> Database<'_> {
        let mut file: *mut sqlite3_file = std::ptr::null_mut();
        let out = (&raw mut file).cast::<c_void>();
        // SAFETY: the connection is open; SQLite writes one pointer to `out`, null if there is none.
        unsafe { ffi::sqlite3_file_control(conn.handle(), c"main".as_ptr(), SQLITE_FCNTL_FILE_POINTER, out) };
        Database { file, of: PhantomData }
    }

    /// Returns the change counter in the file's header.
    pub fn counter(&self) -> Option<u32> {
        self.read(24, 4).map(|bytes| word(&bytes, 0))
    }

    /// Returns a page of the file.
    pub fn page(&self, no: u32) -> Option<Vec<u8>> {
        let len = match self.read(16, 2)?[..] {
            [0, 1] => 65536,
            [high, low] => usize::from(u16::from_be_bytes([high, low])),
            _ => return None,
        };
        self.read(i64::from(no.checked_sub(1)?) * len as i64, len)
    }

    fn read(&self, at: i64, len: usize) -> Option<Vec<u8>> {
        let mut bytes = vec![0; len];
        // SAFETY: the file is open while the connection is borrowed, and an open file has methods.
        let code = unsafe {
            let read = self.file.as_ref()?.pMethods.as_ref()?.xRead?;
            read(self.file, bytes.as_mut_ptr().cast(), len as i32, at)
        };
        (code == SQLITE_OK).then_some(bytes)
    }
}
