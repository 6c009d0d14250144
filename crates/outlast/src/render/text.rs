//! Text that others wrote, made fit for a terminal.

/// Text from outside (a model's name, an error, a tag) without what could steer a terminal.
///
/// A line's end stays: it cannot do harm, and errors have several lines.
pub fn clean(text: &str) -> String {
    let steers = |c: char| {
        (c.is_control() && c != '\n')
            || matches!(c, '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
    };
    text.chars().map(|c| if steers(c) { '\u{fffd}' } else { c }).collect()
}

/// As [`clean_line`], of what somebody typed or set: a line's end in it is written `\n`.
pub fn exact_line(text: &str, width: usize) -> String {
    clean_line(&text.replace('\n', "\\n"), width)
}

/// As [`clean`], in one line of at most `width` characters.
pub fn clean_line(text: &str, width: usize) -> String {
    let line = clean(text).replace('\n', " ");
    if line.chars().count() <= width {
        return line;
    }
    line.chars().take(width.saturating_sub(1)).chain(['…']).collect()
}
