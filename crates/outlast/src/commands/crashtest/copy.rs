//! Copies of the directory that is tested.

use std::{
    collections::BTreeSet,
    ffi::OsString,
    fs::{self, Metadata, Permissions},
    io,
    os::unix::fs::{MetadataExt as _, PermissionsExt as _, symlink},
    path::Path,
};

use rustix::fs::{AtFlags, CWD, Timespec, Timestamps, utimensat};

/// Makes `to` the same as the directory `from`: names, kinds, modes, contents and times. What is the same already by kind,
/// size, mode and time is left, so that a copy is made fresh again at the cost of what a run changed.
///
/// Links are copied as links. FIFOs, sockets and devices are left out. Errors: the file system's.
pub fn mirror(from: &Path, to: &Path) -> io::Result<()> {
    match fs::symlink_metadata(to) {
        Ok(found) if found.is_dir() => fs::set_permissions(to, Permissions::from_mode(0o700))?,
        Ok(_) => {
            fs::remove_file(to)?;
            fs::create_dir(to)?;
        }
        Err(_) => fs::create_dir(to)?,
    }
    let names = names(from)?;
    for extra in self::names(to)?.difference(&names) {
        remove(&to.join(extra))?;
    }
    for name in &names {
        let (source, target) = (from.join(name), to.join(name));
        let meta = fs::symlink_metadata(&source)?;
        if meta.is_dir() {
            mirror(&source, &target)?;
        } else if !fs::symlink_metadata(&target).is_ok_and(|there| is_same(&meta, &there)) {
            remove(&target)?;
            if meta.is_symlink() {
                symlink(fs::read_link(&source)?, &target)?;
            } else if meta.is_file() {
                fs::copy(&source, &target)?;
            } else {
                continue;
            }
            set_times(&target, &meta)?;
        }
    }
    let meta = fs::metadata(from)?;
    fs::set_permissions(to, meta.permissions())?;
    set_times(to, &meta)
}

/// Returns the names in a directory.
pub fn names(directory: &Path) -> io::Result<BTreeSet<OsString>> {
    fs::read_dir(directory)?.map(|entry| Ok(entry?.file_name())).collect()
}

/// Removes whatever has this path, with all below it; nothing there is no error.
pub fn remove(path: &Path) -> io::Result<()> {
    match fs::symlink_metadata(path) {
        Ok(found) if found.is_dir() => {
            fs::set_permissions(path, Permissions::from_mode(0o700))?;
            for name in names(path)? {
                remove(&path.join(name))?;
            }
            fs::remove_dir(path)
        }
        Ok(_) => fs::remove_file(path),
        Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(()),
        Err(e) => Err(e),
    }
}

fn is_same(a: &Metadata, b: &Metadata) -> bool {
    let facts = |meta: &Metadata| (meta.mode(), meta.len(), meta.mtime(), meta.mtime_nsec());
    facts(a) == facts(b)
}

fn set_times(path: &Path, as_of: &Metadata) -> io::Result<()> {
    let at = |tv_sec, nanos| Timespec { tv_sec, tv_nsec: nanos };
    let times = Timestamps {
        last_access: at(as_of.atime(), as_of.atime_nsec()),
        last_modification: at(as_of.mtime(), as_of.mtime_nsec()),
    };
    Ok(utimensat(CWD, path, &times, AtFlags::SYMLINK_NOFOLLOW)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_copy_is_made_the_same_again_whatever_was_done_to_it() {
        let dir = tempfile::tempdir().unwrap();
        let (from, to) = (dir.path().join("from"), dir.path().join("to"));
        fs::create_dir_all(from.join("a/b")).unwrap();
        fs::write(from.join("a/kept"), "kept").unwrap();
        fs::write(from.join("a/b/program"), "#!/bin/sh\n").unwrap();
        fs::set_permissions(from.join("a/b/program"), Permissions::from_mode(0o500)).unwrap();
        symlink("nowhere", from.join("link")).unwrap();
        mirror(&from, &to).unwrap();
        fs::write(to.join("a/kept"), "lost").unwrap();
        fs::create_dir(to.join("more")).unwrap();
        fs::write(to.join("more/x"), "x").unwrap();
        remove(&to.join("a/b")).unwrap();
        remove(&to.join("link")).unwrap();
        fs::create_dir(to.join("link")).unwrap();
        mirror(&from, &to).unwrap();
        assert_eq!(fs::read_to_string(to.join("a/kept")).unwrap(), "kept");
        assert_eq!(fs::metadata(to.join("a/b/program")).unwrap().mode() & 0o777, 0o500);
        assert_eq!(fs::read_link(to.join("link")).unwrap(), Path::new("nowhere"));
        assert_eq!(names(&to).unwrap(), names(&from).unwrap());
    }
}
