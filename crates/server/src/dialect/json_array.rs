//! Framing of a stream that is one JSON array: cuts it into its elements as they arrive.

use bytes::{Bytes, BytesMut};

/// Framer that cuts the array's text at the end of each element. A frame is an element with the bytes before it (`[`,
/// commas, whitespace); the rest follows the last element and includes the `]`.
#[derive(Debug, Default)]
pub struct ArrayFramer {
    held: BytesMut,
    /// Number of held bytes already scanned.
    seen: usize,
    depth: usize,
    in_string: bool,
    escaped: bool,
    closed: bool,
}

impl ArrayFramer {
    pub fn push(&mut self, chunk: Bytes) -> Vec<Bytes> {
        self.held.extend_from_slice(&chunk);
        let mut frames = Vec::new();
        while self.seen < self.held.len() {
            let byte = self.held[self.seen];
            self.seen += 1;
            if self.in_string {
                match byte {
                    _ if std::mem::take(&mut self.escaped) => {}
                    b'\\' => self.escaped = true,
                    b'"' => self.in_string = false,
                    _ => {}
                }
                continue;
            }
            match byte {
                b'"' => self.in_string = true,
                b'[' | b'{' => self.depth += 1,
                b']' | b'}' => {
                    self.depth = self.depth.saturating_sub(1);
                    self.closed |= self.depth == 0;
                    if self.depth == 1 && byte == b'}' {
                        frames.push(self.held.split_to(self.seen).freeze());
                        self.seen = 0;
                    }
                }
                _ => {}
            }
        }
        frames
    }

    /// Returns the number of bytes of the element that is not complete yet.
    pub fn pending(&self) -> usize {
        self.held.len()
    }

    /// Returns the bytes left at the end of the stream, and whether the array was closed.
    pub fn finish(&mut self) -> (Bytes, bool) {
        let left = std::mem::take(self);
        (left.held.freeze(), left.closed)
    }
}

/// Returns the byte range of the element in a frame, without the bytes before it.
pub fn element(frame: &[u8]) -> std::ops::Range<usize> {
    let start = memchr::memchr(b'{', frame).unwrap_or(frame.len());
    start..frame.len()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_array_is_cut_into_its_elements_at_any_chunking() {
        let text = "[{\"a\":\"]}\\\"{\"}\n,\r\n{\"b\":[1,{\"c\":2}]}\n]\n";
        for step in 1..text.len() {
            let mut framer = ArrayFramer::default();
            let chunks = text.as_bytes().chunks(step).map(Bytes::copy_from_slice);
            let frames: Vec<Bytes> = chunks.flat_map(|chunk| framer.push(chunk)).collect();
            assert_eq!(frames, ["[{\"a\":\"]}\\\"{\"}", "\n,\r\n{\"b\":[1,{\"c\":2}]}"], "{step}");
            assert_eq!(&frames[1][element(&frames[1])], b"{\"b\":[1,{\"c\":2}]}");
            assert_eq!(framer.finish(), (Bytes::from_static(b"\n]\n"), true), "{step}");
        }
        let mut framer = ArrayFramer::default();
        assert_eq!(framer.push(Bytes::from_static(b"[{\"a\":1},{\"b")).len(), 1);
        assert_eq!(framer.finish(), (Bytes::from_static(b",{\"b"), false));
    }
}
