//! Text from outside, made safe for a terminal.

use std::sync::OnceLock;

use serde_json::Value;

/// Whether no screen bounds what is printed; unset until [`print_whole`] is called.
static WHOLE: OnceLock<()> = OnceLock::new();

/// Lets nothing be cut from now on: the output goes into a pipe or a file, and a program or a later reader may want all.
pub fn print_whole() {
    let _ = WHOLE.set(());
}

/// Returns whether nothing is cut.
pub fn is_whole() -> bool {
    WHOLE.get().is_some()
}

/// Replaces characters that could control a terminal, in text from outside such as a model's name, an error or a tag.
///
/// Newlines stay: they do no harm, and errors have several lines.
pub fn clean(text: &str) -> String {
    text.chars().map(|c| if steers(c) { '\u{fffd}' } else { c }).collect()
}

/// Returns whether a character controls a terminal (C0 and C1 but for a line's end), or the order in which text is shown.
pub fn steers(c: char) -> bool {
    (c.is_control() && c != '\n')
        || matches!(c, '\u{61c}' | '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
}

/// Cleans text as [`clean_line`] does, but shows newlines as `\n`, for text that a person typed or set.
pub fn exact_line(text: &str, width: usize) -> String {
    clean_line(&text.replace('\n', "\\n"), width)
}

/// Cleans text as [`clean`] does, into one line; of at most `width` characters, unless nothing is cut ([`print_whole`]).
pub fn clean_line(text: &str, width: usize) -> String {
    let line = clean(text).replace('\n', " ");
    if is_whole() || line.chars().count() <= width {
        return line;
    }
    line.chars().take(width.saturating_sub(1)).chain(['…']).collect()
}

/// Returns bytes as the JSON that they are, and as a text otherwise.
pub fn json_or_text(bytes: &[u8]) -> Value {
    serde_json::from_slice(bytes).unwrap_or_else(|_| String::from_utf8_lossy(bytes).into())
}

/// Cleans text and breaks it between words into lines of at most `width` characters. A longer word is cut.
pub fn wrapped(text: &str, width: usize) -> Vec<String> {
    let mut lines: Vec<String> = Vec::new();
    for word in clean(text).split_whitespace() {
        let word = clean_line(word, width);
        match lines.last_mut() {
            Some(line) if line.chars().count() + 1 + word.chars().count() <= width => {
                line.push(' ');
                line.push_str(&word);
            }
            _ => lines.push(word),
        }
    }
    lines
}
