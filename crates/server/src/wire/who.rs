//! Authentication: the run that a request belongs to, and the credential that goes upstream.
//!
//! A request names its run with a run token (as the API key or in the path), or with headers (with an API token, or on
//! an unprotected loopback listener). On loopback, requests that name none share one run per store and UTC day.

use std::{collections::BTreeMap, sync::Arc};

use base64::{Engine as _, engine::general_purpose::STANDARD};
use http::{HeaderMap, Uri};
use outlast_core::{
    run::token::{self, Claims, TokenKey},
    words::{RunId, Seq},
};

use super::{
    access::{Access, NotLetIn},
    credentials::{Credential, credentials, digest_of},
    origin, sessions,
    target::{split_path, split_query},
};

/// Caller of a request, as the request names it.
#[derive(Clone, Debug, PartialEq)]
pub struct Caller {
    pub who: Who,
    /// Path and query, without the `/run/TOKEN` prefix and without run tokens.
    pub target: String,
    pub credential: Credential,
    /// Open item or step inside which the request is made, by `X-Outlast-Scope`, only with a run token; `None`: none.
    pub within: Option<Seq>,
    /// Name of the API token that the request shows; `None` if it shows none, or one without a name.
    pub token: Option<Arc<str>>,
    /// Tags by `X-Outlast-Tags`. A run that the request begins gets them.
    pub tags: BTreeMap<String, String>,
}

/// Tag that names the API token by which a run was begun. No caller sets it.
pub const CALLER: &str = "caller";

/// Run that a request names, by its token or its headers.
#[derive(Clone, Debug, PartialEq)]
pub enum Who {
    Token(Claims),
    Named {
        run: RunId,
        label: Option<String>,
    },
    /// The request names no run, so it belongs to the shared run of the day.
    Nobody,
}

/// Headers in which Codex, Claude Code and opencode name their session.
const SESSIONS: [&str; 3] = ["session-id", "x-claude-code-session-id", "x-session-affinity"];

/// Returns the session that a CLI agent names in its headers; `None` if none is named, or if it is not a plain word.
pub fn session(headers: &HeaderMap) -> Option<String> {
    let of = |name| headers.get(name).and_then(|v| v.to_str().ok());
    let id = SESSIONS.into_iter().find_map(of)?;
    // The id becomes a word of a command line: it must not look like an option or a path.
    let plain = |b: u8| b.is_ascii_alphanumeric() || b"-_.:".contains(&b);
    let named = !id.is_empty() && id.len() <= 128 && !id.starts_with(['-', '.']) && id.bytes().all(plain);
    named.then(|| id.to_owned())
}

/// Reads the caller of a request from its target and headers, and checks its credentials against `access` and `keys`.
pub fn caller(
    access: &Access,
    keys: &[TokenKey],
    uri: &Uri,
    headers: &HeaderMap,
) -> Result<Caller, NotLetIn> {
    origin::check(access, headers)?;
    read(access, keys, None, uri, headers)
}

/// Reads the caller of a request in a connection that the run of `claims` opened. A run token in the request
/// has to name the same run.
pub fn in_tunnel(
    access: &Access,
    keys: &[TokenKey],
    claims: Claims,
    uri: &Uri,
    headers: &HeaderMap,
) -> Result<Caller, NotLetIn> {
    read(access, keys, Some(claims), uri, headers)
}

/// Reads the run token of a `CONNECT`: the password in `Proxy-Authorization: Basic`.
pub fn of_connect(keys: &[TokenKey], headers: &HeaderMap) -> Result<Claims, String> {
    let wanted = || "wanted its run token, as the password of HTTPS_PROXY".to_owned();
    let value = headers.get("proxy-authorization").and_then(|v| v.to_str().ok()).ok_or_else(wanted)?;
    let (scheme, encoded) = value.trim().split_once(' ').ok_or_else(wanted)?;
    if !scheme.eq_ignore_ascii_case("basic") {
        return Err(wanted());
    }
    let plain = STANDARD.decode(encoded.trim()).ok().and_then(|bytes| String::from_utf8(bytes).ok());
    let plain = plain.ok_or_else(wanted)?;
    let (_, token) = plain.split_once(':').ok_or_else(wanted)?;
    token::verify(token, keys).map_err(|e| e.to_string())
}

