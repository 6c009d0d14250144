//! Trouble of a task that tries again each second: logged when it begins, when its cause changes, and when it is over.

use std::{pin::pin, time::Duration};

use outlast_core::store::Error;
use parking_lot::Mutex;

/// Time without an answer after which a try counts as failed, whatever becomes of it.
pub const SLOW: Duration = Duration::from_secs(5);

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

    /// Waits for a try. Records a failed one where its answer takes longer than `slow`: a store that is away is waited
    /// for, and a person hears of it meanwhile.
    pub async fn watch<T>(&self, slow: Duration, attempt: impl Future<Output = T>) -> T {
        let mut attempt = pin!(attempt);
        match tokio::time::timeout(slow, attempt.as_mut()).await {
            Ok(answer) => answer,
            Err(_) => {
                let why =
                    format!("it has not answered for {} s, and what comes waits for it", slow.as_secs());
                self.note(Some(&Error::Unavailable { why }));
                attempt.await
            }
        }
    }

    /// Records how a try ended; `None`: it succeeded. Returns whether that is new, and so was logged.
    pub fn note(&self, error: Option<&Error>) -> bool {
        let code = error.map(Error::code);
        let mut logged = self.logged.lock();
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

    /// Bug: the log was silent through the first minute of a database's outage, and of a shorter one it said nothing.
    /// Consequence: calls hung, and nobody could tell why.
    /// Cause: a try counted as failed once the store had given up waiting.
    #[tokio::test]
    async fn a_try_without_an_answer_is_told_while_it_is_waited_for() {
        let trouble = Trouble::new("heartbeat not renewed");
        trouble.watch(Duration::MAX, tokio::task::yield_now()).await;
        assert!(!trouble.note(None), "an answer that comes in time is no news");
        let (answer, answered) = tokio::sync::oneshot::channel();
        let store = async {
            while trouble.logged.lock().is_none() {
                tokio::task::yield_now().await;
            }
            answer.send(()).unwrap();
        };
        tokio::join!(trouble.watch(Duration::ZERO, answered), store).0.unwrap();
        assert!(trouble.note(None), "the trouble is over");
    }
}
