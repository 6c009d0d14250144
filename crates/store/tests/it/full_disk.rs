//! A disk that is really full: a small file system of its own, in a mount namespace of its own.

use std::{
    fs::{self, File},
    io::Write as _,
    path::Path,
    process::Command,
};

use outlast_core::{
    engine::state::put::{Change, Put},
    state::Name,
    words::clock::{Entropy as _, SeededEntropy},
};

use crate::{
    beds::{Opened, open_at, place},
    child,
    stage::{Stage, audit},
};

/// Runs the test `name` again with its part in `mounted`, where `mount` mounts a file system.
fn within_mounts(name: &str, mounted: &Path, mount: &str) {
    let uid = rustix::process::getuid();
    let mut namespace = vec!["unshare".to_owned(), "--mount".into()];
    if !uid.is_root() {
        namespace.extend(["--user".into(), "--map-root-user".into()]);
    }
    let script = format!("mount -t tmpfs -o {mount} tmpfs \"$0\" && exec \"$@\"");
    namespace.extend(["sh", "-c", &script, place(mounted)].map(str::to_owned));
    namespace.extend(child::argv(name));
    let played = child::command(&namespace, place(mounted)).output().unwrap();
    let said = [played.stdout, played.stderr].map(|b| String::from_utf8_lossy(&b).into_owned()).concat();
    assert!(played.status.success(), "wanted a mount namespace and a story that ends well, had: {said}");
}

fn put(key: &str, bytes: usize) -> Put {
    // Not compressible.
    let mut value = vec![0; bytes];
    SeededEntropy::new(bytes as u64).fill(&mut value);
    Put { changes: vec![Change::set(Name::new("n", "a", key), &value)], ..Put::default() }
}

/// Writes until there is no room for a byte.
fn fill(path: &Path) {
    let mut file = File::create(path).unwrap();
    for size in [1 << 20, 4096, 1] {
        let zeros = vec![0; size];
        while file.write_all(&zeros).is_ok() {}
    }
}

fn a_full_disk(directory: &Path) {
    let store = directory.join("outlast.db");
    let filler = directory.join("filler");
    let s = Stage::on(Opened(open_at(place(&store), true).unwrap()));
    let a = s.process("p").claim(s.run("r").create());
    let calls: Vec<_> = (0..20).map(|i| a.call(&format!("call {i}"))).collect();
    let step = a.begins("step");
    fill(&filler);

    // SQLite's WAL has some room of its own: it is used up first.
    let mut kept = Vec::new();
    let error = loop {
        let key = format!("k{}", kept.len());
        match s.ask(put(&key, 100_000)) {
            Ok(_) => kept.push(key),
            Err(e) => break e,
        }
        assert!(kept.len() < 1000, "the disk does not fill");
    };
    assert_eq!(error.code(), "store_full", "{error}");
    // Open work can be closed, and new work is refused with this error, as long as the disk is full.
    for seq in calls {
        a.done(seq, 100);
    }
    a.ask(a.record(step, "result")).unwrap();
    a.pulse(10);
    let refused = [s.ask(put("refused", 1)).unwrap_err(), a.request("new").ask().unwrap_err()];
    assert!(refused.iter().all(|e| e.code() == "store_full"), "{refused:?}");
    assert_eq!(s.money(a.run), (0, 0, 2000));

    fs::remove_file(&filler).unwrap();
    s.ask(put("again", 100_000)).unwrap();
    a.buys("new", 100);
    let before = s.view(a.run);
    drop((a, s));
    let s = Stage::on(Opened(open_at(place(&store), false).unwrap()));
    assert_eq!(s.view(before.run.no), before);
    kept.push("again".into());
    for key in kept {
        assert_eq!(s.store().state("n", "a", &key).unwrap().unwrap().value.unwrap().len(), 100_000, "{key}");
    }
    assert_eq!(s.store().state("n", "a", "refused").unwrap(), None);
    audit(&*s.store());
}

/// Bug: a small disk that had been full once refused new work for the life of the process, with 40 MB free.
/// Cause: the ballast came back only where 64 MiB were free.
#[test]
fn on_a_full_disk_what_is_open_is_closed_and_nothing_is_lost() {
    if let Some(directory) = child::part() {
        return a_full_disk(Path::new(&directory));
    }
    let directory = tempfile::tempdir().unwrap();
    let name = "full_disk::on_a_full_disk_what_is_open_is_closed_and_nothing_is_lost";
    within_mounts(name, directory.path(), "size=40m");
}

fn a_read_only_disk(directory: &Path) {
    let store = directory.join("outlast.db");
    drop(open_at(place(&store), true).unwrap());
    let remount = |how: &str| {
        let done = Command::new("mount").args(["-o", how]).arg(directory).status().unwrap();
        assert!(done.success());
    };
    remount("remount,ro");
    for place_ in [store.clone(), directory.join("new.db")] {
        let error = open_at(place(&place_), true).map(|_| ()).unwrap_err();
        assert_eq!(error.code(), "store_open");
        assert!(error.to_string().contains("Read-only"), "{error}");
    }
    remount("remount,rw");
    open_at(place(&store), false).unwrap();
}

#[test]
fn a_store_on_a_read_only_disk_is_refused_by_name() {
    if let Some(directory) = child::part() {
        return a_read_only_disk(Path::new(&directory));
    }
    let directory = tempfile::tempdir().unwrap();
    let name = "full_disk::a_store_on_a_read_only_disk_is_refused_by_name";
    within_mounts(name, directory.path(), "size=16m");
}
