//! Error for a text of a person or a client that cannot be read.

/// Error for a text that is not what it should be.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("not {what}: {text:?}{why} (wanted {wanted})")]
pub struct BadText {
    what: &'static str,
    text: String,
    why: String,
    wanted: &'static str,
}

impl BadText {
    pub fn new(what: &'static str, text: &str, wanted: &'static str) -> BadText {
        BadText { what, text: start_of(text), why: String::new(), wanted }
    }

    /// Adds which part of the text is wrong.
    pub fn because(self, why: &str) -> BadText {
        BadText { why: format!(": {why}"), ..self }
    }
}

/// Returns the start of a text, enough to recognise it by. A hostile text can be megabytes long.
pub fn start_of(text: &str) -> String {
    text.chars().take(80).collect()
}
