//! Run tokens: sent by an agent as its API key, so that its calls are known to belong to its run.
//!
//! A token says which run and attempt it was minted for and is signed with one of the store's
//! keys; it holds no secret of a provider. `ol_` and then base64url (no padding) of 54 bytes,
//! integers little-endian:
//!
//! | at | bytes | what                                            |
//! |----|-------|-------------------------------------------------|
//! | 0  | 1     | version, 1                                      |
//! | 1  | 4     | key id                                          |
//! | 5  | 1     | 1 when the attempt holds a fence, else 0        |
//! | 6  | 8     | run number                                      |
//! | 14 | 8     | attempt number                                  |
//! | 22 | 8     | slot                                            |
//! | 30 | 8     | fence, -1 when there is none                    |
//! | 38 | 16    | HMAC-SHA256 over a domain and 0..38, cut to 128 bits |
//!
//! 54 bytes are 72 characters exactly: no bits are left over in the last one to vary.

use std::fmt;

use base64::{Engine as _, engine::general_purpose::URL_SAFE_NO_PAD};
use bytes::{Buf, BufMut};
use hmac::{Hmac, KeyInit, Mac};
use sha2::Sha256;

use crate::words::{AttemptNo, Fence, RunNo, Slot};

/// Prefix of every run token. No key of a provider starts with it.
pub const PREFIX: &str = "ol_";

const VERSION: u8 = 1;
const SIGNED: usize = 38;
const MAC: usize = 16;
const TOKEN: usize = SIGNED + MAC;
const TEXT: usize = TOKEN / 3 * 4;
/// Domain of the signature: a signature by the same key over anything else never passes as a token.
const DOMAIN: &[u8] = b"outlast run token\0";

/// Key that signs run tokens. A run keeps the key it began with; new runs get the newest.
#[derive(Clone, PartialEq, Eq)]
pub struct TokenKey {
    pub id: u32,
    pub secret: [u8; 32],
}

impl fmt::Debug for TokenKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TokenKey").field("id", &self.id).field("secret", &"***").finish()
    }
}

/// Contents of a token. A valid signature does not make a token current: the engine checks the fence.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Claims {
    pub run: RunNo,
    pub attempt: AttemptNo,
    pub slot: Slot,
    /// Fence of the attempt; `None` if it holds no lease.
    pub fence: Option<Fence>,
}

/// Reason why a text is not a token to trust. Never contains the text: errors are logged, tokens are not.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum TokenError {
    #[error("not a run token: wanted a text that starts with {PREFIX}")]
    NotAToken,
    #[error("malformed run token: wanted {TEXT} base64url characters after {PREFIX}, had {had}")]
    WrongLength { had: usize },
    #[error("malformed run token: a character after {PREFIX} is not base64url")]
    NotBase64,
    #[error("run token of version {had}, wanted version {VERSION}: it was minted by another outlast")]
    UnknownVersion { had: u8 },
    #[error("run token signed with key {key_id}, which this store does not have: was it minted by another?")]
    UnknownKey { key_id: u32 },
    #[error("run token with a wrong signature for key {key_id}: it was altered or cut")]
    WrongSignature { key_id: u32 },
}

impl TokenError {
    pub fn code(&self) -> &'static str {
        match self {
            Self::NotAToken | Self::WrongLength { .. } | Self::NotBase64 => "token_malformed",
            Self::UnknownVersion { .. } => "token_version_unknown",
            Self::UnknownKey { .. } => "token_key_unknown",
            Self::WrongSignature { .. } => "token_signature_wrong",
        }
    }
}

/// Signs `claims` with `key`. The same claims and key give the same token.
pub fn mint(key: &TokenKey, claims: &Claims) -> String {
    let mut token = Vec::with_capacity(TOKEN);
    token.put_u8(VERSION);
    token.put_u32_le(key.id);
    token.put_u8(u8::from(claims.fence.is_some()));
    token.put_i64_le(claims.run.0);
    token.put_i64_le(claims.attempt.0);
    token.put_i64_le(claims.slot.0);
    token.put_i64_le(claims.fence.map_or(-1, |fence| fence.0));
    let tag = signature(key, &token).finalize().into_bytes();
    token.put_slice(&tag[..MAC]);
    format!("{PREFIX}{}", URL_SAFE_NO_PAD.encode(token))
}

