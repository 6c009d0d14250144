//! Time of snapshots of a large tree, by the clock and by the processors.
//!
//!     cargo run --release -p outlast-bench --example files-cost -- [FILES [BYTES [ROUNDS [TIMES]]]]
//!
//! Makes a tree of text that compresses to a half, and takes its first snapshot, then one after each of some rounds without
//! a change and with 20 changed files; all that so many TIMES. `scripts/files-cost.py` measures the same through the whole program.

use std::{
    fmt::Write as _,
    fs,
    io::Write as _,
    path::{Path, PathBuf},
    time::{Duration, Instant},
};

use outlast_files::{Cache, Objects, Rules, take};
use rustix::time::{ClockId, clock_gettime};

/// Files that are changed in a round.
const CHANGED: usize = 20;

fn main() {
    let mut words = std::env::args().skip(1).map(|word| word.parse::<usize>().expect("a number"));
    let mut next = |default| words.next().unwrap_or(default);
    let (files, bytes, rounds, times) = (next(50_000), next(1 << 30), next(20), next(3));
    let bed = std::env::temp_dir().join(format!("outlast-files-cost-{}", std::process::id()));
    let tree = bed.join("tree");
    make(&tree, files, bytes);
    rustix::fs::sync();
    let rules = Rules::default();
    let cache_path = bed.join("cache");
    let snapshot = |objects: &mut Objects, cache: &mut Cache| {
        take(objects, &tree, &rules, cache).expect("a snapshot");
        cache.save(&cache_path).expect("a cache");
    };
    for time in 0..times {
        let place = bed.join(format!("objects{time}"));
        let (mut objects, mut cache) =
            (Objects::open(&place, true, u64::MAX).expect("objects"), Cache::default());
        show("first", &[took(|| snapshot(&mut objects, &mut cache))]);
        println!("{:>14} bytes of {} packs", objects.size(), objects.packs().count());
        // What has just been written has young looks.
        std::thread::sleep(Duration::from_millis(50));
        let unchanged: Vec<_> = (0..rounds).map(|_| took(|| snapshot(&mut objects, &mut cache))).collect();
        show("unchanged", &unchanged);
        let changed = (0..rounds).map(|round| {
            for n in 0..CHANGED {
                let path = at(&tree, 997 * (CHANGED * round + n) % files);
                let mut file = fs::OpenOptions::new().append(true).open(path).expect("a file");
                writeln!(file, "changed in round {round}").expect("a line");
            }
            std::thread::sleep(Duration::from_millis(50));
            took(|| snapshot(&mut objects, &mut cache))
        });
        show("20 changed", &changed.collect::<Vec<_>>());
        let opened = took(|| {
            let mut objects = Objects::open(&place, false, u64::MAX).expect("objects");
            snapshot(&mut objects, &mut Cache::load(&cache_path));
        });
        show("new process", &[opened]);
        println!("{:>14} bytes of {} packs", objects.size(), objects.packs().count());
    }
    fs::remove_dir_all(bed).expect("removed");
}

/// Time that a deed takes by the clock, and by the processors.
fn took(deed: impl FnOnce()) -> (Duration, Duration) {
    let cpu = || {
        let time = clock_gettime(ClockId::ProcessCPUTime);
        Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
    };
    let (began, used) = (Instant::now(), cpu());
    deed();
    (began.elapsed(), cpu() - used)
}

fn show(name: &str, times: &[(Duration, Duration)]) {
    let column = |of: fn(&(Duration, Duration)) -> Duration| {
        let mut all: Vec<_> = times.iter().map(of).collect();
        all.sort();
        let mut text = String::new();
        for (word, time) in [("median", all[all.len() / 2]), ("least", all[0]), ("most", all[all.len() - 1])]
        {
            write!(text, " {word} {:8.1} ms", time.as_secs_f64() * 1e3).expect("text");
        }
        text
    };
    println!("{name:12} clock{}   processors{}", column(|time| time.0), column(|time| time.1));
}

fn at(tree: &Path, n: usize) -> PathBuf {
    tree.join(format!("package{}/module{}/source{n}.txt", n / 1000, n / 20 % 50))
}

/// Writes files of lines of words, each of whose blocks differs from every other.
fn make(tree: &Path, files: usize, bytes: usize) {
    let mut seed = 1_u64;
    let mut random = |below: usize| {
        seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (seed >> 33) as usize % below
    };
    let letters = b"etaoinshrdlucmfw_";
    let words: Vec<String> = (0..4000)
        .map(|_| (0..2 + random(8)).map(|_| char::from(letters[random(letters.len())])).collect())
        .collect();
    let block = |random: &mut dyn FnMut(usize) -> usize| {
        let mut block = String::new();
        while block.len() < 2000 {
            block += &words[random(words.len())];
            block.push(if random(9) == 0 { '\n' } else { ' ' });
        }
        block
    };
    let blocks: Vec<String> = (0..3000).map(|_| block(&mut random)).collect();
    for n in 0..files {
        let path = at(tree, n);
        fs::create_dir_all(path.parent().expect("a parent")).expect("a directory");
        let mut text = String::new();
        for _ in 0..(bytes / files / 2020).max(1) {
            write!(text, "{n} {}\n{}", random(1 << 30), blocks[random(blocks.len())]).expect("text");
        }
        fs::write(path, text).expect("a file");
    }
}