fn read(
    access: &Access,
    keys: &[TokenKey],
    connected: Option<Claims>,
    uri: &Uri,
    headers: &HeaderMap,
) -> Result<Caller, NotLetIn> {
    let target = uri.path_and_query().map_or("/", |p| p.as_str());
    let (path_token, target) = split_path(target);
    let (query_tokens, target) = split_query(&target);
    let credentials = credentials(headers)?;
    // A page calls no provider. Passed on as the caller's own key, its bearer would leave the machine.
    if credentials.iter().any(|c| c.1.starts_with(sessions::PREFIX)) {
        return Err(NotLetIn::NoToken);
    }

    let mut tokens: Vec<&str> = Vec::new();
    tokens.extend(path_token.as_deref());
    tokens.extend(query_tokens.iter().map(String::as_str));
    tokens.extend(credentials.iter().map(|c| &*c.1).filter(|v| token::looks_like_token(v)));
    let mut claims = connected;
    for t in tokens {
        let one = token::verify(t, keys).map_err(|e| NotLetIn::BadToken(e.to_string()))?;
        if claims.is_some_and(|c| c != one) {
            return Err(NotLetIn::Disagree);
        }
        claims = Some(one);
    }
    let api = access.api_token.as_ref();
    let is_api = |v: &str| api.is_some_and(|tokens| tokens.find(v).is_some());
    let has_api_token = credentials.iter().any(|c| is_api(&c.1));
    let token = credentials.iter().find_map(|c| api?.find(&c.1)?.name.as_deref()).map(Arc::from);
    let own = credentials.iter().find(|c| !token::looks_like_token(&c.1) && !is_api(&c.1));
    let credential = match own {
        Some((header, value)) => Credential::Passed { header, digest: digest_of(header, value) },
        None => Credential::Ours,
    };
    let named = run_header(headers)?;
    let who = match (claims, named) {
        (Some(_), Some(_)) => return Err(NotLetIn::Disagree),
        (Some(c), None) => Who::Token(c),
        (None, _) if access.only_run.is_some() => return Err(NotLetIn::RunTokenWanted),
        (None, _) if !has_api_token && (api.is_some() || !access.loopback) => return Err(NotLetIn::NoToken),
        (None, Some(named)) => named,
        (None, None) if access.loopback => Who::Nobody,
        (None, None) => return Err(NotLetIn::NoRun),
    };
    let within = scope_header(headers)?;
    if within.is_some() && !matches!(who, Who::Token(_)) {
        return Err(NotLetIn::ScopeWithoutToken);
    }
    let tags = tags(headers)?;
    Ok(Caller { who, target, credential, within, token, tags })
}

/// Returns whether a request has a run token in its path, query or headers, valid or not.
pub fn bears_token(uri: &Uri, headers: &HeaderMap) -> Result<bool, NotLetIn> {
    let (in_path, target) = split_path(uri.path_and_query().map_or("/", |p| p.as_str()));
    let (in_query, _) = split_query(&target);
    let in_header = credentials(headers)?.iter().any(|c| token::looks_like_token(&c.1));
    Ok(in_path.is_some() || !in_query.is_empty() || in_header)
}

fn scope_header(headers: &HeaderMap) -> Result<Option<Seq>, NotLetIn> {
    let mut all = headers.get_all("x-outlast-scope").iter();
    let Some(value) = all.next() else { return Ok(None) };
    let text = value.to_str().map_err(|_| NotLetIn::BadHeader("x-outlast-scope"))?;
    let seq = text.parse().ok().filter(|seq| *seq > 0 && all.next().is_none());
    seq.map(|seq| Some(Seq(seq))).ok_or_else(|| NotLetIn::BadScope { text: text.chars().take(80).collect() })
}