/// Reads a token and checks its signature, in constant time, against the key it names.
///
/// Errors differ for a token of another store and for one that was tampered with. No error tells anything about the
/// right signature.
pub fn verify(text: &str, keys: &[TokenKey]) -> Result<Claims, TokenError> {
    let encoded = text.strip_prefix(PREFIX).ok_or(TokenError::NotAToken)?;
    if encoded.len() != TEXT {
        return Err(TokenError::WrongLength { had: encoded.len() });
    }
    let token = URL_SAFE_NO_PAD.decode(encoded).map_err(|_| TokenError::NotBase64)?;
    let (mut signed, tag) =
        token.split_at_checked(SIGNED).ok_or(TokenError::WrongLength { had: encoded.len() })?;
    let whole = signed;
    // From here on `signed` holds its 38 bytes, so the reads below cannot run out.
    let version = signed.get_u8();
    if version != VERSION {
        return Err(TokenError::UnknownVersion { had: version });
    }
    let key_id = signed.get_u32_le();
    let key = keys.iter().find(|key| key.id == key_id).ok_or(TokenError::UnknownKey { key_id })?;
    signature(key, whole).verify_truncated_left(tag).map_err(|_| TokenError::WrongSignature { key_id })?;
    let fenced = signed.get_u8() == 1;
    let (run, attempt, slot, fence) =
        (signed.get_i64_le(), signed.get_i64_le(), signed.get_i64_le(), signed.get_i64_le());
    Ok(Claims {
        run: RunNo(run),
        attempt: AttemptNo(attempt),
        slot: Slot(slot),
        fence: fenced.then_some(Fence(fence)),
    })
}

fn signature(key: &TokenKey, signed: &[u8]) -> Hmac<Sha256> {
    // Spelled out: `new_from_slice` returns a Result for a length that is fixed here.
    let mut mac = Hmac::<Sha256>::new(&padded(&key.secret).into());
    mac.update(DOMAIN);
    mac.update(signed);
    mac
}

/// HMAC pads a short key to its block with zeros; doing so here makes the length a matter of types.
fn padded(secret: &[u8; 32]) -> [u8; 64] {
    std::array::from_fn(|i| secret.get(i).copied().unwrap_or(0))
}

/// Returns whether `text` claims to be a run token, valid or not. Such a text never goes upstream.
pub fn looks_like_token(text: &str) -> bool {
    text.starts_with(PREFIX)
}

