//! Opens connections: permissions, pragmas, and the checks that refuse a file.

use std::{
    collections::hash_map::RandomState,
    fs::{File, OpenOptions},
    hash::BuildHasher as _,
    os::unix::fs::{MetadataExt as _, OpenOptionsExt as _},
    path::{Path, PathBuf},
    time::Duration,
};

use outlast_core::store::Error;
use rusqlite::{Connection, OpenFlags, config::DbConfig};
use rustix::fs::{Access, CWD, RenameFlags};

use super::{failure, file::StoreFile, log, schema};

/// Oldest SQLite accepted. Older ones can silently lose commits in WAL mode with two writers (the WAL-reset bug).
pub const MIN_SQLITE: i32 = 3_051_003;

/// Returns the version of the linked SQLite as text.
pub fn sqlite_version() -> &'static str {
    rusqlite::version()
}

/// Opens the writer's connection, and lists the file as open.
pub fn writer(path: &Path, create: bool) -> Result<(StoreFile, Connection), Error> {
    let open_error = |why: String| Error::Open { place: path.display().to_string(), why };
    if rusqlite::version_number() < MIN_SQLITE {
        return Err(open_error(format!(
            "SQLite {} is linked, and versions before 3.51.3 can lose commits",
            rusqlite::version()
        )));
    }
    let exists = path.try_exists().map_err(|e| open_error(e.to_string()))?;
    if !exists && !create {
        return Err(open_error("there is no such file".into()));
    }
    // Checked for the sake of a clear message: SQLite calls this a read-only database.
    let directory = directory(path);
    if !directory.exists() {
        let missing = directory.display();
        return Err(open_error(format!(
            "there is no directory {missing}; make it first, or name another place"
        )));
    }
    rustix::fs::access(directory, Access::WRITE_OK | Access::EXEC_OK).map_err(|e| {
        let why = std::io::Error::from(e);
        open_error(format!(
            "its directory cannot be written, and the log is kept there: {why}; to look at it, copy the file with all \
             that stand beside it under its name (`cp -r {}* ELSEWHERE`)",
            path.display()
        ))
    })?;
    if !exists {
        refuse_orphans(path)?;
        make(path)?;
    }
    // An empty file is never a new store, as `make` gives a store its name only once it has content. The file's data
    // was lost, and creating a store over it would hide that.
    let found = std::fs::metadata(path).map_err(|e| open_error(e.to_string()))?;
    if found.len() == 0 {
        return Err(Error::Corrupt {
            what: format!(
                "{} is empty (0 bytes), and a store never is; if it is not one that was lost, remove it",
                path.display()
            ),
        });
    }
    // SQLite knows a log by its name: under each name the store would have another log, and pay again for what is in
    // the other one.
    if found.is_file() && found.nlink() > 1 {
        let names = found.nlink();
        let why = format!(
            "it has {names} names (hard links), and a store has one; remove the others, or open a copy"
        );
        return Err(open_error(why));
    }
    // Checked for the same reason: SQLite would silently open the file read-only. `access` is used rather
    // than opening the file, since closing any descriptor of it would drop the POSIX locks that another handle of
    // this process holds.
    rustix::fs::access(path, Access::READ_OK | Access::WRITE_OK)
        .map_err(|e| open_error(std::io::Error::from(e).to_string()))?;
    refuse_network(path)?;
    let file = StoreFile::claim(path)?;
    let mut conn = Connection::open_with_flags_and_vfs(
        path,
        OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_NO_MUTEX,
        log::name()?,
    )
    .map_err(|e| open_error(e.to_string()))?;
    conn.busy_handler(Some(wait_for_lock)).map_err(failure)?;
    // A store with a damaged log is left as it is when this connection closes: no checkpoint, and no log deleted.
    let keeps_log = DbConfig::SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE;
    conn.set_db_config(keeps_log, true).map_err(failure)?;
    // Before anything that reads the schema: of a log and a file that do not belong together SQLite says only "malformed".
    log::check(&conn)?;
    conn.set_db_config(keeps_log, false).map_err(failure)?;
    prepare(&mut conn)?;
    // Checked before the journal mode is set: that mode is stored in the file, and a foreign file must not be changed.
    schema::found(&mut conn, &path.display().to_string())?;
    let mode = enter_wal(&conn)?;
    if mode != "wal" {
        return Err(open_error(format!("it cannot be put into WAL mode (it is in mode {mode})")));
    }
    conn.pragma_update(None, "synchronous", "FULL").map_err(failure)?;
    conn.pragma_update(None, "wal_autocheckpoint", 1000).map_err(failure)?;
    Ok((file, conn))
}

/// Puts the file into WAL mode and returns the mode it is in.
///
/// SQLite does not call the busy handler while another process changes the mode, as happens when two processes
/// create one store at the same moment.
fn enter_wal(conn: &Connection) -> Result<String, Error> {
    let mut tries = 0;
    loop {
        let mode = conn.pragma_update_and_check(None, "journal_mode", "WAL", |r| r.get(0)).map_err(failure);
        if !matches!(mode, Err(Error::Unavailable { .. })) || !wait_for_lock(tries) {
            return mode;
        }
        tries += 1;
    }
}

/// Opens a read connection, which cannot write.
pub fn reader(path: &Path) -> Result<Connection, Error> {
    let flags = OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    // The last connection to close is often a reader: it too has to close the log's mark.
    let mut conn = Connection::open_with_flags_and_vfs(path, flags, log::name()?).map_err(failure)?;
    prepare(&mut conn)?;
    // Not opened with READ_ONLY: a read-only connection cannot recover the WAL of a killed process.
    conn.pragma_update(None, "query_only", true).map_err(failure)?;
    Ok(conn)
}

