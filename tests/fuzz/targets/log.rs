//! SQLite's log: its reader takes any bytes, and counts no frame that is not there.
#![no_main]

use libfuzzer_sys::fuzz_target;
use outlast_store::sqlite::Frames;

fuzz_target!(|data: &[u8]| {
    let frames = Frames::of(data.to_vec());
    assert!(frames.is_empty() || data.len() < 32 || frames.valid() <= data.len());
    let _ = frames.goes_on_behind_damage();
    let _ = frames.shrinks_below(1);
    let before = frames.pages_before_damage().count();
    let behind = frames.pages_behind_damage().count();
    assert!((before + behind) * frames.step() <= data.len());
    assert!(frames.gaps(24).all(|bytes| bytes.len() == 24));
});
