//! Tests of the log file under several connections, with and without our VFS, and a loss of power at any moment:
//! synced bytes survive.

use std::convert::Infallible;

use proptest::prelude::*;

use super::gathering::{Disk, Gathering, Trailer};

const HEADER: u64 = 32;
const PAGE: usize = 40;
const FRAME: u64 = 24 + PAGE as u64;

/// The file as all processes see it, and the bytes that a loss of power would leave.
#[derive(Default)]
struct Platter {
    bytes: Vec<u8>,
    is_safe: Vec<bool>,
    /// Results of the next write-throughs: false writes half of the bytes and reports no support.
    can: Vec<bool>,
    calls: usize,
}

impl Platter {
    fn put(&mut self, at: u64, bytes: &[u8], is_safe: bool) {
        let (at, end) = (at as usize, at as usize + bytes.len());
        if self.bytes.len() < end {
            self.bytes.resize(end, 0);
            self.is_safe.resize(end, false);
        }
        self.bytes[at..end].copy_from_slice(bytes);
        self.is_safe[at..end].fill(is_safe);
        self.calls += 1;
    }
}

impl Disk for Platter {
    type Error = Infallible;

    fn write(&mut self, at: u64, bytes: &[u8]) -> Result<(), Infallible> {
        self.put(at, bytes, false);
        Ok(())
    }

    fn sync(&mut self) -> Result<(), Infallible> {
        self.is_safe.fill(true);
        self.calls += 1;
        Ok(())
    }

    fn write_through(&mut self, at: u64, bytes: &[u8]) -> Result<bool, Infallible> {
        let can = self.can.pop().unwrap_or(true);
        let n = if can { bytes.len() } else { bytes.len() / 2 };
        self.put(at, &bytes[..n], can);
        Ok(can)
    }
}

/// Action of a connection on the log, as SQLite performs it.
#[derive(Debug, Clone)]
enum Act {
    /// Transaction of `pages` pages, of which `spilled` are written before its end. `rewritten`: one of those changes
    /// again, so that the checksums after it are overwritten.
    Transaction { pages: u8, spilled: u8, rewritten: bool, end: End },
    /// The whole log is in the database, so it restarts.
    Restart,
}

#[derive(Debug, Clone, Copy, PartialEq)]
enum End {
    Synced,
    Committed,
    RolledBack,
    /// COMMIT failed after some pages were given to the file.
    FailedInCommit,
}

/// A log written by several connections in turn.
struct Stage {
    platter: Platter,
    connections: Vec<Gathering>,
    /// Committed frames.
    want: Vec<u8>,
    life: u64,
    commit: u64,
    drawn: u8,
}

impl Stage {
    fn new(connections: usize, can: Vec<bool>) -> Stage {
        let mut stage = Stage {
            platter: Platter { can, ..Platter::default() },
            connections: (0..connections).map(|_| Gathering::default()).collect(),
            want: Vec::new(),
            life: 0,
            commit: 0,
            drawn: 0,
        };
        stage.restart(0);
        stage
    }

    /// Returns a frame as SQLite writes it, header and page. No two pages are equal.
    fn frame(&mut self) -> [Vec<u8>; 2] {
        self.drawn = self.drawn.wrapping_add(1);
        let mut header = vec![self.drawn; 24];
        header[8..16].copy_from_slice(&self.life.to_le_bytes());
        [header, vec![self.drawn ^ 0x55; PAGE]]
    }

    fn write(&mut self, who: usize, commit: u64, at: u64, bytes: &[u8]) {
        let Ok(()) = self.connections[who].write(&mut self.platter, commit, at, bytes);
    }

    /// Syncs a log that is `end` bytes long.
    fn sync(&mut self, who: usize, commit: u64, end: u64) {
        let trailer = Some(Trailer { at: end, bytes: &[0xee; 30] });
        let Ok(()) = self.connections[who].sync(&mut self.platter, commit, trailer);
    }

    fn restart(&mut self, who: usize) {
        self.life += 1;
        self.commit += 1;
        let mut header = vec![7; HEADER as usize];
        header[16..24].copy_from_slice(&self.life.to_le_bytes());
        self.write(who, self.commit, 0, &header);
        self.sync(who, self.commit, HEADER);
        self.want = header;
    }

