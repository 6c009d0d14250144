//! Path segments and query parameters of a request, decoded and checked.

use std::borrow::Cow;

use outlast_core::{
    state::At,
    store::state::Moment,
    words::{Micros, calendar::parse_rfc3339},
};
use percent_encoding::percent_decode_str;

use crate::state::Error;

/// Query parameters of a request, each at most once.
pub struct Query(Vec<(String, String)>);

impl Query {
    /// Parses a query. Errors: a parameter that is there twice, or that is not `known`; text that is not UTF-8.
    /// `is_lenient`: parameters that are not known are dropped.
    pub fn parse(text: &str, known: &[&str], is_lenient: bool) -> Result<Query, Error> {
        let mut query = Query::words(text)?;
        let is_known = |(name, _): &(String, String)| known.contains(&name.as_str());
        if let (Some((name, _)), false) = (query.0.iter().find(|word| !is_known(word)), is_lenient) {
            let known = if known.is_empty() { "none".to_owned() } else { known.join(", ") };
            return Err(Error::BadRequest(format!("unknown parameter {name:?} (wanted some of: {known})")));
        }
        query.0.retain(is_known);
        Ok(query)
    }

    /// Makes a query of words that came in another way than in a URL.
    pub fn of(words: Vec<(String, String)>) -> Query {
        Query(words)
    }

    /// Returns the query with the names of a key, in their order in a path, as words of their own.
    pub fn with_key(&self, path: &[String]) -> Query {
        let names = ["namespace", "agent", "key"].map(str::to_owned).into_iter();
        Query(self.0.iter().cloned().chain(names.zip(path.iter().cloned())).collect())
    }

    fn words(text: &str) -> Result<Query, Error> {
        let mut words: Vec<(String, String)> = Vec::new();
        for pair in text.split('&').filter(|p| !p.is_empty()) {
            let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
            let plain = |t: &str| decode(&t.replace('+', " "));
            let (name, value) = (plain(name)?, plain(value)?);
            if words.iter().any(|(n, _)| *n == name) {
                return Err(Error::BadRequest(format!("the parameter {name:?} is there twice")));
            }
            words.push((name, value));
        }
        Ok(Query(words))
    }

    pub fn text(&self, name: &str) -> Option<&str> {
        self.0.iter().find(|(n, _)| n == name).map(|(_, v)| v.as_str())
    }

    pub fn or(&self, name: &str, default: &str) -> String {
        self.text(name).unwrap_or(default).to_owned()
    }

    pub fn wanted(&self, name: &str) -> Result<String, Error> {
        let missing = || Error::BadRequest(format!("the parameter {name:?} is wanted"));
        self.text(name).map(str::to_owned).ok_or_else(missing)
    }

    /// Returns a parameter as a whole number of at least 0; `None` if it is absent. Errors: any other text.
    pub fn number(&self, name: &str) -> Result<Option<i64>, Error> {
        let Some(text) = self.text(name) else { return Ok(None) };
        match text.parse::<i64>() {
            Ok(n) if n >= 0 => Ok(Some(n)),
            _ => Err(Error::BadRequest(format!("{name} is {text:?}, and a whole number is wanted"))),
        }
    }

    /// Returns the parameter `limit`, or `default` if it is absent. Errors: a number outside 1 to `most`.
    pub fn limit(&self, default: usize, most: usize) -> Result<usize, Error> {
        let Some(n) = self.number("limit")? else { return Ok(default) };
        match usize::try_from(n) {
            Ok(n) if (1..=most).contains(&n) => Ok(n),
            _ => Err(Error::BadRequest(format!("limit is {n}, and 1 to {most} is wanted"))),
        }
    }

    pub fn flag(&self, name: &str) -> Result<bool, Error> {
        match self.text(name) {
            None | Some("false") => Ok(false),
            Some("true" | "") => Ok(true),
            Some(other) => {
                Err(Error::BadRequest(format!("{name} is {other:?}, and true or false is wanted")))
            }
        }
    }

    /// Returns a parameter as a time, in RFC 3339; `None` if it is absent. Errors: any other text.
    pub fn time(&self, name: &str) -> Result<Option<Micros>, Error> {
        let Some(text) = self.text(name) else { return Ok(None) };
        parse_rfc3339(text).map(Some).ok_or_else(|| {
            Error::BadRequest(format!("{name} is {text:?}, and a time as in 2026-11-20T08:00:00Z is wanted"))
        })
    }

    /// Returns the moment that the request reads, from `commit` or `time`; without either the newest. Errors: both are given.
    pub fn at(&self) -> Result<At, Error> {
        match self.moment("commit", "time")? {
            None => Ok(At::Newest),
            Some(Moment::Commit(n)) => Ok(At::Commit(n)),
            Some(Moment::Time(t)) => Ok(At::Time(t)),
        }
    }

    pub fn moment(&self, commit: &str, time: &str) -> Result<Option<Moment>, Error> {
        match (self.number(commit)?, self.time(time)?) {
            (Some(_), Some(_)) => Err(Error::BadRequest(format!("{commit} and {time} exclude each other"))),
            (Some(n), None) => Ok(Some(Moment::Commit(n))),
            (None, t) => Ok(t.map(Moment::Time)),
        }
    }
}

/// Decodes percent-encoding. Errors: an incomplete escape, or bytes that are not UTF-8.
pub fn decode(text: &str) -> Result<String, Error> {
    // The library leaves an incomplete escape as it is.
    let is_escape = |behind: &str| behind.bytes().take(2).filter(u8::is_ascii_hexdigit).count() == 2;
    let decoded = percent_decode_str(text).decode_utf8();
    decoded.ok().filter(|_| text.split('%').skip(1).all(is_escape)).map(Cow::into_owned).ok_or_else(|| {
        let shown: String = text.chars().take(80).collect();
        Error::BadRequest(format!("{shown:?} is not percent-encoded UTF-8"))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn any_text_can_be_written_in_a_path() {
        let check = |text: &str, want: Option<&str>| assert_eq!(decode(text).ok().as_deref(), want, "{text}");
        check("a%2Fb%3A%00%e2%82%ac", Some("a/b:\0€"));
        check("", Some(""));
        check("a+b", Some("a+b"));
        check("%", None);
        check("%4", None);
        check("%zz", None);
        check("%ff", None);
    }

    #[test]
    fn a_query_is_read_whole_or_refused() {
        let known = ["version", "commit", "time"];
        let check = |text: &str, want: Option<At>| {
            assert_eq!(Query::parse(text, &known, false).and_then(|q| q.at()).ok(), want, "{text}");
        };
        check("", Some(At::Newest));
        check("commit=3", Some(At::Commit(3)));
        check("time=1970-01-01T00:00:00.000005Z", Some(At::Time(Micros(5))));
        check("time=5", None);
        check("commit=3&time=1970-01-01T00:00:00Z", None);
        check("commit=3&commit=3", None);
        check("comit=3", None);
        check("commit=-1", None);
        check("commit=", None);
        assert!(Query::parse("comit=3", &known, true).is_ok_and(|q| q.text("comit").is_none()));
    }
}
