//! Size of a tree before its first snapshot: a walk that reads no file.

use std::{
    ffi::OsStr,
    os::{
        fd::{AsFd as _, OwnedFd},
        unix::ffi::OsStrExt as _,
    },
    path::Path,
};

use rustix::fs::{AtFlags, FileType, Stat};

use crate::{
    beneath,
    error::{About as _, Error, shown},
    rules::{Judge, Rules},
    take::{DEEPEST, names},
    tree,
};

/// Numbers of files and directories, and of the files' bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Size {
    pub files: u64,
    pub bytes: u64,
}

/// Kinds of file systems whose names are looked at without asking another machine or program: ext, XFS, Btrfs, F2FS,
/// bcachefs, ZFS, tmpfs, overlayfs.
const LOCAL: [u32; 8] =
    [0x0000_ef53, 0x5846_5342, 0x9123_683e, 0xf2f5_2010, 0xca45_1a4e, 0x2fc1_2fc1, 0x0102_1994, 0x794c_7630];

/// Returns whether a directory is on a file system of this machine. One of another kind may take a while for each file.
pub fn is_local(directory: &Path) -> bool {
    // The number is one of 32 bits, whatever type the machine has for it.
    rustix::fs::statfs(directory).is_ok_and(|facts| LOCAL.contains(&(facts.f_type as u32)))
}

/// Returns the size of what a snapshot of `root` would hold; `None` if it is more than `most`: no more of it is walked then.
pub fn measure(root: &Path, rules: &Rules, most: Size) -> Result<Option<Size>, Error> {
    let what = || root.display().to_string();
    let fd = beneath::root(root).about(what)?;
    let stat = rustix::fs::fstat(&fd).about(what)?;
    let judge = Judge::new(rules, root, None);
    let mut walk = Walk { judge, device: stat.st_dev, path: Vec::new(), size: Size::default(), most };
    Ok(walk.directory(&fd, &stat, 0)?.then_some(walk.size))
}

struct Walk {
    judge: Judge,
    device: u64,
    path: Vec<u8>,
    size: Size,
    most: Size,
}

impl Walk {
    /// Adds a directory, and returns whether the size is still none too large.
    fn directory(&mut self, fd: &OwnedFd, stat: &Stat, depth: usize) -> Result<bool, Error> {
        let listed = names(fd).about(|| shown(&self.path))?;
        let has_list = listed.iter().any(|name| name == b".gitignore");
        let entered = self.judge.enter(fd, &self.path, has_list);
        let mut is_within = true;
        for name in listed {
            let above = tree::enter(&mut self.path, &name);
            is_within = self.name(fd, &name, (stat.st_dev, stat.st_ino), depth)?;
            self.path.truncate(above);
            if !is_within {
                break;
            }
        }
        if entered {
            self.judge.leave();
        }
        Ok(is_within)
    }

    fn name(
        &mut self,
        parent: &OwnedFd,
        name: &[u8],
        place: (u64, u64),
        depth: usize,
    ) -> Result<bool, Error> {
        // What is gone by now, or may not be read, adds nothing.
        let at = rustix::fs::statat(parent.as_fd(), OsStr::from_bytes(name), AtFlags::SYMLINK_NOFOLLOW);
        let Ok(stat) = at else { return Ok(true) };
        let kind = FileType::from_raw_mode(stat.st_mode);
        let is_directory = kind == FileType::Directory;
        if self.judge.passes(&self.path, self.path.len() - name.len(), is_directory, place).is_some() {
            return Ok(true);
        }
        self.size.files += 1;
        if kind == FileType::RegularFile {
            self.size.bytes += u64::try_from(stat.st_size).unwrap_or(0);
        }
        if self.size.files > self.most.files || self.size.bytes > self.most.bytes {
            return Ok(false);
        }
        if !is_directory || stat.st_dev != self.device || depth == DEEPEST {
            return Ok(true);
        }
        match beneath::child(parent, name) {
            Ok(child) => self.directory(&child, &stat, depth + 1),
            Err(_) => Ok(true),
        }
    }
}
