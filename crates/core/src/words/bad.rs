//! Error for a text of a person or a client that cannot be read, and texts of errors.

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

/// Returns an error's text with its causes, for one whose own text names none of them.
pub fn with_causes(error: &dyn std::error::Error) -> String {
    let chain = std::iter::successors(Some(error), |error| error.source());
    chain.map(|error| error.to_string()).collect::<Vec<_>>().join(": ")
}

/// Returns the start of a text, enough to recognise it by. A hostile text can be megabytes long.
pub fn start_of(text: &str) -> String {
    text.chars().take(80).collect()
}
