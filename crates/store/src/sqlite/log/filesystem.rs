//! File systems on which a write-through is known to reach the disk.
//!
//! `pwritev2(RWF_DSYNC)` is accepted by every file system and honoured by those that look at the flag: the kernel only
//! sets `IOCB_DSYNC` on the request. Each of the table calls `generic_write_sync` with that request when it has
//! written. Elsewhere SQLite's own sync follows the write.

use std::path::Path;

/// File systems that honour RWF_DSYNC: magic number (linux/magic.h), name, the function in the kernel that does it.
const HONOUR: [(u32, &str, &str); 4] = [
    (
        0xef53,
        "ext4",
        "ext4_buffered_write_iter in fs/ext4/file.c; ext2 and ext3 have the same number and do it too",
    ),
    (0x5846_5342, "xfs", "xfs_file_buffered_write in fs/xfs/xfs_file.c"),
    (0x9123_683e, "btrfs", "btrfs_do_write_iter in fs/btrfs/file.c"),
    (0xf2f5_2010, "f2fs", "f2fs_file_write_iter in fs/f2fs/file.c"),
];

/// File systems that are known by name and get a sync of their own, with the reason. NFS, SMB and 9p are refused before.
const OTHER: [(u32, &str, &str); 4] = [
    (
        0x6573_5546,
        "FUSE or virtiofs",
        "it hands the flag to a server that may ignore it (fuse_write_flags in fs/fuse/file.c)",
    ),
    (
        0x794c_7630,
        "overlayfs",
        "it passes the flag on to a file system that is not known here (ovl_write_iter in fs/overlayfs/file.c)",
    ),
    (0x2fc1_2fc1, "ZFS", "only newer versions of it honour the flag (zpl_iter_write)"),
    (0x0102_1994, "tmpfs", "it is in memory: nothing on it survives a loss of power"),
];

/// Way in which a synced commit reaches the disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SyncMode {
    /// One `pwritev2(RWF_DSYNC)` for the pages and the sync.
    WriteThrough { file_system: &'static str },
    /// A write, then a sync of the whole file.
    WriteThenSync { file_system: Option<&'static str>, magic: u32, why: &'static str },
}

impl SyncMode {
    /// Returns how a synced commit of a file at `path` reaches the disk, by the type of its file system.
    pub fn at(path: &Path) -> SyncMode {
        // Truncated on purpose: the field is signed and of the machine's width, the numbers have 32 bits.
        SyncMode::on(rustix::fs::statfs(path).map_or(0, |found| found.f_type as u32))
    }

    fn on(magic: u32) -> SyncMode {
        let named =
            |table: &[(u32, &'static str, &'static str)]| table.iter().find(|t| t.0 == magic).copied();
        if let Some((_, file_system, _)) = named(&HONOUR) {
            return SyncMode::WriteThrough { file_system };
        }
        let (file_system, why) = match named(&OTHER) {
            Some((_, name, why)) => (Some(name), why),
            None => (None, "it is not known to honour RWF_DSYNC"),
        };
        SyncMode::WriteThenSync { file_system, magic, why }
    }

    pub fn writes_through(&self) -> bool {
        matches!(self, SyncMode::WriteThrough { .. })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    // Bug: a file system that accepts RWF_DSYNC and ignores it was written through. Consequence: a loss of power takes
    // acknowledged commits. Cause: only a refusal of the call was looked at.
    #[test]
    fn only_a_file_system_that_is_known_to_honour_the_flag_is_written_through() {
        let check =
            |magic, wants: bool| assert_eq!(SyncMode::on(magic).writes_through(), wants, "{magic:#x}");
        HONOUR.iter().for_each(|of| check(of.0, true));
        OTHER.iter().for_each(|of| check(of.0, false));
        check(0x1234_5678, false);
        check(0, false);
    }
}
