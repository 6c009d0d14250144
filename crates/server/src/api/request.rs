//! A request on its way through a route of ours; its path segments and query parameters, decoded and checked.

use std::{borrow::Cow, sync::Arc};

use bytes::Bytes;
use http::{HeaderMap, HeaderValue, Response, StatusCode, header};
use outlast_core::{
    engine::{self, Actor, Asker},
    reads::runs::with_id,
    state::At,
    store::{self, RunView, Store, state::Moment},
    words::{Micros, Seq, calendar::parse_rfc3339},
};
use percent_encoding::percent_decode_str;
use serde::{Serialize, de::DeserializeOwned};

use super::{Api, gate::Caller};
use crate::{
    proxy::host::Host,
    state::{Error, Writer},
    wire::{
        body::{AnswerBody, JSON, unkept},
        shown::Shown,
    },
};

/// Answer of a route's handler. Each face has errors of its own.
pub(crate) type Answered<E = Error> = Result<Response<AnswerBody>, E>;

/// Request whose caller may use its route.
pub(crate) struct ApiRequest {
    pub api: Api,
    pub host: Arc<Host>,
    pub caller: Caller,
    /// Values of the path's `{…}` segments, decoded.
    pub path: Vec<String>,
    pub query: Query,
    pub headers: HeaderMap,
    /// Empty for a GET, whose body nobody reads.
    pub body: Bytes,
}

impl ApiRequest {
    /// Returns the first value in the path.
    pub fn name(&self) -> &str {
        self.path.first().map_or("", String::as_str)
    }

    /// Reads the run that the path names. Errors: `unknown_run`; `foreign_run` for the bearer of another run's token.
    pub async fn run(&self) -> Result<RunView, Error> {
        self.named(self.name()).await
    }

    /// Reads the run with this id. Errors: as for `run`.
    pub async fn named(&self, id: &str) -> Result<RunView, Error> {
        let wanted = id.to_owned();
        let found = self.read(move |store| with_id(store, &wanted)).await?;
        match (self.caller.only_run(), found) {
            (None, Some(view)) => Ok(view),
            (Some(own), Some(view)) if view.run.no == own => Ok(view),
            // Whether another run exists is not told either.
            (Some(_), _) => Err(Error::OwnRunOnly),
            (None, None) => {
                let id = id.chars().take(140).collect();
                Err(store::Error::from(engine::Error::UnknownRun { id }).into())
            }
        }
    }

    /// Returns the entry number that the path names. Errors: `unknown_entry` if it is no number.
    pub fn seq(&self, view: &RunView) -> Result<Seq, Error> {
        let text = self.path.get(1).map_or("", String::as_str);
        let seq = text.parse().ok().filter(|seq| *seq > 0).map(Seq);
        seq.ok_or_else(|| unknown_entry(view, text))
    }

    /// Runs `look` on a blocking thread: the reads of a store block.
    pub async fn read<T: Send + 'static>(
        &self,
        look: impl FnOnce(&dyn Store) -> Result<T, store::Error> + Send + 'static,
    ) -> Result<T, Error> {
        self.api.desk.read(look).await
    }

    /// Parses the body, a JSON object. An empty body counts as `{}`. Errors: `bad_request`.
    pub fn json<T: DeserializeOwned>(&self) -> Result<T, Error> {
        let body = self.body.trim_ascii();
        let body = if body.is_empty() { b"{}" } else { body };
        if !body.starts_with(b"{") {
            return Err(Error::BadRequest("the body has to be a JSON object".into()));
        }
        serde_json::from_slice(body)
            .map_err(|e| Error::BadRequest(format!("the body is not what is wanted here: {e}")))
    }

    /// Returns the name under which the caller's acts are recorded.
    pub fn actor(&self) -> String {
        match &self.caller {
            Caller::Api(shown) => shown.actor(&self.headers),
            // A run's own writes name the run, and are no acts.
            Caller::Run(_) => Shown::Nothing.actor(&self.headers),
        }
    }

    /// Returns in whose name the request writes.
    pub fn writer(&self) -> Writer {
        match self.caller {
            Caller::Api(_) => Writer::NoRun,
            Caller::Run(Asker::Attempt { actor, slot }) => Writer::Run(Some((actor, slot))),
            Caller::Run(Asker::Token(claims)) => {
                let instance = self.host.node.instance();
                Writer::Run(Some((Actor { run: claims.run, attempt: claims.attempt, instance }, claims.slot)))
            }
        }
    }
}

/// Returns the error of an entry that a run does not have.
pub(crate) fn unknown_entry(view: &RunView, entry: &str) -> Error {
    let entry = entry.chars().take(20).collect();
    Error::UnknownEntry { run: view.run.id.to_string(), entry, last: view.run.next_seq.0 - 1 }
}

/// Returns an answer in JSON.
pub(crate) fn json<E: From<Error>>(body: &impl Serialize) -> Answered<E> {
    let text = serde_json::to_vec(body).map_err(|e| Error::BadValue(e.to_string()))?;
    Ok(of_type(text, JSON))
}

/// Returns an answer in JSON that tells that something was made.
pub(crate) fn created<E: From<Error>>(body: &impl Serialize) -> Answered<E> {
    let mut response = json::<E>(body)?;
    *response.status_mut() = StatusCode::CREATED;
    Ok(response)
}

/// Returns an answer that no browser takes for a document of another type.
pub(crate) fn of_type(body: impl Into<Bytes>, content_type: &'static str) -> Response<AnswerBody> {
    let mut response = unkept(200, content_type, body);
    response.headers_mut().insert(header::X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    response
}

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
