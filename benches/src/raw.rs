//! Measures the physical limit: append to a growing file, fdatasync, repeat.

use std::{
    fs::File,
    io::Write as _,
    path::Path,
    time::{Duration, Instant},
};

use crate::{report::section, stats::Samples};

pub struct Raw {
    pub per_second: f64,
    pub p50_ms: f64,
}

/// Appends 4 KiB (the size of a WAL frame) and syncs, for `seconds`.
pub fn measure(dir: &Path, seconds: u64) -> Raw {
    let mut file = File::create(dir.join("raw")).expect("a file to append to");
    let page = [7u8; 4096];
    let mut samples = Samples::default();
    let began = Instant::now();
    while began.elapsed() < Duration::from_secs(seconds) {
        let one = Instant::now();
        file.write_all(&page).expect("append");
        file.sync_data().expect("fdatasync");
        samples.add(one.elapsed());
    }
    let per_second = samples.len() as f64 / began.elapsed().as_secs_f64();
    let p50_ms = samples.p50();
    section("the disk");
    println!("append + fdatasync: {per_second:.0}/s, p50 {p50_ms:.3} ms, p99 {:.3} ms", samples.p99());
    Raw { per_second, p50_ms }
}