/// Replaces every `ol_…` in `text` by `ol_***`: for logs and error messages.
///
/// Masks a token wherever a word starts with `ol_`, whole or cut short. Within a word, masks only text as long
/// as a token (glued to something), so that `protocol_version` is left alone.
pub fn mask(text: &str) -> String {
    let mut masked = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(at) = rest.find(PREFIX) {
        let after = &rest[at + PREFIX.len()..];
        let tail = after.bytes().take_while(|b| b.is_ascii_alphanumeric() || b"-_".contains(b)).count();
        let starts_word = !rest[..at].ends_with(|c: char| c.is_ascii_alphanumeric());
        masked.push_str(&rest[..at + PREFIX.len()]);
        if tail >= TEXT || (starts_word && tail > 0) {
            masked.push_str("***");
            rest = &after[tail..];
        } else {
            rest = after;
        }
    }
    masked.push_str(rest);
    masked
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn key(id: u32) -> TokenKey {
        TokenKey { id, secret: [id as u8; 32] }
    }

    const CLAIMS: Claims =
        Claims { run: RunNo(7), attempt: AttemptNo(3), slot: Slot::DRIVER, fence: Some(Fence(12)) };

    // Agents keep tokens across an upgrade of ours: this text must stay valid.
    #[test]
    fn a_token_of_version_1_stays_valid() {
        let text = "ol_AQEAAAABBwAAAAAAAAADAAAAAAAAAAAAAAAAAAAADAAAAAAAAACsp-1F6HGAf9m2u_B-rck_";
        assert_eq!(mint(&key(1), &CLAIMS), text);
        assert_eq!(verify(text, &[key(1)]), Ok(CLAIMS));
    }

    #[test]
    fn each_refusal_names_what_was_wrong() {
        let good = mint(&key(1), &CLAIMS);
        let with = |byte: usize, value: u8| {
            let mut raw = URL_SAFE_NO_PAD.decode(&good[3..]).unwrap();
            raw[byte] = value;
            format!("ol_{}", URL_SAFE_NO_PAD.encode(raw))
        };
        for (text, error) in [
            (String::new(), TokenError::NotAToken),
            ("sk-proj-abc".to_owned(), TokenError::NotAToken),
            ("ol_".to_owned(), TokenError::WrongLength { had: 0 }),
            (good[..74].to_owned(), TokenError::WrongLength { had: 71 }),
            (format!("{good}A"), TokenError::WrongLength { had: 73 }),
            (format!("{}+", &good[..74]), TokenError::NotBase64),
            (with(0, 2), TokenError::UnknownVersion { had: 2 }),
            (with(1, 9), TokenError::UnknownKey { key_id: 9 }),
            (with(1, 2), TokenError::WrongSignature { key_id: 2 }),
            (with(6, 8), TokenError::WrongSignature { key_id: 1 }),
        ] {
            assert_eq!(verify(&text, &[key(1), key(2)]), Err(error), "{text}");
        }
        assert_eq!(verify(&good, &[]), Err(TokenError::UnknownKey { key_id: 1 }));
    }

    #[test]
    fn no_fence_is_not_a_fence_of_minus_one() {
        let unfenced = Claims { fence: None, ..CLAIMS };
        let minus_one = Claims { fence: Some(Fence(-1)), ..CLAIMS };
        for claims in [unfenced, minus_one] {
            assert_eq!(verify(&mint(&key(1), &claims), &[key(1)]), Ok(claims));
        }
    }

    #[test]
    fn a_key_and_an_error_never_show_the_secret_or_the_token() {
        assert_eq!(format!("{:?}", key(5)), "TokenKey { id: 5, secret: \"***\" }");
        let text = format!("{}!", &mint(&key(1), &CLAIMS)[..74]);
        let error = verify(&text, &[key(1)]).unwrap_err();
        assert!(!format!("{error} {error:?}").contains(&text[3..20]));
    }

    #[test]
    fn masking_hides_tokens_and_leaves_the_rest() {
        let token = mint(&key(1), &CLAIMS);
        let check = |text: &str, masked: &str| assert_eq!(mask(text), masked);
        check("", "");
        check("nothing to hide", "nothing to hide");
        check(&token, "ol_***");
        check(&format!("Authorization: Bearer {token}\r\n"), "Authorization: Bearer ol_***\r\n");
        check(&format!("/run/{token}/v1/messages?key={token}&a=b"), "/run/ol_***/v1/messages?key=ol_***&a=b");
        check(&format!("cut: {}", &token[..20]), "cut: ol_***");
        check(&format!("glued{token}"), "gluedol_***");
        check(&format!("é{token}é"), "éol_***é");
        check("protocol_version, ol_", "protocol_version, ol_");
    }

    #[test]
    fn only_the_prefix_makes_a_text_look_like_a_token() {
        assert!(looks_like_token("ol_x") && looks_like_token("ol_"));
        assert!(!looks_like_token("sk-ol_x") && !looks_like_token("ol-x") && !looks_like_token(""));
    }

    fn any_claims() -> impl Strategy<Value = Claims> {
        any::<(i64, i64, i64, Option<i64>)>().prop_map(|(run, attempt, slot, fence)| Claims {
            run: RunNo(run),
            attempt: AttemptNo(attempt),
            slot: Slot(slot),
            fence: fence.map(Fence),
        })
    }

    proptest! {
        #[test]
        fn a_minted_token_verifies_with_its_key_alone(claims in any_claims(), id: u32, secret: [u8; 32]) {
            let key = TokenKey { id, secret };
            let text = mint(&key, &claims);
            prop_assert!(looks_like_token(&text));
            prop_assert_eq!(verify(&text, &[TokenKey { id: !id, secret }, key]), Ok(claims));
            let mut other = secret;
            other[31] ^= 1;
            prop_assert_eq!(
                verify(&text, &[TokenKey { id, secret: other }]),
                Err(TokenError::WrongSignature { key_id: id })
            );
        }

        #[test]
        fn any_flipped_bit_is_refused(claims in any_claims(), bit in 0..TOKEN * 8) {
            let text = mint(&key(1), &claims);
            let mut raw = URL_SAFE_NO_PAD.decode(&text[3..]).unwrap();
            raw[bit / 8] ^= 1 << (bit % 8);
            let tampered = format!("ol_{}", URL_SAFE_NO_PAD.encode(raw));
            prop_assert!(verify(&tampered, &[key(0), key(1), key(3)]).is_err());
        }

        #[test]
        fn any_other_text_is_refused(claims in any_claims(), at in 0..75usize, c in "[ -~]") {
            let mut text = mint(&key(1), &claims);
            prop_assume!(text[at..=at] != c);
            text.replace_range(at..=at, &c);
            prop_assert!(verify(&text, &[key(1)]).is_err());
        }

        #[test]
        fn no_token_survives_masking(claims in any_claims(), before in "[a-z_/= é]{0,9}", after in "[/ &é.]{0,9}") {
            let token = mint(&key(1), &claims);
            let masked = mask(&format!("{before}{token}{after}{token}"));
            prop_assert!(!masked.contains(&token[3..]), "{}", masked);
        }
    }
}
