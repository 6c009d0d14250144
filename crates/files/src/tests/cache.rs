//! Stories of the cache: what looks as it did is not read, what may have changed is.

use std::{
    cell::Cell,
    rc::Rc,
    time::{Duration, SystemTime},
};

use super::*;
use crate::take::take_at;

/// Lead of a snapshot's time over the clock with which everything has been at rest for long, in microseconds.
const LATER: i64 = 60_000_000;

impl Place {
    /// Takes a snapshot to which all changes so far are old.
    fn take_later(&mut self) -> Taken {
        let at = crate::take::now_us() + LATER;
        take_at(&mut self.objects, &self.root, &self.rules, &mut self.cache, at).unwrap()
    }

    /// Returns a snapshot, and how many files were read for it.
    fn counting(&mut self, take: impl FnOnce(&mut Place) -> Taken) -> (Taken, usize) {
        let count = Rc::new(Cell::new(0));
        let counted = count.clone();
        let count_reads = move |name: &str| counted.set(counted.get() + usize::from(name == "file read"));
        fault::between(Some(Box::new(count_reads)));
        let taken = take(self);
        fault::between(None);
        (taken, count.get())
    }

    /// Returns the time of the last change of a path, in microseconds.
    fn changed_us(&self, path: &str) -> i64 {
        let meta = fs::metadata(self.root.join(path)).unwrap();
        meta.ctime() * 1_000_000 + meta.ctime_nsec() / 1000
    }

    fn stamp(&self, path: &OsStr, seconds: u64) {
        let file = fs::File::open(self.root.join(path)).unwrap();
        file.set_modified(SystemTime::UNIX_EPOCH + Duration::from_secs(seconds)).unwrap();
    }
}

#[test]
fn an_unchanged_tree_adds_no_pack_and_reads_no_file() {
    let mut place = Place::new();
    place.write("a/b", "x");
    place.write("a/c/d", "y");
    let first = place.take_later();
    let (second, reads) = place.counting(Place::take_later);
    assert_eq!((first, 0), (second, reads));
    let files = fs::read_dir(place.objects.directory()).unwrap();
    assert_eq!(files.count(), 2, "the lock, and one pack");
}

#[test]
fn a_file_whose_last_change_is_as_young_as_its_snapshot_is_read_again() {
    let mut place = Place::new();
    place.write("a", "x");
    // A change in the same moment would leave the file's time as it is.
    for (age_us, reads) in [(0, 1), (19_000, 1), (21_001, 0)] {
        let at = place.changed_us("a") + age_us;
        place.cache = Cache::default();
        take_at(&mut place.objects, &place.root, &place.rules, &mut place.cache, at).unwrap();
        assert_eq!(place.counting(Place::take_later).1, reads, "{age_us} µs");
    }
}

#[test]
fn a_directory_whose_last_change_is_as_young_as_its_snapshot_is_listed_again() {
    let mut place = Place::new();
    place.write("a", "x");
    for (age_us, is_settled) in [(0, false), (19_000, false), (21_001, true)] {
        let at = place.changed_us("") + age_us;
        place.cache = Cache::default();
        take_at(&mut place.objects, &place.root, &place.rules, &mut place.cache, at).unwrap();
        assert_eq!(place.cache.root.as_ref().unwrap().looks.is_some(), is_settled, "{age_us} µs");
    }
}

#[test]
fn a_snapshot_with_a_cache_is_that_without_one_after_any_edits() {
    for seed in 0..40 {
        let mut random = Random(seed);
        let mut place = Place::new();
        place.write(".gitignore", "c.txt\n");
        (0..20).for_each(|_| edit(&mut random, &place.root));
        place.take_later();
        let mut before = model(&place.root);
        for round in 1..8 {
            (0..random.below(4)).for_each(|_| edit(&mut random, &place.root));
            match random.below(8) {
                0 => place.write(".gitignore", ["a\n", "b\n", "B\nc.txt\n"][random.below(3) as usize]),
                1 => place.write("a.d/.gitignore", ["*\n", "x\n"][random.below(2) as usize]),
                2 => place.write("a.d/x", format!("{round}")),
                _ => {}
            }
            // The clock of the file system may have stood still: what has changed gets another time here.
            let now = model(&place.root);
            let differs = |path: &&Vec<u8>| before.get(*path) != now.get(*path);
            for path in before.keys().chain(now.keys()).filter(differs) {
                let (above, _) = beneath::split(path);
                for changed in [path.as_slice(), above] {
                    let is_stamped = now.get(changed).is_none_or(|(kind, ..)| matches!(*kind, 'd' | 'f'));
                    if is_stamped && place.root.join(OsStr::from_bytes(changed)).exists() {
                        place.stamp(OsStr::from_bytes(changed), seed * 1000 + round);
                    }
                }
            }
            before = now;
            let with = place.take_later();
            let cache = std::mem::take(&mut place.cache);
            let without = place.take_later();
            assert_eq!(with.snapshot.tree, without.snapshot.tree, "seed {seed}, round {round}");
            assert_eq!(with.passed, without.passed, "seed {seed}, round {round}");
            let counts = |taken: &Taken| (taken.snapshot.files, taken.snapshot.bytes);
            assert_eq!(counts(&with), counts(&without), "seed {seed}, round {round}");
            if round % 2 == 0 {
                place.cache = cache;
            }
        }
    }
}

