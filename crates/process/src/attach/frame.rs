//! Messages between supervisor and clients: a kind, a length in 4 bytes (little-endian), a body.

use std::io::{self, Read};

/// Largest length of a frame's body, in bytes.
pub const MOST_BYTES: usize = 256 << 10;

/// Protocol version, which a client sends first. A supervisor of another version refuses the client.
pub const VERSION: u8 = 1;

/// Message between a supervisor and a client.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Frame {
    // From the supervisor:
    /// Output of the agent.
    Printed(Vec<u8>),
    /// A line of text from the supervisor.
    Said(String),
    /// An attempt has begun. `pty`: its agent has a terminal of its own and reads keys.
    Begun {
        pty: bool,
        attempt: i64,
        run: String,
    },
    /// The attempt is over. The client writes `undo` to the terminal, and gives the terminal back to the person.
    Ended {
        undo: Vec<u8>,
    },
    /// The supervisor ends. The value is the exit code for the client's process.
    Over(u8),

    // From a client:
    Hello {
        version: u8,
    },
    Keys(Vec<u8>),
    Size {
        rows: u16,
        columns: u16,
    },
    /// The client detaches; the run goes on.
    Detach,
    /// The client received this signal, and passes its number on to the supervisor.
    Signal(i32),
}

impl Frame {
    pub fn encode(&self) -> Vec<u8> {
        let (kind, body): (u8, Vec<u8>) = match self {
            Frame::Printed(bytes) => (0, bytes.clone()),
            Frame::Said(text) => (1, text.clone().into_bytes()),
            Frame::Begun { pty, attempt, run } => {
                let mut body = vec![u8::from(*pty)];
                body.extend(attempt.to_le_bytes());
                body.extend(run.as_bytes());
                (2, body)
            }
            Frame::Ended { undo } => (3, undo.clone()),
            Frame::Over(code) => (4, vec![*code]),
            Frame::Hello { version } => (16, vec![*version]),
            Frame::Keys(bytes) => (17, bytes.clone()),
            Frame::Size { rows, columns } => (18, [rows.to_le_bytes(), columns.to_le_bytes()].concat()),
            Frame::Detach => (19, Vec::new()),
            Frame::Signal(number) => (20, number.to_le_bytes().to_vec()),
        };
        let mut frame = vec![kind];
        frame.extend(u32::try_from(body.len()).unwrap_or(u32::MAX).to_le_bytes());
        frame.extend(body);
        frame
    }

    fn decode(kind: u8, body: &[u8]) -> Option<Frame> {
        Some(match (kind, body) {
            (0, bytes) => Frame::Printed(bytes.to_vec()),
            (1, text) => Frame::Said(String::from_utf8_lossy(text).into_owned()),
            (2, [pty, rest @ ..]) => {
                let (attempt, run) = rest.split_first_chunk()?;
                let run = String::from_utf8_lossy(run).into_owned();
                Frame::Begun { pty: *pty != 0, attempt: i64::from_le_bytes(*attempt), run }
            }
            (3, undo) => Frame::Ended { undo: undo.to_vec() },
            (4, [code]) => Frame::Over(*code),
            (16, [version]) => Frame::Hello { version: *version },
            (17, keys) => Frame::Keys(keys.to_vec()),
            (18, [a, b, c, d]) => {
                Frame::Size { rows: u16::from_le_bytes([*a, *b]), columns: u16::from_le_bytes([*c, *d]) }
            }
            (19, []) => Frame::Detach,
            (20, number) => Frame::Signal(i32::from_le_bytes(number.try_into().ok()?)),
            _ => return None,
        })
    }
}

/// Buffer that collects bytes as they arrive, and returns whole frames.
#[derive(Debug, Default)]
pub struct Frames {
    bytes: Vec<u8>,
}

impl Frames {
    pub fn put(&mut self, bytes: &[u8]) {
        self.bytes.extend(bytes);
    }

    /// Returns the next frame; `None` while more bytes are needed. Errors: `InvalidData` if the bytes are no frame.
    pub fn whole(&mut self) -> io::Result<Option<Frame>> {
        let Some((&kind, rest)) = self.bytes.split_first() else { return Ok(None) };
        let Some((length, rest)) = rest.split_first_chunk() else { return Ok(None) };
        let length = u32::from_le_bytes(*length) as usize;
        let bad = |what: String| io::Error::new(io::ErrorKind::InvalidData, what);
        if length > MOST_BYTES {
            return Err(bad(format!("a frame of {length} bytes (at most {MOST_BYTES})")));
        }
        let Some(body) = rest.get(..length) else { return Ok(None) };
        let frame = Frame::decode(kind, body).ok_or_else(|| bad(format!("no frame of kind {kind}")))?;
        self.bytes.drain(..5 + length);
        Ok(Some(frame))
    }

    /// Reads until a frame is whole, and returns it; `None` if the other side has closed the connection.
    pub fn read(&mut self, from: &mut impl Read) -> io::Result<Option<Frame>> {
        let mut bytes = [0; 16 << 10];
        loop {
            if let Some(frame) = self.whole()? {
                return Ok(Some(frame));
            }
            match from.read(&mut bytes) {
                Ok(0) => return Ok(None),
                Ok(read) => self.put(&bytes[..read]),
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                Err(e) => return Err(e),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frames_come_back_whole_however_they_are_cut() {
        let all = [
            Frame::Printed(b"\x00\xff".to_vec()),
            Frame::Said("äh".into()),
            Frame::Begun { pty: true, attempt: 7, run: "r".into() },
            Frame::Ended { undo: b"\x1b[0m".to_vec() },
            Frame::Over(130),
            Frame::Hello { version: 1 },
            Frame::Keys(Vec::new()),
            Frame::Size { rows: 24, columns: 300 },
            Frame::Detach,
            Frame::Signal(15),
        ];
        let bytes: Vec<u8> = all.iter().flat_map(Frame::encode).collect();
        for cut in [1, 3, 7, bytes.len()] {
            let mut frames = Frames::default();
            let mut got = Vec::new();
            for piece in bytes.chunks(cut) {
                frames.put(piece);
                got.extend(std::iter::from_fn(|| frames.whole().unwrap()));
            }
            assert_eq!(got, all, "cut every {cut}");
        }
    }

    #[test]
    fn what_is_no_frame_is_refused() {
        for bytes in
            [&[99, 0, 0, 0, 0][..], &[0, 255, 255, 255, 255], &[19, 1, 0, 0, 0, 1], &[18, 1, 0, 0, 0, 1]]
        {
            let mut frames = Frames::default();
            frames.put(bytes);
            assert_eq!(frames.whole().unwrap_err().kind(), io::ErrorKind::InvalidData, "{bytes:?}");
        }
    }
}
