//! Digests of requests: two requests with the same digest are the same request.
//!
//! Digests are stored and compared across versions of this program, so the framing carries a
//! version: [`REQUEST_VERSION`] changes whenever the same request would digest differently.

use std::{fmt, str::FromStr};

use sha2::{Digest as _, Sha256};

use crate::stored_as_text;

/// Version of the framing of [`RequestDigest`].
pub const REQUEST_VERSION: u8 = 1;
/// Version of the framing of [`MatchKey`].
pub const MATCH_VERSION: u8 = 1;

/// Error for a text that is no digest: wrong length, or a character that is not hexadecimal.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("not a {kind}: {text:?} (wanted {wanted} hexadecimal digits, had {had} characters)")]
pub struct BadHex {
    pub kind: &'static str,
    pub text: String,
    pub wanted: usize,
    pub had: usize,
}

const DIGITS: &[u8; 16] = b"0123456789abcdef";

macro_rules! hex_bytes {
    ($(#[$doc:meta])* $name:ident, $len:literal, $kind:literal) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
        pub struct $name(pub [u8; $len]);

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                let mut digits = [0; 2 * $len];
                for (pair, byte) in digits.chunks_exact_mut(2).zip(self.0) {
                    pair.copy_from_slice(&[byte >> 4, byte & 15].map(|half| DIGITS[usize::from(half)]));
                }
                f.write_str(std::str::from_utf8(&digits).map_err(|_| fmt::Error)?)
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                fmt::Display::fmt(self, f)
            }
        }

        impl FromStr for $name {
            type Err = BadHex;
            fn from_str(text: &str) -> Result<Self, BadHex> {
                unhex(text).map(Self).ok_or_else(|| BadHex {
                    kind: $kind,
                    text: text.chars().take(80).collect(),
                    wanted: 2 * $len,
                    had: text.chars().count(),
                })
            }
        }

        stored_as_text!($name);
    };
}

hex_bytes!(
    /// A SHA-256, shown as 64 lower-case hexadecimal digits.
    Digest,
    32,
    "digest"
);
hex_bytes!(
    /// Key by which the replay rule looks up calls with an equal request: 32 hexadecimal digits.
    ///
    /// Half a SHA-256 makes the index column half as wide, and leaves 64 bits of strength against a deliberate
    /// collision. Such a collision could only confuse calls of one run.
    MatchKey,
    16,
    "match key"
);

fn unhex<const N: usize>(text: &str) -> Option<[u8; N]> {
    let digits = text.as_bytes();
    if digits.len() != 2 * N {
        return None;
    }
    let value = |digit: u8| char::from(digit).to_digit(16).map(|v| v as u8);
    let mut bytes = [0; N];
    for (byte, pair) in bytes.iter_mut().zip(digits.chunks_exact(2)) {
        *byte = value(pair[0])? << 4 | value(pair[1])?;
    }
    Some(bytes)
}

impl Digest {
    /// Returns the SHA-256 of `bytes`.
    pub fn of(bytes: &[u8]) -> Digest {
        Digest(Sha256::digest(bytes).into())
    }
}

/// Parts of a request that decide its answer, before any change made by Outlast.
///
/// A struct and not a builder, so that an added field cannot be forgotten anywhere.
#[derive(Clone, Copy, Debug)]
pub struct RequestDigest<'a> {
    /// Configured name of the upstream, so that a moved base URL keeps its digests.
    pub upstream: &'a str,
    /// HTTP method in upper case.
    pub method: &'a str,
    /// Path below the upstream's base, with its leading slash.
    pub path: &'a str,
    /// Query of the URL, without `?` and without a credential; `None` if there is none.
    pub query: Option<&'a str>,
    pub anthropic_version: Option<&'a str>,
    /// Value of the `anthropic-beta` header, several lines joined by commas in order; `None` without the header.
    pub anthropic_beta: Option<&'a str>,
    /// Whether the answer is wanted as a stream.
    pub stream: bool,
    /// Canonical JSON body: keys sorted, ignored parts left out, masks applied.
    pub body: &'a [u8],
}

impl RequestDigest<'_> {
    /// Returns the SHA-256 of the version and the fields in order, each with its length before it, so that no
    /// two different requests are framed alike.
    pub fn digest(&self) -> Digest {
        let mut frame = Frame::new(b"outlast request", REQUEST_VERSION);
        frame.field(self.upstream.as_bytes());
        frame.field(self.method.as_bytes());
        frame.field(self.path.as_bytes());
        frame.optional(self.query.map(str::as_bytes));
        frame.optional(self.anthropic_version.map(str::as_bytes));
        frame.optional(self.anthropic_beta.map(str::as_bytes));
        frame.field(&[u8::from(self.stream)]);
        frame.field(self.body);
        Digest(frame.finish())
    }
}

impl MatchKey {
    /// Returns the key of a request within its scope. If the agent's own credential is passed through, the key
    /// holds for that credential only: one user's answer is never replayed to another.
    pub fn new(request: &Digest, scope: &str, credential: Option<&Digest>) -> MatchKey {
        let mut frame = Frame::new(b"outlast match", MATCH_VERSION);
        frame.field(&request.0);
        frame.field(scope.as_bytes());
        frame.optional(credential.map(|digest| digest.0.as_slice()));
        MatchKey::of(frame)
    }