fn prepare(conn: &mut Connection) -> Result<(), Error> {
    conn.busy_handler(Some(wait_for_lock)).map_err(failure)?;
    conn.pragma_update(None, "temp_store", "MEMORY").map_err(failure)?;
    // In KiB: enough for the ends of the trees that many runs append to, and their inner pages.
    conn.pragma_update(None, "cache_size", -16_384).map_err(failure)?;
    // Without this, a query on a partial index is planned again each time its parameters are bound.
    conn.set_db_config(DbConfig::SQLITE_DBCONFIG_ENABLE_QPSG, true).map_err(failure)?;
    conn.set_prepared_statement_cache_capacity(128);
    Ok(())
}

/// Busy handler that retries every 0.1 to 2 ms, for about 30 s. SQLite's own backs off to 100 ms, which starves a
/// second process.
fn wait_for_lock(tries: i32) -> bool {
    let jitter = (tries as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32;
    std::thread::sleep(Duration::from_micros(100 + jitter % 1900));
    tries < 30_000
}

fn directory(path: &Path) -> &Path {
    path.parent().filter(|d| !d.as_os_str().is_empty()).unwrap_or(Path::new("."))
}

/// Refuses to create a store beside remnants of a missing one. SQLite would apply the old log to the new
/// store, and a mark shows that there was a store: a new one would pay again for everything that the missing
/// one had recorded.
fn refuse_orphans(path: &Path) -> Result<(), Error> {
    for suffix in ["-wal", "-shm", "-mark"] {
        let mut beside = path.as_os_str().to_owned();
        beside.push(suffix);
        let beside = Path::new(&beside);
        // Another process may be creating the store: then its name was there before its log.
        if beside.exists() && !path.exists() {
            let (missing, beside) = (path.display(), beside.display());
            return Err(Error::Corrupt {
                what: format!(
                    "{missing} is missing, but {beside} is still there; put the store back, or remove \
                     that file too for a fresh start"
                ),
            });
        }
    }
    Ok(())
}

/// Creates the file under a temporary name, and renames it once its first page identifies the store. So an empty file
/// with the final name is never an interrupted creation.
fn make(path: &Path) -> Result<(), Error> {
    let failed = |e: std::io::Error| Error::Open { place: path.display().to_string(), why: e.to_string() };
    let unnamed = Unnamed::beside(path).map_err(failed)?;
    let conn = Connection::open_with_flags(&unnamed.0, OpenFlags::SQLITE_OPEN_READ_WRITE).map_err(failure)?;
    conn.pragma_update(None, "application_id", schema::APPLICATION_ID).map_err(failure)?;
    conn.close().map_err(|(_, e)| failure(e))?;
    unnamed.name(path).map_err(failed)?;
    // Syncs the directory too, so that the name survives a loss of power.
    File::open(directory(path)).and_then(|d| d.sync_all()).map_err(failed)
}

/// A file under creation. Dropping it removes the temporary name.
struct Unnamed(PathBuf);

impl Unnamed {
    fn beside(path: &Path) -> std::io::Result<Unnamed> {
        // Random, as containers that share the directory may have equal process ids. The process id is mixed in, as two
        // forks of one process draw the same random numbers.
        let chance = RandomState::new().hash_one(std::process::id());
        let mut name = path.as_os_str().to_owned();
        name.push(format!(".new-{chance:016x}"));
        // SQLite gives the journal, the WAL and its index the permissions of the file.
        OpenOptions::new().write(true).create_new(true).mode(0o600).open(&name)?;
        let unnamed = Unnamed(name.into());
        Ok(unnamed)
    }

    /// Gives the file its final name. If another process was faster, that process's file is used.
    fn name(&self, path: &Path) -> std::io::Result<()> {
        use rustix::io::Errno;
        match rustix::fs::renameat_with(CWD, &self.0, CWD, path, RenameFlags::NOREPLACE) {
            Ok(()) | Err(Errno::EXIST) => Ok(()),
            // Not every file system supports this rename.
            Err(Errno::INVAL | Errno::NOSYS | Errno::NOTSUP) => match std::fs::hard_link(&self.0, path) {
                Err(e) if e.kind() != std::io::ErrorKind::AlreadyExists => Err(e),
                _ => Ok(()),
            },
            Err(e) => Err(e.into()),
        }
    }
}

impl Drop for Unnamed {
    fn drop(&mut self) {
        // The file has its final name by now, or is not needed.
        let _ = std::fs::remove_file(&self.0);
    }
}

/// Refuses a network file system: WAL needs shared memory and working locks, hence a local disk.
fn refuse_network(path: &Path) -> Result<(), Error> {
    const NETWORK: [(i64, &str); 5] =
        [(0x6969, "NFS"), (0x517b, "SMB"), (0xff53_4d42, "CIFS"), (0xfe53_4d42, "SMB2"), (0x0102_1997, "9p")];
    let Ok(stat) = rustix::fs::statfs(path) else { return Ok(()) };
    match NETWORK.iter().find(|(magic, _)| *magic == stat.f_type & 0xffff_ffff) {
        Some((_, name)) => Err(Error::Open {
            place: path.display().to_string(),
            why: format!("it lies on {name}, and SQLite's WAL needs a local disk"),
        }),
        None => Ok(()),
    }
}
