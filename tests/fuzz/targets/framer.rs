//! Server-sent events: however a stream is cut, nothing of it is lost and its events say the same.
#![no_main]

use bytes::Bytes;
use libfuzzer_sys::fuzz_target;
use outlast_server::dialect::sse::{Event, Framer};

// The first byte is the number of cuts, the bytes behind it are their places.
fuzz_target!(|data: &[u8]| {
    let Some((count, rest)) = data.split_first() else { return };
    let (cuts, stream) = rest.split_at(rest.len().min(usize::from(*count % 16)));
    let whole = events(&[stream]);
    let mut chunks = Vec::new();
    let mut behind = stream;
    for cut in cuts {
        let (chunk, more) = behind.split_at(behind.len().min(usize::from(*cut)));
        chunks.push(chunk);
        behind = more;
    }
    chunks.push(behind);
    let cut = events(&chunks);
    assert_eq!(whole.concat(), stream);
    assert_eq!(cut.concat(), stream);
    assert_eq!(says(&whole), says(&cut));
});

fn events(chunks: &[&[u8]]) -> Vec<Bytes> {
    let mut framer = Framer::default();
    let mut events: Vec<Bytes> =
        chunks.iter().flat_map(|chunk| framer.push(Bytes::copy_from_slice(chunk))).collect();
    events.push(framer.finish().0);
    events
}

/// Bytes may differ by an LF that moved behind its CR; what the events say may not.
fn says(events: &[Bytes]) -> Vec<String> {
    let data = events.iter().filter_map(|event| Event::read(event).data);
    data.map(|data| format!("{data:?}")).collect()
}