/// Reads the tags of a request. Errors: `bad_tags`.
fn tags(headers: &HeaderMap) -> Result<BTreeMap<String, String>, NotLetIn> {
    let mut tags = BTreeMap::new();
    for value in headers.get_all("x-outlast-tags") {
        let text = value.to_str().map_err(|_| NotLetIn::BadHeader("x-outlast-tags"))?;
        let bad = || NotLetIn::BadTags { text: token::mask(text).chars().take(80).collect() };
        for pair in text.split(',').map(str::trim).filter(|pair| !pair.is_empty()) {
            let (key, value) = pair.split_once('=').ok_or_else(bad)?;
            let (key, value) = (key.trim(), value.trim());
            let is_good = !key.is_empty() && key != CALLER && pair.len() <= 256 && token::mask(pair) == *pair;
            if !is_good || tags.len() == MOST_TAGS || tags.insert(key.to_owned(), value.to_owned()).is_some()
            {
                return Err(bad());
            }
        }
    }
    Ok(tags)
}

/// Most tags of a request.
const MOST_TAGS: usize = 16;

fn run_header(headers: &HeaderMap) -> Result<Option<Who>, NotLetIn> {
    let one = |name: &'static str| -> Result<Option<&str>, NotLetIn> {
        let mut all = headers.get_all(name).iter();
        let first = all.next().map(|v| v.to_str().map_err(|_| NotLetIn::BadHeader(name))).transpose()?;
        if all.next().is_some() { Err(NotLetIn::Disagree) } else { Ok(first) }
    };
    let (ours, alias) = (one("x-outlast-run")?, one("x-riskkernel-run-id")?);
    if let (Some(a), Some(b)) = (ours, alias)
        && a != b
    {
        return Err(NotLetIn::Disagree);
    }
    let Some(id) = ours.or(alias) else { return Ok(None) };
    // The name appears in the journal, in the log and in answers, where no token may.
    if token::looks_like_token(id) {
        return Err(NotLetIn::BadRunId("a run token is no run's name: send it as the API key".into()));
    }
    let run = RunId::new(id).map_err(|e| NotLetIn::BadRunId(e.to_string()))?;
    let label = one("x-outlast-attempt")?.filter(|l| !l.is_empty()).map(str::to_owned);
    if label.as_ref().is_some_and(|l| token::mask(l) != *l) {
        return Err(NotLetIn::BadHeader("x-outlast-attempt holds a run token"));
    }
    if label.as_ref().is_some_and(|l| l.len() > 128) {
        return Err(NotLetIn::BadHeader("x-outlast-attempt is longer than 128 bytes"));
    }
    Ok(Some(Who::Named { run, label }))
}

#[cfg(test)]
mod tests {
    use outlast_core::words::{AttemptNo, Fence, RunNo, Slot};

    use super::*;
    use crate::wire::tokens::ApiTokens;

    fn key() -> TokenKey {
        TokenKey { id: 1, secret: [9; 32] }
    }

    fn claims(run: i64) -> Claims {
        Claims { run: RunNo(run), attempt: AttemptNo(1), slot: Slot(0), fence: Some(Fence(1)) }
    }

    fn ask(access: &Access, target: &str, headers: &[(&str, &str)]) -> Result<Caller, NotLetIn> {
        let mut map = HeaderMap::new();
        map.append("host", "127.0.0.1:7077".parse().unwrap());
        for (n, v) in headers {
            let name: http::HeaderName = n.parse().unwrap();
            if name == "host" {
                map.remove("host");
            }
            map.append(name, v.parse().unwrap());
        }
        caller(access, &[key()], &target.parse().unwrap(), &map)
    }

    fn open() -> Access {
        Access { loopback: true, ..Access::default() }
    }

