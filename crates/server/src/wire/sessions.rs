//! Sessions of the page: a link that works once, exchanged for a bearer that one browser tab keeps.
//!
//! No cookie: a cookie of one port of a host is sent to every other port of it. Secrets are kept as digests, and only in
//! memory; a server that begins anew wants a new link.

use std::sync::Arc;

use outlast_core::words::{Clock, Entropy, clock::random};
use parking_lot::Mutex;
use sha2::Digest as _;
use subtle::ConstantTimeEq as _;

/// Prefix of every bearer of the page.
pub const PREFIX: &str = "olp_";

/// Time within which a link must be opened, in milliseconds.
pub const LINK_MS: u64 = 60_000;

/// Time for which a bearer is valid, in milliseconds.
pub const BEARER_MS: u64 = 12 * 60 * 60 * 1000;

/// Most links, and most bearers, that are known at once. Beyond it the oldest is forgotten.
const MOST: usize = 64;

/// Sessions of the page on one listener.
pub struct Sessions {
    clock: Arc<dyn Clock>,
    entropy: Arc<dyn Entropy>,
    /// Whether the sessions may only read.
    read_only: bool,
    held: Mutex<Held>,
}

#[derive(Default)]
struct Held {
    links: Vec<Secret>,
    bearers: Vec<Secret>,
}

struct Secret {
    digest: [u8; 32],
    /// Time of CLOCK_BOOTTIME from which it is no longer good: a suspended machine's links grow old too.
    until_ms: u64,
}

impl Sessions {
    pub fn new(clock: Arc<dyn Clock>, entropy: Arc<dyn Entropy>, read_only: bool) -> Arc<Sessions> {
        Arc::new(Sessions { clock, entropy, read_only, held: Mutex::default() })
    }

    pub fn read_only(&self) -> bool {
        self.read_only
    }

    /// Makes a link's secret, which is valid once, for [`LINK_MS`].
    pub fn link(&self) -> String {
        let secret = self.secret("");
        self.keep(|held| &mut held.links, &secret, LINK_MS);
        secret
    }

    /// Exchanges a link's secret for a bearer; `None` if the secret is unknown, used or too old.
    pub fn exchange(&self, link: &str) -> Option<String> {
        let now = self.clock.boottime_ms();
        let wanted = digest(link);
        let mut held = self.held.lock();
        let at = held.links.iter().position(|known| known.is(&wanted, now))?;
        held.links.remove(at);
        drop(held);
        let bearer = self.secret(PREFIX);
        self.keep(|held| &mut held.bearers, &bearer, BEARER_MS);
        Some(bearer)
    }

    /// Returns whether a credential is the bearer of a session that is still valid.
    pub fn knows(&self, bearer: &str) -> bool {
        let (now, wanted) = (self.clock.boottime_ms(), digest(bearer));
        let held = self.held.lock();
        held.bearers.iter().any(|known| known.is(&wanted, now))
    }

    fn secret(&self, prefix: &str) -> String {
        let bytes: [u8; 32] = random(&*self.entropy);
        bytes.iter().fold(prefix.to_owned(), |text, byte| format!("{text}{byte:02x}"))
    }

    fn keep(&self, list: impl Fn(&mut Held) -> &mut Vec<Secret>, secret: &str, good_ms: u64) {
        let now = self.clock.boottime_ms();
        let mut held = self.held.lock();
        let list = list(&mut held);
        list.retain(|known| known.until_ms > now);
        if list.len() == MOST {
            list.remove(0);
        }
        list.push(Secret { digest: digest(secret), until_ms: now + good_ms });
    }
}

impl Secret {
    fn is(&self, wanted: &[u8; 32], now_ms: u64) -> bool {
        let same: bool = self.digest.ct_eq(wanted).into();
        same && self.until_ms > now_ms
    }
}

fn digest(secret: &str) -> [u8; 32] {
    sha2::Sha256::digest(secret.as_bytes()).into()
}

#[cfg(test)]
mod tests {
    use outlast_core::words::{ManualClock, Micros, SeededEntropy};

    use super::*;

    fn sessions() -> (Arc<ManualClock>, Arc<Sessions>) {
        let clock = Arc::new(ManualClock::new(Micros(0)));
        (clock.clone(), Sessions::new(clock, Arc::new(SeededEntropy::new(7)), false))
    }

    #[test]
    fn a_link_works_once_and_for_a_minute() {
        let (clock, sessions) = sessions();
        let (first, second) = (sessions.link(), sessions.link());
        let bearer = sessions.exchange(&first).unwrap();
        assert!(sessions.knows(&bearer));
        assert_eq!(sessions.exchange(&first), None, "used");
        assert_eq!(sessions.exchange(""), None);
        assert_eq!(sessions.exchange(&bearer), None, "a bearer is no link");
        assert!(!sessions.knows(&second), "a link is no bearer");
        clock.suspend_ms(LINK_MS);
        assert_eq!(sessions.exchange(&second), None, "too old, also after a suspend");
        assert!(sessions.knows(&bearer));
        clock.advance_ms(BEARER_MS - LINK_MS);
        assert!(!sessions.knows(&bearer));
    }

    #[test]
    fn the_oldest_session_makes_room() {
        let (_, sessions) = sessions();
        let bearers: Vec<String> = (0..=MOST).map(|_| sessions.exchange(&sessions.link()).unwrap()).collect();
        let known = bearers.iter().filter(|bearer| sessions.knows(bearer)).count();
        assert_eq!((known, sessions.knows(&bearers[0])), (MOST, false));
    }
}