#[test]
fn other_rules_judge_names_again_and_read_no_file_again() {
    let mut place = Place::new();
    place.write("a/x.log", "x");
    place.write("a/y", "y");
    place.take_later();
    place.rules.exclude = vec!["*.log".into()];
    let (taken, reads) = place.counting(Place::take_later);
    assert_eq!((taken.snapshot.files, reads), (1, 0));
    // A list that is not kept itself counts too.
    place.write("a/.gitignore", "y\n.gitignore\n");
    place.stamp(OsStr::new("a"), 1);
    place.stamp(OsStr::new("a/.gitignore"), 1);
    assert_eq!(place.take_later().snapshot.files, 0);
    place.write("a/.gitignore", "z\n.gitignore\n");
    place.stamp(OsStr::new("a/.gitignore"), 2);
    assert_eq!(place.take_later().snapshot.files, 1);
}

#[test]
fn a_file_whose_content_was_collected_is_read_again() {
    let mut place = Place::new();
    place.write("a", "x");
    place.write("b", "x");
    let first = place.take_later();
    place.write("dir/c", "y");
    place.stamp(OsStr::new(""), 1);
    let second = place.take_later();
    let alone = place.objects.alone().unwrap();
    place.objects.collect(&alone, &[first.id]).unwrap();
    drop(alone);
    let (third, reads) = place.counting(Place::take_later);
    assert_eq!((third.snapshot.tree, reads), (second.snapshot.tree, 1));
    assert_eq!(place.objects.verify(&[third.id]).unwrap(), Vec::<String>::new());
}

#[test]
fn a_cache_is_the_same_after_it_was_written_and_empty_when_it_is_damaged() {
    let mut place = Place::new();
    place.write("a", "x");
    place.write("dir/b", "x");
    symlink("a", place.root.join("link")).unwrap();
    place.take_later();
    let path = place.root.with_extension("cache");
    place.cache.save(&path).unwrap();
    assert_eq!(Cache::load(&path).root, place.cache.root);
    let mut bytes = fs::read(&path).unwrap();
    bytes[20] ^= 1;
    fs::write(&path, bytes).unwrap();
    assert_eq!(Cache::load(&path).root, None);
}

#[test]
fn a_cache_is_written_when_its_loss_would_cost_more() {
    let mut place = Place::new();
    (0..100).for_each(|n| place.write(&format!("{n}"), "x"));
    place.take_later();
    let path = place.root.with_extension("cache");
    place.cache.save(&path).unwrap();
    let written = fs::read(&path).unwrap();
    let change = |place: &mut Place, n: usize| {
        place.write(&format!("{n}"), "xx");
        place.stamp(OsStr::new(&format!("{n}")), 1);
        place.take_later();
        place.cache.save(&path).unwrap();
        fs::read(&path).unwrap() != written
    };
    let writes: Vec<bool> = (0..8).map(|n| change(&mut place, n)).collect();
    assert_eq!(writes, [false, false, false, false, false, false, true, true]);
}

#[test]
fn directories_are_looked_at_by_several_threads() {
    let mut place = Place::new();
    (0..300).for_each(|n| place.write(&format!("{}/{n}/file", n / 20), format!("{n}")));
    let first = place.take_later();
    place.write("7/150/file", "changed");
    place.stamp(OsStr::new("7/150/file"), 1);
    let (second, reads) = place.counting(Place::take_later);
    assert_eq!((place.diff(&first, &second), reads), (vec!["7/150/file".to_owned()], 1));
}

#[test]
fn contents_that_several_threads_compress_come_back() {
    let mut place = Place::new();
    let mut random = Random(1);
    for n in 0..200 {
        let bytes = random.below(100_000) as usize;
        place.write(&format!("{n}"), (0..bytes).map(|_| random.below(64) as u8).collect::<Vec<u8>>());
    }
    let wanted = model(&place.root);
    let taken = place.take();
    (0..200).for_each(|n| fs::remove_file(place.root.join(format!("{n}"))).unwrap());
    place.restore(taken.id);
    assert_eq!(model(&place.root), wanted);
    place.reopen();
    assert_eq!(place.objects.verify(&[taken.id]).unwrap(), Vec::<String>::new());
}