    #[test]
    fn a_session_is_a_plain_word_in_one_of_the_agents_headers() {
        for (name, value, wanted) in [
            ("session-id", "01a1-b", Some("01a1-b")),
            ("x-claude-code-session-id", "a", Some("a")),
            ("x-session-affinity", "ses_df7ace023ffe", Some("ses_df7ace023ffe")),
            ("x-session-affinity", "--help", None),
            ("session-id", "../x", None),
            ("session-id", "a b", None),
            ("x-session", "a", None),
        ] {
            let headers =
                HeaderMap::from_iter([(name.parse::<http::HeaderName>().unwrap(), value.parse().unwrap())]);
            assert_eq!(session(&headers).as_deref(), wanted, "{name}: {value}");
        }
    }

    fn basic(text: &str) -> String {
        format!("basic {}", STANDARD.encode(text))
    }

    #[test]
    fn a_token_is_found_wherever_clients_put_their_key_and_goes_nowhere() {
        let t = token::mint(&key(), &claims(1));
        let bearer = format!("Bearer {t}");
        // curl's `-u :TOKEN`, and its `-u TOKEN:`.
        let (password, user) = (basic(&format!(":{t}")), basic(&format!("{t}:")));
        for (target, headers) in [
            ("/v1/x".to_owned(), vec![("authorization", password.as_str())]),
            ("/v1/x".to_owned(), vec![("authorization", user.as_str())]),
            ("/v1/x".to_owned(), vec![("authorization", bearer.as_str())]),
            ("/v1/x".to_owned(), vec![("x-api-key", t.as_str())]),
            ("/v1/x".to_owned(), vec![("api-key", t.as_str())]),
            ("/v1/x".to_owned(), vec![("x-goog-api-key", t.as_str())]),
            (format!("/v1/x?key={t}"), vec![]),
            (format!("/run/{t}/v1/x"), vec![]),
        ] {
            let c = ask(&open(), &target, &headers).expect(&target);
            assert_eq!(
                c,
                Caller {
                    who: Who::Token(claims(1)),
                    target: "/v1/x".into(),
                    credential: Credential::Ours,
                    within: None,
                    token: None,
                    tags: BTreeMap::new()
                }
            );
        }
    }

    #[test]
    fn credentials_that_disagree_are_refused() {
        let (a, b) = (token::mint(&key(), &claims(1)), token::mint(&key(), &claims(2)));
        let cases: [(String, Vec<(&str, &str)>); 3] = [
            (format!("/run/{a}/v1/x"), vec![("x-api-key", &b)]),
            ("/v1/x".into(), vec![("x-api-key", &a), ("x-outlast-run", "r")]),
            ("/v1/x".into(), vec![("x-outlast-run", "r"), ("x-riskkernel-run-id", "s")]),
        ];
        for (target, headers) in cases {
            assert_eq!(ask(&open(), &target, &headers), Err(NotLetIn::Disagree), "{target}");
        }
    }

    #[test]
    fn a_forged_or_missing_token_is_refused() {
        let only = Access { only_run: Some(RunNo(1)), ..open() };
        assert_eq!(ask(&only, "/v1/x", &[("x-api-key", "sk-x")]), Err(NotLetIn::RunTokenWanted));
        let forged = token::mint(&TokenKey { id: 1, secret: [8; 32] }, &claims(1));
        assert!(matches!(ask(&open(), "/v1/x", &[("x-api-key", &forged)]), Err(NotLetIn::BadToken(_))));
        let guarded = Access { api_token: Some("secret".into()), ..open() };
        assert_eq!(ask(&guarded, "/v1/x", &[("x-outlast-run", "r")]), Err(NotLetIn::NoToken));
        let ok =
            ask(&guarded, "/v1/x", &[("x-outlast-run", "r"), ("authorization", "Bearer secret")]).unwrap();
        assert_eq!(ok.credential, Credential::Ours);
        let far = Access { loopback: false, ..Access::default() };
        assert_eq!(ask(&far, "/v1/x", &[("x-outlast-run", "r")]), Err(NotLetIn::NoToken));
    }