    /// Returns the key of a tool call: equal calls of one scope have equal keys. `arguments` is the digest of all that
    /// was asked of the tool, as canonical JSON.
    pub fn of_tool(server: &str, tool: &str, arguments: &Digest, scope: &str) -> MatchKey {
        let mut frame = Frame::new(b"outlast tool", MATCH_VERSION);
        frame.field(server.as_bytes());
        frame.field(tool.as_bytes());
        frame.field(&arguments.0);
        frame.field(scope.as_bytes());
        MatchKey::of(frame)
    }

    fn of(frame: Frame) -> MatchKey {
        let whole = frame.finish();
        MatchKey(std::array::from_fn(|i| whole[i]))
    }
}

/// SHA-256 over length-prefixed fields.
struct Frame(Sha256);

impl Frame {
    fn new(domain: &[u8], version: u8) -> Frame {
        let mut frame = Frame(Sha256::new());
        frame.field(domain);
        frame.field(&[version]);
        frame
    }

    fn field(&mut self, bytes: &[u8]) {
        self.0.update((bytes.len() as u64).to_le_bytes());
        self.0.update(bytes);
    }

    /// Adds an optional field. An absent field differs from an empty one: its length is one no field can have.
    fn optional(&mut self, bytes: Option<&[u8]>) {
        match bytes {
            Some(bytes) => self.field(bytes),
            None => self.0.update(u64::MAX.to_le_bytes()),
        }
    }

    fn finish(self) -> [u8; 32] {
        self.0.finalize().into()
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use proptest::prelude::*;

    use super::*;

    const PLAIN: RequestDigest<'static> = RequestDigest {
        upstream: "openai",
        method: "POST",
        path: "/chat/completions",
        query: None,
        anthropic_version: None,
        anthropic_beta: None,
        stream: false,
        body: b"{}",
    };

    #[test]
    fn every_field_changes_the_digest() {
        let requests = [
            PLAIN,
            RequestDigest { upstream: "azure", ..PLAIN },
            RequestDigest { method: "GET", ..PLAIN },
            RequestDigest { path: "/responses", ..PLAIN },
            RequestDigest { query: Some(""), ..PLAIN },
            RequestDigest { query: Some("a=b"), ..PLAIN },
            RequestDigest { anthropic_version: Some("2023-06-01"), ..PLAIN },
            RequestDigest { anthropic_beta: Some("2023-06-01"), ..PLAIN },
            RequestDigest { stream: true, ..PLAIN },
            RequestDigest { body: b"{\"a\":1}", ..PLAIN },
        ];
        let digests: HashSet<Digest> = requests.iter().map(RequestDigest::digest).collect();
        assert_eq!(digests.len(), requests.len());
    }

    #[test]
    fn bytes_do_not_slide_between_fields() {
        let a = RequestDigest { method: "POST/a", path: "b", ..PLAIN };
        let b = RequestDigest { method: "POST", path: "/ab", ..PLAIN };
        assert_ne!(a.digest(), b.digest());
    }

    // A stored digest must find its request again after an upgrade: changing either value means
    // raising the version beside it.
    #[test]
    fn the_framing_of_version_1_stays_as_it_is() {
        let digest = PLAIN.digest();
        assert_eq!(digest.to_string(), "d7faeda53162d4f02e1300300fa3305e34cde2b08db034271baa2271095c5f1d");
        assert_eq!(MatchKey::new(&digest, "iter:0", None).to_string(), "6f46b8aa987416e056f3546c379a884b");
    }

    #[test]
    fn match_keys_differ_by_request_scope_and_credential() {
        let (request, other) = (Digest::of(b"a"), Digest::of(b"b"));
        let keys = HashSet::from([
            MatchKey::new(&request, "0", None),
            MatchKey::new(&other, "0", None),
            MatchKey::new(&request, "1", None),
            MatchKey::new(&request, "0", Some(&request)),
            MatchKey::new(&request, "0", Some(&other)),
        ]);
        assert_eq!(keys.len(), 5);
    }

    #[test]
    fn digests_are_the_sha_256_everyone_computes() {
        let empty = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855";
        assert_eq!(Digest::of(b"").to_string(), empty);
    }

    #[test]
    fn what_is_not_hexadecimal_is_refused_with_what_was_wanted() {
        for bad in ["", "00", &"g".repeat(64), &"0".repeat(65), &"é".repeat(32), &"+0".repeat(32)] {
            let error = bad.parse::<Digest>().unwrap_err().to_string();
            assert!(error.contains("wanted 64 hexadecimal digits"), "{error}");
        }
    }

    proptest! {
        #[test]
        fn digests_survive_text_and_json(bytes: [u8; 32], half: [u8; 16]) {
            let (digest, key) = (Digest(bytes), MatchKey(half));
            prop_assert_eq!(digest.to_string().parse::<Digest>(), Ok(digest));
            prop_assert_eq!(digest.to_string().to_uppercase().parse::<Digest>(), Ok(digest));
            let json = serde_json::to_string(&(digest, key)).unwrap();
            prop_assert_eq!(serde_json::from_str::<(Digest, MatchKey)>(&json).unwrap(), (digest, key));
        }

        #[test]
        fn different_texts_frame_differently(a in "[ab]{0,4}", b in "[ab]{0,4}", c in "[ab]{0,4}", d in "[ab]{0,4}") {
            let one = RequestDigest { path: &a, query: Some(&b), ..PLAIN };
            let two = RequestDigest { path: &c, query: Some(&d), ..PLAIN };
            prop_assert_eq!(one.digest() == two.digest(), (&a, &b) == (&c, &d));
        }
    }
}
