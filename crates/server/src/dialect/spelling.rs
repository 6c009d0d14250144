//! Spellings of a path: which targets two servers could read differently, and which paths a lenient server takes for one.

use percent_encoding::percent_decode_str;

/// Returns the reason why two servers could read this target differently, if there is one.
///
/// Other spellings stay open: letters of another case, a slash at the end, and encoded signs such as `%3A`: see [`loose`].
pub fn ambiguous(target: &str) -> Option<&'static str> {
    if !target.starts_with('/') {
        return Some("the target must be a path, not a whole URL");
    }
    if target.bytes().any(|b| b <= b' ' || b == 0x7f || b == b'\\' || b == b'#') {
        return Some("the target holds a character that a path cannot hold");
    }
    let path = target.split_once('?').map_or(target, |(path, _)| path);
    let mut segments = path[1..].split('/').peekable();
    while let Some(segment) = segments.next() {
        match segment {
            "." | ".." => return Some("the path holds a dot segment"),
            "" if segments.peek().is_some() => return Some("the path holds an empty segment"),
            segment if segment.contains(';') => return Some("the path holds parameters, after a ;"),
            _ => {}
        }
    }
    path.match_indices('%').find_map(|(at, _)| {
        let code = path.get(at + 1..at + 3).and_then(|hex| u8::from_str_radix(hex, 16).ok());
        match code {
            None => Some("the path holds a % that encodes nothing"),
            Some(b'/' | b'\\') => Some("the path holds an encoded slash"),
            Some(b'.') => Some("the path holds an encoded dot"),
            Some(b';') => Some("the path holds parameters, after an encoded ;"),
            Some(b'?' | b'#') => Some("the path holds an encoded end of a path"),
            Some(b'%') => Some("the path is encoded twice"),
            Some(0..=0x1f | 0x7f) => Some("the path holds an encoded control character"),
            Some(b) if b.is_ascii_alphanumeric() || b"-_~".contains(&b) => {
                Some("the path encodes a character that needs no encoding")
            }
            Some(_) => None,
        }
    })
}

/// Returns an unambiguous path as a server may read it that decodes it, and minds neither the letters' case nor slashes
/// and spaces at the end.
pub fn loose(path: &str) -> String {
    let decoded = percent_decode_str(path).decode_utf8_lossy();
    decoded.trim_end_matches(|c: char| c == '/' || c.is_whitespace()).to_ascii_lowercase()
}