    #[test]
    fn a_scope_is_taken_with_a_run_token_only() {
        let t = token::mint(&key(), &claims(1));
        let with = |scope: &str| ask(&open(), "/v1/x", &[("x-api-key", &t), ("x-outlast-scope", scope)]);
        assert_eq!(with("7").unwrap().within, Some(Seq(7)));
        for bad in ["", "0", "-1", "a", "1,2", "99999999999999999999"] {
            assert!(matches!(with(bad), Err(NotLetIn::BadScope { .. })), "{bad}");
        }
        for headers in
            [vec![("x-outlast-scope", "7")], vec![("x-outlast-scope", "7"), ("x-outlast-run", "r")]]
        {
            let refused = ask(&open(), "/v1/x", &headers).unwrap_err();
            assert_eq!((refused.class().http(), refused.code()), (403, "scope_without_token"));
        }
    }

    #[test]
    fn tags_are_pairs_and_none_of_them_is_the_callers_name() {
        let tags = |text: &str| ask(&open(), "/v1/x", &[("x-outlast-run", "r"), ("x-outlast-tags", text)]);
        let of = |pairs: &[(&str, &str)]| {
            pairs
                .iter()
                .map(|(key, value)| ((*key).to_owned(), (*value).to_owned()))
                .collect::<BTreeMap<_, _>>()
        };
        for (text, wanted) in [
            ("", of(&[])),
            ("team=search", of(&[("team", "search")])),
            ("team=search, env=a=b,", of(&[("team", "search"), ("env", "a=b")])),
        ] {
            assert_eq!(tags(text).unwrap().tags, wanted, "{text}");
        }
        let many: Vec<String> = (0..17).map(|n| format!("k{n}=v")).collect();
        for text in ["team", "=x", "caller=ann", "a=1,a=2", &"a".repeat(300), &many.join(",")] {
            let refused = tags(text).unwrap_err();
            assert_eq!((refused.class().http(), refused.code()), (400, "bad_tags"), "{text}");
        }
    }

    #[test]
    fn a_caller_is_known_by_the_name_of_its_api_token() {
        let tokens = ApiTokens::parse("ann the-token-of-ann-24\nthe-token-of-nobody").unwrap();
        let guarded = Access { api_token: Some(tokens), ..open() };
        for (token, name) in [("the-token-of-ann-24", Some("ann")), ("the-token-of-nobody", None)] {
            let shown = ask(&guarded, "/v1/x", &[("x-outlast-run", "r"), ("x-api-key", token)]).unwrap();
            assert_eq!(shown.token.as_deref(), name);
        }
    }

    #[test]
    fn the_callers_own_key_is_passed_through_and_tells_its_answers_apart() {
        let with =
            |k: &str| ask(&open(), "/v1/x", &[("x-outlast-run", "r"), ("x-api-key", k)]).unwrap().credential;
        assert!(matches!(with("sk-1"), Credential::Passed { header: "x-api-key", .. }));
        assert_ne!(with("sk-1"), with("sk-2"));
    }

    #[test]
    fn another_sites_page_is_not_taken_for_this_machine() {
        for headers in [
            vec![("host", "evil.example:7077")],
            vec![("origin", "https://evil.example")],
            vec![("host", "127.0.0.1.evil.example")],
            vec![("origin", "null")],
        ] {
            assert_eq!(
                ask(&open(), "/v1/x", &headers).map_err(|e| e.class().http()),
                Err(403),
                "{headers:?}"
            );
        }
        for host in ["localhost", "localhost:1", "127.0.0.1:7077", "[::1]:7077", "LOCALHOST:80"] {
            assert!(ask(&open(), "/v1/x", &[("host", host)]).is_ok(), "{host}");
        }
    }
}
