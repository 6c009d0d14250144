//! What the supervisor says to the person, on standard error, apart from the agent's own output.

/// One line.
pub fn say(text: &str) {
    eprintln!("outlast: {text}");
}
