//! Terminal output as text, without control sequences.

use std::borrow::Cow;

use outlast_core::run::token::mask;

use crate::render::text::{clean, steers};

/// Returns output as it is, but with run tokens masked: agents print the address of their proxy, which holds one.
pub fn masked(bytes: &[u8]) -> Cow<'_, [u8]> {
    match std::str::from_utf8(bytes) {
        Ok(text) => match mask(text) {
            same if same == text => bytes.into(),
            masked => masked.into_bytes().into(),
        },
        Err(_) => bytes.into(),
    }
}

/// Returns terminal output as plain text. Escape sequences and control characters are removed, invalid UTF-8 becomes
/// `U+FFFD`, and of text overwritten by carriage returns only the last remains.
pub fn text(bytes: &[u8]) -> String {
    let bytes = masked(bytes);
    let shown = strip(&bytes, false);
    let mut out = String::with_capacity(shown.len());
    for line in String::from_utf8_lossy(&shown).split_inclusive('\n') {
        let (line, end) = line.strip_suffix('\n').map_or((line, ""), |line| (line, "\n"));
        // Progress bars write over themselves.
        let last = line.trim_end_matches('\r').rsplit('\r').next().unwrap_or_default();
        out.push_str(&clean(&last.replace('\t', "    ")));
        out.push_str(end);
    }
    out
}

/// Returns text that is safe to print on a terminal: colours stay, other control sequences are removed, and any other
/// character that could steer a terminal becomes `U+FFFD`, as invalid UTF-8 does.
pub fn colours(bytes: &[u8]) -> String {
    let bytes = masked(bytes);
    let shown = strip(&bytes, true);
    let is_kept = |c: char| matches!(c, '\x1b' | '\t' | '\r') || !steers(c);
    String::from_utf8_lossy(&shown).chars().map(|c| if is_kept(c) { c } else { '\u{fffd}' }).collect()
}

/// Removes escape sequences (colours stay with `keep_colours`), and control characters except line feed, tab
/// and carriage return.
fn strip(bytes: &[u8], keep_colours: bool) -> Vec<u8> {
    let mut out = Vec::with_capacity(bytes.len());
    let mut rest = bytes;
    while let [first, tail @ ..] = rest {
        match *first {
            0x1b => {
                let length = sequence(rest);
                let (whole, after) = rest.split_at(length);
                if keep_colours && whole.starts_with(b"\x1b[") && whole.ends_with(b"m") && is_plain(whole) {
                    out.extend(whole);
                }
                rest = after;
            }
            b'\n' | b'\t' | b'\r' => {
                out.push(*first);
                rest = tail;
            }
            0..=0x1f | 0x7f => rest = tail,
            _ => {
                out.push(*first);
                rest = tail;
            }
        }
    }
    out
}

/// Returns whether a sequence has numbers only, as colours do: `CSI > 4 m` is something else.
fn is_plain(sequence: &[u8]) -> bool {
    sequence[2..sequence.len() - 1].iter().all(|b| b.is_ascii_digit() || matches!(b, b';' | b':'))
}

/// Returns the length of the escape sequence that `bytes` begins with. A truncated one extends to the end.
fn sequence(bytes: &[u8]) -> usize {
    let end = |from: usize, ends: fn(&u8) -> bool| {
        bytes[from..].iter().position(ends).map_or(bytes.len(), |at| from + at + 1)
    };
    match bytes.get(1) {
        None => 1,
        Some(b'[') => end(2, |b| (0x40..=0x7e).contains(b) || *b == 0x1b || *b == b'\n'),
        // Strings (titles, links) end with BEL or ESC \.
        Some(b']' | b'P' | b'X' | b'^' | b'_') => {
            let at = bytes[2..].iter().position(|b| matches!(b, 0x07 | 0x1b | b'\n'));
            match at.map(|at| (at + 2, bytes[at + 2])) {
                None => bytes.len(),
                Some((at, 0x1b)) if bytes.get(at + 1) == Some(&b'\\') => at + 2,
                // Interrupted: the bytes that follow do not belong to it.
                Some((at, 0x1b | b'\n')) => at,
                Some((at, _)) => at + 1,
            }
        }
        Some(0x20..=0x2f) => end(2, |b| (0x30..=0x7e).contains(b)),
        Some(_) => 2,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    // Bug: Codex printed the address of its proxy. Consequence: the run's token was in `outlast logs`, and so in bug
    // reports. Cause: what an agent printed was passed on as it was.
    #[test]
    fn a_run_token_is_masked_however_the_output_is_shown() {
        let line = b"base_url: http://127.0.0.1:4100/run/ol_AQEAAAABBwAAAAAAAAADAAAAAAAAAAAAAAAAAAAADA/v1";
        let wanted = "base_url: http://127.0.0.1:4100/run/ol_***/v1";
        assert_eq!(text(line), wanted);
        assert_eq!(colours(line), wanted);
        assert_eq!(&*masked(line), wanted.as_bytes());
        assert_eq!(&*masked(b"plain \xff"), b"plain \xff");
    }

    #[test]
    fn what_steers_a_terminal_is_left_out() {
        for (bytes, plain, coloured) in [
            ("a\x1b[31mred\x1b[0m b", "ared b", "a\x1b[31mred\x1b[0m b"),
            ("\x1b[2J\x1b[?25lx\x1b[10;3Hy", "xy", "xy"),
            ("\x1b]0;title\x07x\x1b]8;;http://h\x1b\\link\x1b]8;;\x1b\\", "xlink", "xlink"),
            ("\x1b(Bx\x1b7y\x1b=z", "xyz", "xyz"),
            ("\x1b[>4mx\x1b[?1mx", "xx", "xx"),
            ("10%\r20%\r\nnext", "20%\nnext", "10%\r20%\r\nnext"),
            ("bell\x07 back\x08\x00", "bell back", "bell back"),
            ("cut \x1b[3", "cut ", "cut "),
            ("cut \x1b", "cut ", "cut "),
            ("\x1b]0;never ends\nnext", "\nnext", "\nnext"),
            ("a\u{202e}b", "a\u{fffd}b", "a\u{fffd}b"),
            // The 8-bit form of `ESC [`, as a character of its own.
            (
                "a\u{9b}31mb\u{9d}0;title\u{9c}",
                "a\u{fffd}31mb\u{fffd}0;title\u{fffd}",
                "a\u{fffd}31mb\u{fffd}0;title\u{fffd}",
            ),
        ] {
            assert_eq!(text(bytes.as_bytes()), plain, "{bytes:?}");
            assert_eq!(colours(bytes.as_bytes()), coloured, "{bytes:?}");
        }
        assert_eq!(colours(b"a\x9b31mb"), "a\u{fffd}31mb", "the same as a byte");
        assert_eq!(text(b"bad \xff\xfe"), "bad \u{fffd}\u{fffd}");
    }
}
