//! Canonical JSON: it is a fixed point, and it says what the text said.
#![no_main]

use libfuzzer_sys::fuzz_target;
use outlast_server::dialect::canonical::canonical_value;
use serde_json::Value;

fuzz_target!(|data: &[u8]| {
    let Ok(canonical) = canonical_value(data) else { return };
    assert_eq!(canonical_value(&canonical).as_deref().ok(), Some(&canonical[..]));
    // Numbers that serde_json does not hold, and nesting deeper than it follows, have no value to compare.
    if let (Ok(said), Ok(says)) = (value(data), value(&canonical)) {
        assert_eq!(said, says);
    }
});

fn value(json: &[u8]) -> serde_json::Result<Value> {
    serde_json::from_slice(json)
}
