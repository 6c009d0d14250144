//! A pack: objects in one file, which is written once and synced once.
//!
//! `OLFILES1`, the contents one after the other, the table (a row of [`ROW`] bytes for each object), the SHA-256 of the
//! table, the number of rows, `OLFILESE`. A pack gets its name when it is complete and on the disk. So a file with a
//! pack's name that is not complete has been damaged.

use std::{
    fs::{File, OpenOptions},
    io::{self, BufWriter, Write as _},
    os::unix::fs::{FileExt as _, OpenOptionsExt as _},
    path::{Path, PathBuf},
};

use crate::{
    Id,
    error::{About as _, Error},
    fault,
    tree::Reader,
};

const HEAD: &[u8; 8] = b"OLFILES1";
const END: &[u8; 8] = b"OLFILESE";
/// Id, offset, stored length, length of the content.
const ROW: usize = 32 + 8 + 4 + 4;
const FOOT: usize = 32 + 4 + 8;
/// A higher level makes snapshots of sources a tenth smaller and takes three times as long.
const LEVEL: i32 = 1;

/// Suffix of a pack's name.
pub const SUFFIX: &str = ".pack";
/// Prefix of the names of packs that are not complete.
pub const UNFINISHED: &str = "unfinished-";

/// Place of an object in its pack. It is compressed where `stored` is less than `length`.
#[derive(Clone, Copy, Debug)]
pub struct Row {
    pub id: Id,
    at: u64,
    pub stored: u32,
    pub length: u32,
}

/// Reads the table of a pack. Errors: `Corrupt`.
pub fn table(path: &Path) -> Result<Vec<Row>, Error> {
    let name = || path.display().to_string();
    let corrupt = || Error::Corrupt { what: name() };
    let file = File::open(path).about(name)?;
    let size = file.metadata().about(name)?.len();
    let mut foot = [0; FOOT];
    let foot_at = size.checked_sub(FOOT as u64).ok_or_else(corrupt)?;
    file.read_exact_at(&mut foot, foot_at).about(name)?;
    let (digest, rest) = foot.split_at(32);
    let (count, end) = rest.split_at(4);
    let count = count.try_into().map(u32::from_le_bytes).map_err(|_| corrupt())?;
    let table_at = foot_at.checked_sub(u64::from(count) * ROW as u64).ok_or_else(corrupt)?;
    let mut table = vec![0; count as usize * ROW];
    file.read_exact_at(&mut table, table_at).about(name)?;
    if end != END || Id::of(&table).0 != digest {
        return Err(corrupt());
    }
    let row = |row: &[u8]| {
        let mut reader = Reader { left: row };
        let (id, at) = (Id(reader.array()?), u64::from_le_bytes(reader.array()?));
        let mut length = || reader.array().map(u32::from_le_bytes);
        let row = Row { id, at, stored: length()?, length: length()? };
        (row.at + u64::from(row.stored) <= table_at).then_some(row)
    };
    table.chunks_exact(ROW).map(row).collect::<Option<_>>().ok_or_else(corrupt)
}

/// Reads an object as it is stored.
pub fn stored(pack: &File, row: &Row, place: &Path) -> Result<Vec<u8>, Error> {
    let mut stored = vec![0; row.stored as usize];
    pack.read_exact_at(&mut stored, row.at).about(|| format!("object {} in {}", row.id, place.display()))?;
    Ok(stored)
}

/// Returns the content of a stored object, checked against its name; `None`: it is damaged.
pub fn content(id: Id, length: u32, stored: Vec<u8>) -> Option<Vec<u8>> {
    let content = match stored.len() < length as usize {
        true => zstd::bulk::decompress(&stored, length as usize).ok()?,
        false => stored,
    };
    (Id::of(&content) == id).then_some(content)
}

/// A pack that is being written. Without an object, no file is made. Dropped before its end, it leaves a file that the
/// next `gc` removes.
pub struct Writer {
    directory: PathBuf,
    path: PathBuf,
    file: Option<BufWriter<File>>,
    at: u64,
    rows: Vec<Row>,
    compressor: zstd::bulk::Compressor<'static>,
}

impl Writer {
    /// `name`: differs from the names of all other packs that are being written.
    pub fn new(directory: &Path, name: &str) -> Result<Writer, Error> {
        let compressor = zstd::bulk::Compressor::new(LEVEL).kept(|| "zstd".into())?;
        let path = directory.join(format!("{UNFINISHED}{name}"));
        Ok(Writer { directory: directory.to_owned(), path, file: None, at: 0, rows: Vec::new(), compressor })
    }

    /// Number of bytes that the pack has so far.
    pub fn size(&self) -> u64 {
        self.at
    }

    /// Appends an object that the pack does not have yet.
    pub fn append(&mut self, id: Id, content: &[u8]) -> Result<(), Error> {
        let what = || self.path.display().to_string();
        let file = match &mut self.file {
            Some(file) => file,
            none => {
                fault::point("pack create").kept(what)?;
                let file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&self.path);
                let mut file = BufWriter::with_capacity(1 << 20, file.kept(what)?);
                file.write_all(HEAD).kept(what)?;
                self.at = HEAD.len() as u64;
                none.insert(file)
            }
        };
        let compressed = self.compressor.compress(content).kept(what)?;
        let stored = if compressed.len() < content.len() { &compressed } else { content };
        if let Err(e) = fault::point("pack write") {
            let _ = file.write_all(&stored[..stored.len() / 2]).and_then(|()| file.flush());
            return Err(e).kept(what);
        }
        file.write_all(stored).kept(what)?;
        self.rows.push(Row { id, at: self.at, stored: stored.len() as u32, length: content.len() as u32 });
        self.at += stored.len() as u64;
        Ok(())
    }

    /// Syncs the pack and gives it its name. Returns the name and the rows; `None` for a pack without an object.
    pub fn finish(mut self) -> Result<Option<(String, Vec<Row>)>, Error> {
        let what = || self.path.display().to_string();
        let Some(mut file) = self.file.take() else { return Ok(None) };
        let mut table = Vec::with_capacity(self.rows.len() * ROW);
        for row in &self.rows {
            table.extend(row.id.0);
            table.extend(row.at.to_le_bytes());
            table.extend(row.stored.to_le_bytes());
            table.extend(row.length.to_le_bytes());
        }
        let digest = Id::of(&table);
        let written = (|| -> io::Result<()> {
            file.write_all(&table)?;
            file.write_all(&digest.0)?;
            file.write_all(&(self.rows.len() as u32).to_le_bytes())?;
            file.write_all(END)?;
            file.flush()?;
            fault::point("pack sync")?;
            file.get_ref().sync_all()?;
            fault::point("pack rename")
        })();
        written.kept(what)?;
        let name = format!("{digest}{SUFFIX}");
        std::fs::rename(&self.path, self.directory.join(&name)).kept(what)?;
        fault::point("pack directory").kept(what)?;
        sync_directory(&self.directory)?;
        Ok(Some((name, std::mem::take(&mut self.rows))))
    }

    /// Removes what was written.
    pub fn abandon(self) {
        if self.file.is_some() {
            // It is removed by the next `gc` otherwise.
            let _ = std::fs::remove_file(&self.path);
        }
    }
}

/// Makes names of a directory durable.
pub fn sync_directory(directory: &Path) -> Result<(), Error> {
    File::open(directory).and_then(|d| d.sync_all()).kept(|| directory.display().to_string())
}
