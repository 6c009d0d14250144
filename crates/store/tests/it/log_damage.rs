//! Damage to the log of a killed process: told, or without harm. What was acknowledged is never missing in silence.

use std::{
    collections::BTreeMap,
    fs,
    io::{BufRead as _, BufReader},
    path::{Path, PathBuf},
    process::Stdio,
};

use outlast_core::{
    engine::state::put::{Change, Put},
    state::Name,
    store::{Ask as _, Durability, Store},
    words::clock::{Entropy as _, SeededEntropy},
};

use crate::{
    beds::{open_at, place},
    child,
};

const SEED: u64 = 14;
const FRAME: usize = 24 + 4096;
const KEYS: u64 = 5;

/// Random numbers that are the same in each run.
struct Chance(SeededEntropy);

impl Chance {
    fn new() -> Chance {
        println!("seed {SEED}");
        Chance(SeededEntropy::new(SEED))
    }

    fn below(&self, end: usize) -> usize {
        let mut bytes = [0; 8];
        self.0.fill(&mut bytes);
        (u64::from_le_bytes(bytes) % end as u64) as usize
    }
}

pub fn put(store: &dyn Store, n: u64, durability: Durability) {
    let value = format!("{n} {}", "v".repeat((n as usize * 397) % 2500));
    let change = Change::set(Name::new("n", "a", format!("k{}", n % KEYS)), value.as_bytes());
    store.run_verb(Put { changes: vec![change], ..Put::default() }, durability).unwrap();
}

/// Number of values that a store has had, over all keys.
pub fn count(store: &dyn Store) -> i64 {
    (0..KEYS).map(|k| store.state("n", "a", &format!("k{k}")).unwrap().map_or(0, |item| item.version)).sum()
}

/// Files of a store, without those that SQLite makes anew.
#[derive(Clone)]
pub struct Files(pub BTreeMap<&'static str, Vec<u8>>);

impl Files {
    pub fn of(store: &Path) -> Files {
        let read = |suffix| Some((suffix, fs::read(beside(store, suffix)).ok()?));
        Files(["", "-wal", "-mark"].into_iter().filter_map(read).collect())
    }

    pub fn put_at(&self, store: &Path) {
        for suffix in ["", "-wal", "-shm", "-mark"] {
            let _ = fs::remove_file(beside(store, suffix));
        }
        for (suffix, bytes) in &self.0 {
            fs::write(beside(store, suffix), bytes).unwrap();
        }
    }

    pub fn log(&mut self) -> &mut Vec<u8> {
        self.0.get_mut("-wal").unwrap()
    }
}

pub fn beside(store: &Path, suffix: &str) -> PathBuf {
    format!("{}{suffix}", store.display()).into()
}

/// The child's part: commits until it is killed, every third value without a sync.
fn write_for_ever(path: &str) {
    let store = open_at(path, true).unwrap();
    for n in 1.. {
        put(&*store, n, if n % 3 == 0 { Durability::Committed } else { Durability::Synced });
        child::say(&format!("acked {n}"));
    }
}

/// Files of a process that was killed after `lines` acknowledgements, and how many it had given.
fn killed(test: &str, directory: &Path, lines: u64) -> (Files, i64) {
    let path = directory.join("killed.db");
    let mut writer = child::command(&child::argv(test), place(&path)).stdout(Stdio::piped()).spawn().unwrap();
    let mut acked = 0;
    for line in BufReader::new(writer.stdout.take().unwrap()).lines() {
        let Some(n) = line.unwrap().strip_prefix("acked ").map(|n| n.parse::<u64>().unwrap()) else {
            continue;
        };
        acked = n;
        if n == lines {
            writer.kill().unwrap();
        }
    }
    writer.wait().unwrap();
    (Files::of(&path), acked as i64)
}

/// Counts of damaged stores by what became of them.
#[derive(Debug, Default)]
struct Tally {
    told: usize,
    harmless: usize,
    /// Each with what was done to the store.
    silent: Vec<String>,
}

impl Tally {
    fn print(&self, what: &str) {
        println!("{what}: {} told, {} harmless, {} silent", self.told, self.harmless, self.silent.len());
    }

    /// Opens the damaged store and looks for all that was acknowledged.
    fn look(&mut self, files: &Files, acked: i64, directory: &Path, what: String) {
        let path = directory.join("damaged.db");
        files.put_at(&path);
        match open_at(place(&path), false) {
            Err(e) => {
                assert_eq!(e.code(), "store_corrupt", "{what}: {e}");
                assert!(e.hint().unwrap().contains("--accept-shorter"), "{what}: {e}");
                let after = Files::of(&path);
                assert!(files.0.iter().all(|(of, bytes)| after.0.get(of) == Some(bytes)), "{what}: changed");
                self.told += 1;
            }
            Ok(store) if count(&*store) >= acked => self.harmless += 1,
            Ok(store) => self.silent.push(format!("{what}: {} of {acked}", count(&*store))),
        }
    }
}

// Bug: a flipped bit, a cut or a deletion of the log after kill -9 was taken for its end. Consequence: committed money
// was silently spent less, and `verify` said no damage. Cause: SQLite ends the log at the first bad frame, and nothing
// else knew how long it had been.
#[test]
fn a_damaged_log_is_told_or_harmless() {
    const TEST: &str = "log_damage::a_damaged_log_is_told_or_harmless";
    if let Some(path) = child::part() {
        return write_for_ever(&path);
    }
    let chance = Chance::new();
    // The second has put its log into the file meanwhile, and begun it anew.
    for (lines, cuts_each_frame) in [(25, true), (130, false)] {
        let directory = tempfile::tempdir().unwrap();
        let (files, acked) = killed(TEST, directory.path(), lines);
        let log = files.clone().log().clone();
        let damaged = |change: &dyn Fn(&mut Files)| {
            let mut damaged = files.clone();
            change(&mut damaged);
            damaged
        };
        let [mut flips, mut cuts, mut gone, mut whole] = <[Tally; 4]>::default();
        let look = |tally: &mut Tally, files, what| tally.look(&files, acked, directory.path(), what);
        for _ in 0..64 {
            let (byte, bit) = (chance.below(log.len()), chance.below(8));
            let files = damaged(&|files| files.log()[byte] ^= 1 << bit);
            look(&mut flips, files, format!("bit {bit} of byte {byte}"));
        }
        let step = if cuts_each_frame { FRAME } else { 50 * FRAME };
        for end in [0, 17].into_iter().chain((32..log.len()).step_by(step)) {
            look(&mut cuts, damaged(&|files| files.log().truncate(end)), format!("cut at byte {end}"));
        }
        look(&mut gone, damaged(&|files| drop(files.0.remove("-wal"))), "log deleted".into());
        look(&mut whole, files.clone(), "untouched".into());
        println!("{acked} acknowledged, log of {} bytes", log.len());
        for (what, tally) in [("flips", &flips), ("cuts", &cuts), ("deletion", &gone)] {
            tally.print(what);
        }
        assert_eq!((whole.told, whole.harmless), (0, 1));
        assert_eq!([flips.silent, cuts.silent, gone.silent].concat(), Vec::<String>::new());
        // Else this would show nothing.
        assert!(flips.told > 0 && cuts.told > 1);
    }
}
