//! Credentials in a request's headers, in whatever scheme they come.

use std::borrow::Cow;

use base64::{Engine as _, engine::general_purpose::STANDARD};
use http::HeaderMap;
use outlast_core::{run::token, words::Digest};
use sha2::Digest as _;

use super::{access::NotLetIn, headers::CREDENTIALS};

/// Credential that a call sends to its upstream.
#[derive(Clone, Debug, PartialEq)]
pub enum Credential {
    /// The provider's key that Outlast is configured with, because the caller sent a token of Outlast's or no
    /// credential.
    Ours,
    /// The caller's own key, passed through in the header that it came in.
    Passed { header: &'static str, digest: Digest },
}

/// Returns a credential without its `Bearer` scheme, however it is capitalised. A run token is found after any other
/// scheme, too, and as the user or the password of `Basic`; a password without a user is the credential.
pub fn bare(value: &str) -> Cow<'_, str> {
    let value = value.trim();
    match value.split_once(char::is_whitespace) {
        Some((scheme, rest)) if scheme.eq_ignore_ascii_case("bearer") => rest.trim().into(),
        Some((scheme, rest)) if scheme.eq_ignore_ascii_case("basic") => {
            of_basic(rest.trim()).map_or(value.into(), Cow::Owned)
        }
        Some(_) => {
            value.split_whitespace().find(|word| token::looks_like_token(word)).unwrap_or(value).into()
        }
        None => value.into(),
    }
}

/// Returns the one secret that a `Basic` credential holds; `None` if it holds a user and a password.
fn of_basic(encoded: &str) -> Option<String> {
    let decoded = String::from_utf8(STANDARD.decode(encoded).ok()?).ok()?;
    let (user, password) = decoded.split_once(':')?;
    let token = [user, password].into_iter().find(|part| token::looks_like_token(part));
    token.or(user.is_empty().then_some(password)).map(str::to_owned)
}

/// Reads all credentials of a request, each with its header. Errors: `bad_header`.
pub fn credentials(headers: &HeaderMap) -> Result<Vec<(&'static str, Cow<'_, str>)>, NotLetIn> {
    let mut found = Vec::new();
    for name in CREDENTIALS {
        for value in headers.get_all(name) {
            let value = value.to_str().map_err(|_| NotLetIn::BadHeader("a credential"))?;
            let bare = bare(value);
            if !bare.is_empty() {
                found.push((name, bare));
            }
        }
    }
    Ok(found)
}

/// Returns the digest by which answers to different credentials are told apart.
pub fn digest_of(header: &str, value: &str) -> Digest {
    let mut sha = sha2::Sha256::new();
    sha.update(header.as_bytes());
    sha.update([0]);
    sha.update(value.as_bytes());
    Digest(sha.finalize().into())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn basic(text: &str) -> String {
        format!("basic {}", STANDARD.encode(text))
    }

    /// Bug: a run token as the password of `Basic` went to the provider. Consequence: whoever reads the provider's log
    /// can spend the run's budget. Cause: a credential was looked at as it is written, and `Basic` encodes it.
    #[test]
    fn a_credential_of_basic_is_read() {
        for (text, wanted) in
            [(":ol_x", "ol_x"), ("ol_x:", "ol_x"), ("ann:ol_x", "ol_x"), (":secret", "secret")]
        {
            assert_eq!(bare(&basic(text)), wanted, "{text}");
        }
        for text in ["ann:secret", "secret"] {
            assert_eq!(bare(&basic(text)), basic(text), "{text}");
        }
        assert_eq!(bare("Basic ???"), "Basic ???");
    }
}
