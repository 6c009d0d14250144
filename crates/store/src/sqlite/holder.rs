//! Finder of the process that keeps this one from writing: it holds the write lock of the store's log.

use std::{fs, os::unix::fs::MetadataExt as _, path::Path};

/// Byte of the log's index that SQLite locks to write.
const WRITE_LOCK: u64 = 120;

/// Returns who holds the store's lock, in words; `None` if that cannot be seen from here.
pub fn holder(store: &Path) -> Option<String> {
    let mut index = store.as_os_str().to_owned();
    index.push("-shm");
    let inode = fs::metadata(index).ok()?.ino();
    let pid = of_locks(&fs::read_to_string("/proc/locks").ok()?, inode)?;
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    let (name, rest) = stat.split_once('(')?.1.rsplit_once(')')?;
    Some(match rest.trim_start().starts_with('T') {
        true => format!(
            "process {pid} ({name}) holds the store's lock and is stopped: `kill -CONT {pid}` lets it go on"
        ),
        false => format!("process {pid} ({name}) holds the store's lock for too long"),
    })
}

/// Returns the process that has locked the index with this inode to write, as `/proc/locks` lists it.
fn of_locks(locks: &str, inode: u64) -> Option<u32> {
    locks.lines().find_map(|line| {
        let [_, "POSIX", _, "WRITE", pid, file, first, last] = *line.split_whitespace().collect::<Vec<_>>()
        else {
            return None;
        };
        let is_index = file.rsplit_once(':')?.1.parse() == Ok(inode);
        let range = first.parse::<u64>().ok()?..=last.parse().unwrap_or(u64::MAX);
        (is_index && range.contains(&WRITE_LOCK)).then(|| pid.parse().ok())?
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_holder_is_who_has_locked_the_indexs_byte_to_write() {
        let locks = "1: FLOCK  ADVISORY  WRITE 30366 fe:00:77 0 EOF\n\
                     2: POSIX  ADVISORY  READ 11 fe:00:77 128 128\n\
                     3: POSIX  ADVISORY  WRITE 12 fe:00:78 120 120\n\
                     3: -> POSIX  ADVISORY  WRITE 13 fe:00:77 120 120\n\
                     4: POSIX  ADVISORY  WRITE 14 fe:00:77 121 127\n";
        assert_eq!(of_locks(locks, 77), None);
        for range in ["120 120", "120 127", "0 EOF"] {
            assert_eq!(
                of_locks(&format!("{locks}5: POSIX  ADVISORY  WRITE 15 fe:00:77 {range}\n"), 77),
                Some(15)
            );
        }
    }
}
