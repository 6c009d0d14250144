//! Settings files: any text is taken or refused by an error that can be shown.
#![no_main]

use std::path::Path;

use libfuzzer_sys::fuzz_target;
use outlast::settings::{config, file::SettingsFile, trust::Trust};

fuzz_target!(|data: &[u8]| {
    let Some((first, text)) = data.split_first() else { return };
    let Ok(text) = std::str::from_utf8(text) else { return };
    let trust = [Trust::Own, Trust::Given, Trust::Outdated, Trust::None][usize::from(*first % 4)];
    let path = Path::new("outlast.toml").to_owned();
    if let Err(e) = config::check(SettingsFile { path, text: text.to_owned(), trust }) {
        assert!(!e.to_string().is_empty());
        let _ = e.hint();
    }
});
