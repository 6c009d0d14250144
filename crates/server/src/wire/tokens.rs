//! API tokens of a listener, each with the name that its bearer's acts are recorded under.

use std::sync::Arc;

use subtle::ConstantTimeEq as _;

/// API tokens that a listener takes. At least one.
#[derive(Clone, PartialEq, Eq)]
pub struct ApiTokens(Arc<[ApiToken]>);

/// One API token.
#[derive(Clone, PartialEq, Eq)]
pub struct ApiToken {
    /// Name of who has it: up to 40 of `A-Z a-z 0-9 . _ -`; `None` for a token without a name.
    pub name: Option<String>,
    secret: String,
}

/// Error of a text that holds no API tokens.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BadTokens {
    #[error("it is empty")]
    None,
    #[error("line {line} has {words} words (wanted TOKEN, or NAME TOKEN)")]
    Words { line: usize, words: usize },
    #[error("the token in line {line} has fewer than {SHORTEST} characters")]
    Short { line: usize },
    #[error("line {line} names {name:?} (wanted up to 40 of A-Z a-z 0-9 . _ -)")]
    Name { line: usize, name: String },
    #[error("line {line} has a name or a token that an earlier line has")]
    Twice { line: usize },
}

/// Fewest characters of a token.
const SHORTEST: usize = 16;

impl ApiTokens {
    /// Reads tokens from text: one in each line, `TOKEN` or `NAME TOKEN`. Empty lines and those behind `#` do not count.
    pub fn parse(text: &str) -> Result<ApiTokens, BadTokens> {
        let mut found: Vec<ApiToken> = Vec::new();
        for (n, text) in text.lines().enumerate() {
            let line = n + 1;
            let words: Vec<&str> = text.split_whitespace().collect();
            let (name, secret) = match words.as_slice() {
                [] => continue,
                [first, ..] if first.starts_with('#') => continue,
                [secret] => (None, *secret),
                [name, secret] => (Some(*name), *secret),
                _ => return Err(BadTokens::Words { line, words: words.len() }),
            };
            if secret.len() < SHORTEST {
                return Err(BadTokens::Short { line });
            }
            let plain = |b: u8| b.is_ascii_alphanumeric() || b"._-".contains(&b);
            if let Some(name) = name.filter(|name| name.len() > 40 || !name.bytes().all(plain)) {
                return Err(BadTokens::Name { line, name: name.chars().take(60).collect() });
            }
            let name = name.map(str::to_owned);
            if found.iter().any(|had| had.secret == secret || had.name == name) {
                return Err(BadTokens::Twice { line });
            }
            found.push(ApiToken { name, secret: secret.to_owned() });
        }
        if found.is_empty() { Err(BadTokens::None) } else { Ok(ApiTokens(found.into())) }
    }

    /// Returns the token that equals `shown`; `None` if no token does. Compares in constant time, so that the time
    /// reveals no part of a token.
    pub fn find(&self, shown: &str) -> Option<&ApiToken> {
        let same = |token: &&ApiToken| bool::from(token.secret.as_bytes().ct_eq(shown.as_bytes()));
        // All are compared.
        self.0.iter().fold(None, |found, token| Some(token).filter(same).or(found))
    }

    /// Returns the only token's text; `None` where there are several.
    pub fn only(&self) -> Option<&str> {
        match &*self.0 {
            [token] => Some(&token.secret),
            _ => None,
        }
    }
}

/// One token without a name.
impl<T: Into<String>> From<T> for ApiTokens {
    fn from(secret: T) -> ApiTokens {
        ApiTokens([ApiToken { name: None, secret: secret.into() }].into())
    }
}

impl std::fmt::Debug for ApiTokens {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "ApiTokens({})", self.0.len())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_line_is_a_token_with_or_without_a_name() {
        let tokens = ApiTokens::parse(
            "# the house\nann  the-token-of-ann-24\n\nthe-token-of-nobody\nci the-token-of-ci-24\n",
        )
        .unwrap();
        let name = |shown: &str| tokens.find(shown).map(|token| token.name.clone());
        assert_eq!(name("the-token-of-ann-24"), Some(Some("ann".into())));
        assert_eq!(name("the-token-of-nobody"), Some(None));
        assert_eq!(name("the-token-of-ci-24"), Some(Some("ci".into())));
        assert_eq!(name("the-token-of-ci-2"), None);
        assert_eq!(name("ann"), None);
        assert_eq!((tokens.only(), ApiTokens::from("x").only()), (None, Some("x")));
    }

    #[test]
    fn what_is_no_list_of_tokens_is_refused_by_its_line() {
        let check = |text: &str, wanted: BadTokens| assert_eq!(ApiTokens::parse(text).err(), Some(wanted));
        check(" \n", BadTokens::None);
        check("short", BadTokens::Short { line: 1 });
        check("a b the-token-of-nobody", BadTokens::Words { line: 1, words: 3 });
        check("\na/b the-token-of-nobody", BadTokens::Name { line: 2, name: "a/b".into() });
        check("a the-token-of-nobody\nb the-token-of-nobody", BadTokens::Twice { line: 2 });
        check("a the-token-of-nobody\na the-token-of-someone", BadTokens::Twice { line: 2 });
        check("the-token-of-nobody\nthe-token-of-someone", BadTokens::Twice { line: 2 });
    }
}
