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
    sync::{
        Arc,
        mpsc::{Receiver, SyncSender, TrySendError, sync_channel},
    },
    thread::{self, JoinHandle},
};

use parking_lot::Mutex;

use crate::{
    Id,
    error::{About as _, Error},
    fault,
    take::threads,
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
    output: Option<Arc<Mutex<Output>>>,
    compressor: Compressor,
    /// Bytes of the contents so far.
    given: u64,
    helpers: Vec<JoinHandle<io::Result<()>>>,
    /// Contents for the helpers.
    queue: Option<SyncSender<(Id, Vec<u8>)>>,
}

type Compressor = zstd::bulk::Compressor<'static>;

/// Bytes of contents that a pack gets before threads are worth their start.
const ALONE: u64 = 4 << 20;
/// Contents that wait for a thread.
const WAITING: usize = 8;

struct Output {
    file: BufWriter<File>,
    at: u64,
    rows: Vec<Row>,
}

impl Writer {
    /// `name`: differs from the names of all other packs that are being written.
    pub fn new(directory: &Path, name: &str) -> Result<Writer, Error> {
        let compressor = Compressor::new(LEVEL).kept(|| "zstd".into())?;
        let path = directory.join(format!("{UNFINISHED}{name}"));
        let (directory, output) = (directory.to_owned(), None);
        Ok(Writer { directory, path, output, compressor, given: 0, helpers: Vec::new(), queue: None })
    }

    /// Number of bytes that the pack has so far.
    pub fn size(&self) -> u64 {
        self.output.as_ref().map_or(0, |output| output.lock().at)
    }

    /// Appends an object that the pack does not have yet. Of many, threads compress some: an error may be returned later.
    pub fn append(&mut self, id: Id, mut content: Vec<u8>) -> Result<(), Error> {
        let what = || self.path.display().to_string();
        let output = match &self.output {
            Some(output) => output,
            None => {
                fault::point("pack create").kept(what)?;
                let file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&self.path);
                let mut file = BufWriter::with_capacity(1 << 20, file.kept(what)?);
                file.write_all(HEAD).kept(what)?;
                let output = Output { file, at: HEAD.len() as u64, rows: Vec::new() };
                &*self.output.insert(Arc::new(Mutex::new(output)))
            }
        };
        self.given += content.len() as u64;
        if self.given > ALONE && self.queue.is_none() {
            let (sender, receiver) = sync_channel(WAITING);
            let receiver = Arc::new(Mutex::new(receiver));
            for _ in 0..threads(usize::MAX) {
                let (receiver, output) = (receiver.clone(), output.clone());
                self.helpers.push(thread::Builder::new().spawn(move || help(&receiver, &output)).kept(what)?);
            }
            self.queue = Some(sender);
        }
        if let Some(queue) = &self.queue {
            match queue.try_send((id, content)) {
                Ok(()) => return Ok(()),
                Err(TrySendError::Full((_, back)) | TrySendError::Disconnected((_, back))) => content = back,
            }
        }
        compress(&mut self.compressor, output, id, &content).kept(what)
    }

    /// Waits until all contents have been written.
    pub fn settle(&mut self) -> Result<(), Error> {
        self.queue = None;
        let panicked = || io::Error::other("a thread has panicked");
        let ended: Vec<_> = self.helpers.drain(..).map(JoinHandle::join).collect();
        let ended = ended.into_iter().try_for_each(|end| end.unwrap_or_else(|_| Err(panicked())));
        ended.kept(|| self.path.display().to_string())
    }

    /// Syncs the pack and gives it its name. Returns the name and the rows; `None` for a pack without an object.
    pub fn finish(mut self) -> Result<Option<(String, Vec<Row>)>, Error> {
        self.settle()?;
        let what = || self.path.display().to_string();
        let Some(output) = self.output.take() else { return Ok(None) };
        let Output { file, rows, .. } = &mut *output.lock();
        let mut table = Vec::with_capacity(rows.len() * ROW);
        for row in &*rows {
            table.extend(row.id.0);
            table.extend(row.at.to_le_bytes());
            table.extend(row.stored.to_le_bytes());
            table.extend(row.length.to_le_bytes());
        }
        let digest = Id::of(&table);
        let written = (|| -> io::Result<()> {
            file.write_all(&table)?;
            file.write_all(&digest.0)?;
            file.write_all(&(rows.len() as u32).to_le_bytes())?;
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
        Ok(Some((name, std::mem::take(rows))))
    }

    /// Removes what was written.
    pub fn abandon(mut self) {
        // Its errors do not matter any more.
        let _ = self.settle();
        if self.output.is_some() {
            // It is removed by the next `gc` otherwise.
            let _ = std::fs::remove_file(&self.path);
        }
    }
}

/// Compresses contents until no more come.
fn help(queue: &Mutex<Receiver<(Id, Vec<u8>)>>, output: &Mutex<Output>) -> io::Result<()> {
    let mut compressor = Compressor::new(LEVEL)?;
    loop {
        let next = queue.lock().recv();
        let Ok((id, content)) = next else { return Ok(()) };
        compress(&mut compressor, output, id, &content)?;
    }
}

fn compress(compressor: &mut Compressor, output: &Mutex<Output>, id: Id, content: &[u8]) -> io::Result<()> {
    let compressed = compressor.compress(content)?;
    let stored = if compressed.len() < content.len() { &compressed } else { content };
    let Output { file, at, rows } = &mut *output.lock();
    if let Err(e) = fault::point("pack write") {
        let _ = file.write_all(&stored[..stored.len() / 2]).and_then(|()| file.flush());
        return Err(e);
    }
    file.write_all(stored)?;
    rows.push(Row { id, at: *at, stored: stored.len() as u32, length: content.len() as u32 });
    *at += stored.len() as u64;
    Ok(())
}

/// Makes names of a directory durable.
pub fn sync_directory(directory: &Path) -> Result<(), Error> {
    File::open(directory).and_then(|d| d.sync_all()).kept(|| directory.display().to_string())
}
