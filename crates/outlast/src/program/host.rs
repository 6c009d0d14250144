//! The host's clock and random numbers, behind the domain's traits, and this process's umask and runtimes.

use std::time::{Instant, SystemTime, UNIX_EPOCH};

use outlast_core::words::{Clock, Entropy, JumpFilter, Micros};
use parking_lot::Mutex;
use tokio::runtime::{Builder, Runtime};

use crate::program::error::{MachineError, Result};

/// System clock: the wall clock without its short jumps, and CLOCK_MONOTONIC, which does not advance while the machine
/// sleeps.
#[derive(Debug)]
pub struct SystemClock {
    // `Instant` is CLOCK_MONOTONIC on Linux.
    started: Instant,
    jumps: Mutex<JumpFilter>,
}

impl SystemClock {
    pub fn new() -> Self {
        Self { started: Instant::now(), jumps: Mutex::default() }
    }
}

impl Default for SystemClock {
    fn default() -> Self {
        Self::new()
    }
}

impl Clock for SystemClock {
    fn now(&self) -> Micros {
        let micros = |d: std::time::Duration| i64::try_from(d.as_micros()).unwrap_or(i64::MAX);
        let mut jumps = self.jumps.lock();
        let wall = Micros(match SystemTime::now().duration_since(UNIX_EPOCH) {
            Ok(since) => micros(since),
            Err(before) => -micros(before.duration()),
        });
        jumps.read(wall, self.boottime_ms())
    }

    fn monotonic_ms(&self) -> u64 {
        u64::try_from(self.started.elapsed().as_millis()).unwrap_or(u64::MAX)
    }

    fn boottime_ms(&self) -> u64 {
        outlast_process::freeze::boottime_ms()
    }
}

/// Source of random bytes: the kernel.
#[derive(Debug, Default)]
pub struct OsEntropy;

impl Entropy for OsEntropy {
    fn fill(&self, bytes: &mut [u8]) {
        // The trait cannot return an error, and a predictable token key is worse than no process.
        getrandom::fill(bytes).expect("the kernel gives random bytes");
    }
}

/// Returns this process's umask. Reads it from `/proc`: umask(2) can only be asked by setting it, while the store's
/// threads may be creating files.
pub fn current_umask() -> Result<u32> {
    let status = std::fs::read_to_string("/proc/self/status")?;
    let octal = status.lines().find_map(|line| line.strip_prefix("Umask:"));
    let umask = octal.and_then(|text| u32::from_str_radix(text.trim(), 8).ok());
    Ok(umask.ok_or(MachineError::Proc { what: "the umask", why: None })?)
}

/// Returns a runtime with so many threads that work; `None`: one for each processor. Errors: `Runtime`.
pub fn runtime(threads: Option<usize>) -> Result<Runtime, MachineError> {
    let mut builder = Builder::new_multi_thread();
    if let Some(threads) = threads {
        builder.worker_threads(threads);
    }
    builder.enable_all().build().map_err(MachineError::Runtime)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_clock_reads_this_century_and_never_goes_back() {
        let clock = SystemClock::new();
        assert!(clock.now() > Micros(1_700_000_000_000_000));
        let first = clock.monotonic_ms();
        assert!(clock.monotonic_ms() >= first);
    }

    #[test]
    fn chance_differs_from_draw_to_draw() {
        let draw = || outlast_core::words::clock::random::<16>(&OsEntropy);
        assert_ne!(draw(), draw());
    }
}
