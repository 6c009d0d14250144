//! Trouble of a task that tries again each second: logged when it begins, when its cause changes, and when it is over.

use std::sync::{Mutex, PoisonError};

use outlast_core::store::Error;

/// State of a task that tries again and again: whether it fails, as far as that has been logged.
pub struct Trouble {
    /// Text of a failed try, such as "heartbeat not renewed".
    what: &'static str,
    /// Code of the error that was logged last; `None` when the last try succeeded.
    logged: Mutex<Option<&'static str>>,
}

impl Trouble {
    pub fn new(what: &'static str) -> Trouble {
        Trouble { what, logged: Mutex::new(None) }
    }

    /// Records how a try ended; `None`: it succeeded. Returns whether that is new, and so was logged.
    pub fn note(&self, error: Option<&Error>) -> bool {
        let code = error.map(Error::code);
        let mut logged = self.logged.lock().unwrap_or_else(PoisonError::into_inner);
        let is_news = *logged != code;
        *logged = code;
        match error {
            Some(e) if is_news => tracing::warn!(error = %e, "{}", self.what),
            None if is_news => tracing::info!("over: {}", self.what),
            _ => {}
        }
        is_news
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn trouble_is_told_once_until_it_changes_or_ends() {
        let trouble = Trouble::new("heartbeat not renewed");
        let away = Error::Unavailable { why: "refused".into() };
        let told = [None, Some(&away), Some(&away), Some(&Error::Closed), Some(&away), None, None];
        assert_eq!(told.map(|e| trouble.note(e)), [false, true, false, true, true, true, false]);
    }
}
