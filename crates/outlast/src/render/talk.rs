//! A conversation as lines for people: roles, texts, tools, and what is no text by its size.

use outlast_server::dialect::conversation::{Part, Turn};

use super::text::clean;

/// Formats a turn of a conversation: its role on a line, and below it its parts, indented.
pub fn lines(turn: &Turn) -> Vec<String> {
    let mut out = vec![format!("  {}", clean(&turn.role).replace('\n', " "))];
    for part in &turn.parts {
        let text = match part {
            Part::Text(text) => text.clone(),
            Part::Thinking(text) => format!("(thinking) {text}"),
            Part::Call(call) | Part::Served(call) => match call.shown_id() {
                "" => format!("→ {} {}", call.name, call.input),
                id => format!("→ {} {}  ({id})", call.name, call.input),
            },
            Part::Result(result) => match result.shown_id() {
                "" => format!("← {}", result.text),
                id => format!("← ({id}) {}", result.text),
            },
            Part::Other { what, bytes } => format!("[{what}, {}]", size(*bytes)),
        };
        out.extend(clean(&text).lines().map(|line| format!("    {line}").trim_end().to_owned()));
    }
    out
}

/// Formats a size as people read it: `812 bytes`, `12.3 kB`, `4.0 MB`.
pub fn size(bytes: usize) -> String {
    match bytes {
        0..1000 => format!("{bytes} bytes"),
        1000..1_000_000 => format!("{}.{} kB", bytes / 1000, bytes % 1000 / 100),
        _ => format!("{}.{} MB", bytes / 1_000_000, bytes % 1_000_000 / 100_000),
    }
}
