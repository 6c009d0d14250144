//! State of an agent's terminal, as far as a client that attaches later needs it: the last bytes printed, and
//! the modes that are on.

use std::collections::{BTreeSet, VecDeque};

/// Largest number of last printed bytes that are kept.
pub const KEPT: usize = 64 << 10;

/// Modes that an agent may leave on and that would disturb a shell: cursor keys, mouse, focus, alternate
/// screens, bracketed paste. (The hidden cursor is in [`CURSOR`].)
const MODES: [u16; 13] = [1, 9, 47, 1000, 1002, 1003, 1004, 1005, 1006, 1015, 1047, 1049, 2004];

/// Mode of the visible cursor, which is on unless it was switched off.
const CURSOR: u16 = 25;

/// State of an agent's terminal: the last bytes printed, and the modes that are on.
#[derive(Debug, Default)]
pub struct Screen {
    kept: VecDeque<u8>,
    /// Whether older bytes than those in `kept` were dropped.
    is_cut: bool,
    on: BTreeSet<u16>,
    cursor_off: bool,
    /// Depth of the stack of keyboard modes (kitty's keyboard protocol).
    keyboard: u16,
    coloured: bool,
    sequence: Sequence,
}

/// Position within an escape sequence.
#[derive(Debug, Default)]
enum Sequence {
    #[default]
    None,
    Escape,
    /// Within a CSI sequence: its bytes after `ESC [`.
    Csi(Vec<u8>),
}

impl Screen {
    pub fn print(&mut self, bytes: &[u8]) {
        self.kept.extend(bytes);
        let over = self.kept.len().saturating_sub(KEPT);
        if over > 0 {
            self.kept.drain(..over);
            self.is_cut = true;
        }
        for byte in bytes {
            self.follow(*byte);
        }
    }

    fn follow(&mut self, byte: u8) {
        let csi = match &mut self.sequence {
            Sequence::None => {
                if byte == 0x1b {
                    self.sequence = Sequence::Escape;
                }
                return;
            }
            Sequence::Escape => {
                self.sequence = match byte {
                    b'[' => Sequence::Csi(Vec::new()),
                    0x1b => Sequence::Escape,
                    // A full reset.
                    b'c' => {
                        self.on.clear();
                        (self.cursor_off, self.keyboard, self.coloured) = (false, 0, false);
                        Sequence::None
                    }
                    _ => Sequence::None,
                };
                return;
            }
            Sequence::Csi(csi) => csi,
        };
        match byte {
            0x20..=0x3f if csi.len() < 64 => csi.push(byte),
            0x40..=0x7e => {
                let csi = std::mem::take(csi);
                self.sequence = Sequence::None;
                self.take(&csi, byte);
            }
            0x1b => self.sequence = Sequence::Escape,
            _ => self.sequence = Sequence::None,
        }
    }

    fn take(&mut self, csi: &[u8], last: u8) {
        let numbers = |csi: &[u8]| -> Vec<u16> {
            csi.split(|b| *b == b';').filter_map(|n| std::str::from_utf8(n).ok()?.parse().ok()).collect()
        };
        match (csi, last) {
            ([b'?', rest @ ..], b'h' | b'l') => {
                for mode in numbers(rest) {
                    match (mode, last) {
                        (CURSOR, _) => self.cursor_off = last == b'l',
                        (_, b'h') if MODES.contains(&mode) => drop(self.on.insert(mode)),
                        _ => drop(self.on.remove(&mode)),
                    }
                }
            }
            ([b'>', ..], b'u') => self.keyboard = self.keyboard.saturating_add(1),
            ([b'<', rest @ ..], b'u') => {
                let popped = numbers(rest).first().copied().unwrap_or(1);
                self.keyboard = self.keyboard.saturating_sub(popped);
            }
            (csi, b'm') => self.coloured = !matches!(csi, b"" | b"0"),
            _ => {}
        }
    }

    /// Returns the bytes that bring another terminal into this state: the modes, then the last bytes printed.
    pub fn replay(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(self.kept.len() + 64);
        for mode in &self.on {
            out.extend(format!("\x1b[?{mode}h").bytes());
        }
        // The first line may be cut, even within a sequence.
        let from = match self.is_cut {
            true => self.kept.iter().position(|b| *b == b'\n').map_or(0, |at| at + 1),
            false => 0,
        };
        out.extend(self.kept.iter().skip(from));
        out
    }

    /// Returns the bytes that switch off the modes that are on, which a killed agent has not switched off itself.
    pub fn undo(&self) -> Vec<u8> {
        let mut out = String::new();
        if self.keyboard > 0 {
            out.push_str(&format!("\x1b[<{}u", self.keyboard));
        }
        for mode in self.on.iter().rev() {
            out.push_str(&format!("\x1b[?{mode}l"));
        }
        if self.cursor_off {
            out.push_str("\x1b[?25h");
        }
        if self.coloured {
            out.push_str("\x1b[0m");
        }
        out.into_bytes()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn modes_that_were_left_on_are_taken_back_and_no_others() {
        for (printed, undo) in [
            ("plain", ""),
            ("\x1b[?1049h\x1b[?25l\x1b[31m", "\x1b[?1049l\x1b[?25h\x1b[0m"),
            ("\x1b[?1049h\x1b[?1049l\x1b[31mx\x1b[0m\x1b[?25l\x1b[?25h", ""),
            ("\x1b[?1000;1006h", "\x1b[?1006l\x1b[?1000l"),
            ("\x1b[?2026h\x1b[?7l", ""),
            ("\x1b[>1u\x1b[>5u\x1b[<u", "\x1b[<1u"),
            ("\x1b[?2004h\x1bc", ""),
            ("\x1b[?20\x1b[?2004h", "\x1b[?2004l"),
        ] {
            let mut screen = Screen::default();
            // The result must not depend on how the output is cut.
            for byte in printed.bytes() {
                screen.print(&[byte]);
            }
            assert_eq!(String::from_utf8(screen.undo()).unwrap(), undo, "{printed:?}");
        }
    }

    #[test]
    fn who_comes_later_gets_the_last_bytes_from_a_lines_beginning() {
        let mut screen = Screen::default();
        screen.print(b"\x1b[?2004hone\ntwo");
        assert_eq!(screen.replay(), b"\x1b[?2004h\x1b[?2004hone\ntwo");
        for n in 0..20_000 {
            screen.print(format!("line {n}\n").as_bytes());
        }
        let replay = String::from_utf8(screen.replay()).unwrap();
        assert!(replay.len() <= KEPT + 16 && replay.len() > KEPT - 32, "{}", replay.len());
        assert!(replay.starts_with("\x1b[?2004hline ") && replay.ends_with("line 19999\n"));
    }
}
