//! Signatures of webhooks, by Standard Webhooks: HMAC-SHA256 over id, time and body.

use base64::{Engine as _, engine::general_purpose::STANDARD};
use hmac::{Hmac, KeyInit as _, Mac as _};
use sha2::Sha256;

/// Prefix of a secret's text.
const PREFIX: &str = "whsec_";

/// Fewest and most bytes of a secret.
const LENGTHS: std::ops::RangeInclusive<usize> = 24..=64;

/// Key by which a webhook's messages are signed. Never printed.
#[derive(Clone, PartialEq, Eq)]
pub struct Secret(Vec<u8>);

/// Error of a text that is no secret.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("not a webhook's secret (wanted whsec_ and 24 to 64 bytes in base64)")]
pub struct BadSecret;

impl std::fmt::Debug for Secret {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Secret(…)")
    }
}

impl Secret {
    pub fn parse(text: &str) -> Result<Secret, BadSecret> {
        let bytes = STANDARD.decode(text.trim().strip_prefix(PREFIX).ok_or(BadSecret)?);
        bytes.ok().filter(|bytes| LENGTHS.contains(&bytes.len())).map(Secret).ok_or(BadSecret)
    }

    /// Returns the three headers that sign a message. `at_s`: seconds since the Unix epoch.
    pub fn headers(&self, id: &str, at_s: i64, body: &[u8]) -> [(&'static str, String); 3] {
        let at = at_s.to_string();
        // A key of any length is taken.
        let signature = Hmac::<Sha256>::new_from_slice(&self.0).map_or_else(
            |_| String::new(),
            |mut mac| {
                for part in [id.as_bytes(), b".", at.as_bytes(), b".", body] {
                    mac.update(part);
                }
                STANDARD.encode(mac.finalize().into_bytes())
            },
        );
        [
            ("webhook-id", id.to_owned()),
            ("webhook-timestamp", at),
            ("webhook-signature", format!("v1,{signature}")),
        ]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The example of the specification's reference libraries.
    #[test]
    fn a_message_is_signed_as_the_standard_says() {
        let secret = Secret::parse("whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw").unwrap();
        let headers =
            secret.headers("msg_p5jXN8AQM9LWM0D4loKWxJek", 1_614_265_330, br#"{"test": 2432232314}"#);
        assert_eq!(headers[2].1, "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE=");
        assert_eq!((headers[0].0, headers[1].1.as_str()), ("webhook-id", "1614265330"));
    }

    #[test]
    fn a_secret_is_taken_whole_or_not() {
        for text in ["", "whsec_", "whsec_AAAA", "MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw", "whsec_!!"] {
            assert_eq!(Secret::parse(text), Err(BadSecret), "{text}");
        }
    }
}