    fn transaction(&mut self, who: usize, pages: u8, spilled: u8, rewritten: bool, end: End) {
        self.commit += 1;
        let commit = if end == End::Synced || end == End::FailedInCommit { self.commit } else { 0 };
        let mut frames: Vec<[Vec<u8>; 2]> = (0..pages).map(|_| self.frame()).collect();
        let start = self.want.len() as u64;
        let spilled = spilled.min(pages) as usize;
        let place = |i: usize| start + i as u64 * FRAME;
        let given = match end {
            End::RolledBack => spilled,
            End::FailedInCommit => (pages as usize).saturating_sub(1),
            End::Synced | End::Committed => pages as usize,
        };
        for (i, [header, page]) in frames[..given].iter().enumerate().take(spilled) {
            self.write(who, 0, place(i), header);
            self.write(who, 0, place(i) + 24, page);
        }
        let rewritten = rewritten && spilled > 0;
        if rewritten {
            let page = self.frame()[1].clone();
            self.write(who, 0, place(0) + 24, &page);
            frames[0][1] = page;
        }
        for (i, [header, page]) in frames[..given].iter().enumerate().skip(spilled) {
            self.write(who, commit, place(i), header);
            self.write(who, commit, place(i) + 24, page);
        }
        if rewritten && matches!(end, End::Synced | End::Committed) {
            for (i, [header, page]) in frames.iter_mut().enumerate() {
                let Ok(()) = self.connections[who].before_read(&mut self.platter, commit);
                let at = place(i) as usize;
                assert_eq!(&self.platter.bytes[at + 24..][..PAGE], &page[..], "a commit reads what it wrote");
                let checksum = !header[16];
                header[16..24].fill(checksum);
                self.write(who, commit, place(i), header);
            }
        }
        if end == End::Synced {
            self.sync(who, commit, place(pages as usize));
        }
        if matches!(end, End::Synced | End::Committed) {
            self.want.extend(frames.concat().concat());
            assert!(self.platter.bytes.starts_with(&self.want), "what was committed is in the file");
        }
        if end == End::Synced {
            let safe = self.platter.is_safe.iter().take_while(|safe| **safe).count();
            assert!(safe >= self.want.len(), "{safe} of {} bytes outlive a loss of power", self.want.len());
        }
        assert!(self.platter.bytes.starts_with(&self.want), "what others committed is in the file");
    }
}

fn act() -> impl Strategy<Value = Act> {
    let end = prop_oneof![
        4 => Just(End::Synced),
        2 => Just(End::Committed),
        1 => Just(End::RolledBack),
        1 => Just(End::FailedInCommit),
    ];
    let transaction = (1..4_u8, prop_oneof![3 => Just(0_u8), 1 => 0..4_u8], any::<bool>(), end)
        .prop_map(|(pages, spilled, rewritten, end)| Act::Transaction { pages, spilled, rewritten, end });
    prop_oneof![8 => transaction, 1 => Just(Act::Restart)]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 2000, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn what_was_synced_outlives_a_loss_of_power(
        acts in prop::collection::vec((0..3_usize, act()), 1..30),
        can in prop::collection::vec(prop::bool::weighted(0.8), 0..20),
    ) {
        let mut stage = Stage::new(3, can);
        for (who, act) in acts {
            match act {
                Act::Restart => stage.restart(who),
                Act::Transaction { pages, spilled, rewritten, end } => {
                    stage.transaction(who, pages, spilled, rewritten, end);
                }
            }
        }
    }
}

#[test]
fn a_commit_that_follows_ones_own_is_one_call() {
    let mut stage = Stage::new(2, Vec::new());
    stage.transaction(0, 3, 0, false, End::Synced);
    let calls = |stage: &mut Stage, who: usize| {
        let before = stage.platter.calls;
        stage.transaction(who, 3, 0, false, End::Synced);
        stage.platter.calls - before
    };
    assert_eq!(calls(&mut stage, 0), 1);
    assert_eq!(calls(&mut stage, 1), 2, "another's before it may not be on disk");
    assert_eq!(calls(&mut stage, 0), 2);
    assert_eq!(calls(&mut stage, 0), 1);
}

#[test]
fn a_commit_of_many_megabytes_is_written_as_it_comes() {
    let mut gathering = Gathering::default();
    let mut platter = Platter::default();
    let mib = vec![3; 1 << 20];
    for (at, bytes) in [(32, &mib[..24]), (56, &mib[..]), (56 + (1 << 20), &mib[..24])] {
        let Ok(()) = gathering.write(&mut platter, 1, at, bytes);
        assert!(gathering.kept(1) <= 1 << 20);
    }
    let Ok(()) = gathering.sync(&mut platter, 1, None);
    assert!(
        platter.bytes.len() == 32 + 24 + (1 << 20) + 24 && platter.is_safe[32..].iter().all(|safe| *safe)
    );
}
