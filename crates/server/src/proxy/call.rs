//! A metered request as it was read: its seat, digest and bound, and how it is sent upstream.

use std::sync::Arc;

use bytes::Bytes;
use http::{HeaderMap, HeaderValue};
use hyper::{Response, body::Incoming};
use outlast_core::{
    body::{Base, BodyRecord, Chain, diff},
    call::{busy_waiting::Streak, rates::Wants},
    journal::{Payload, payload::Codec, scope},
    price::Bound,
    run::{Record, token},
    words::{Digest, MatchKey, RequestDigest},
};
use tokio::time::Instant;

use super::{
    config::Config,
    named::{self, Providers, To},
    prices::Priced,
    remembered::Memories,
    seat::Seat,
    upstream::{Key, Pool, SendFailed},
};
use crate::{
    dialect::{self, Dialect, Request, canonical},
    wire::{
        credentials::{Credential, bare},
        encoding, headers,
        refuse::Refusal,
        who::Caller,
    },
};

/// Metered request, read and ready for admission.
pub struct Call {
    pub seat: Seat,
    pub dialect: &'static Dialect,
    /// Upstream to which the call goes.
    pub to: To,
    pub request: Request,
    pub digest: Digest,
    pub match_key: MatchKey,
    pub bound: Bound,
    pub priced: Priced,
    pub retry_count: u32,
    /// Whether Outlast retries the call, because the client does not do so itself.
    pub tried_again: bool,
    /// Longest time for which the call is held while its upstream has an outage, in milliseconds.
    pub hold_ms: u64,
    pub idempotency_key: Option<String>,
    /// Name of the API token that the request shows; `None` if it shows none, or one without a name.
    pub caller: Option<Arc<str>>,
    /// Time for which the client says that it waits for an answer, in milliseconds; `None` if it does not say.
    pub names_patience_ms: Option<u64>,
    /// Judgement of whether the call waits busily; `None` if it carries no tool's result, or was not judged.
    pub judged: Option<Judged>,
    /// Place of the stored request body in its chain of earlier bodies. `None` if the run records no prompts.
    pub chain: Option<Chain>,
    /// Request body as the journal stores it, as a difference to an earlier body of the run. It is taken when the call's
    /// driver begins, and let go once it is stored.
    pub payload: Option<Payload>,
    pub path: Arc<str>,
    pub arrived: Instant,
    target: String,
    headers: HeaderMap,
    credential: Credential,
    /// Request body as it came, possibly compressed.
    raw: Bytes,
    /// Request body, decoded (not compressed).
    pub body: Bytes,
}

/// Metered request as it arrived, and where it is to go.
#[derive(Clone)]
pub struct Arrived {
    pub caller: Caller,
    pub dialect: &'static Dialect,
    pub to: To,
    pub headers: HeaderMap,
    /// Body as it came, possibly compressed.
    pub raw: Bytes,
}

/// Parts of the proxy that are needed to read a request into a [`Call`].
pub struct Context<'a> {
    pub config: &'a Config,
    pub memories: &'a Memories,
    /// Function that returns a number which no other request of any process has.
    pub nonce: &'a (dyn Fn() -> u64 + Sync),
}

/// Judgement of a call.
#[derive(Clone, Debug)]
pub struct Judged {
    /// Digest that identifies the conversation of the call.
    pub conversation: Digest,
    /// Number of items that its request carries.
    pub items: usize,
    pub streak: Streak,
}

impl Judged {
    /// Returns the number of calls in a row that bring nothing new, this one included.
    pub fn waits(&self) -> u32 {
        self.streak.waits
    }
}

impl Call {
    /// Reads and checks a request. Errors: the refusal to answer; nothing was reserved or sent.
    pub fn read(context: &Context<'_>, seat: Seat, arrived: Arrived) -> Result<Call, Refusal> {
        let Context { config, memories, nonce } = context;
        let Arrived { caller, dialect, to, headers, raw } = arrived;
        let encoding = headers::text(&headers, "content-encoding");
        let body = encoding::decode(&raw, encoding, config.max_body)?;
        let mut request = (dialect.parse)(&caller.target, &body)?;
        if let Some(name) = dialect::deployment(&caller.target) {
            request.model = name.to_owned();
        }
        let (path, query) = match caller.target.split_once('?') {
            Some((path, query)) => (path, Some(query)),
            None => (caller.target.as_str(), None),
        };
        let joined = |name: &str| {
            let all: Vec<&str> = headers.get_all(name).iter().filter_map(|v| v.to_str().ok()).collect();
            (!all.is_empty()).then(|| all.join(","))
        };
        let (version, beta) = (joined("anthropic-version"), joined("anthropic-beta"));
        let digest = RequestDigest {
            upstream: to.name(),
            method: "POST",
            path,
            query,
            anthropic_version: version.as_deref(),
            anthropic_beta: beta.as_deref(),
            stream: request.stream,
            // Freed before anything else is made of the body, which may be large.
            body: &canonical(&body, &seat.rules)?,
        }
        .digest();
        let credential_digest = match &caller.credential {
            Credential::Ours => None,
            Credential::Passed { digest, .. } => Some(*digest),
        };
        let match_key = if seat.shared {
            // In the shared run every request is a new one: there is no attempt that a replay could belong to.
            let nonce = format!("{}#{}", seat.scope, nonce());
            MatchKey::new(&digest, &nonce, credential_digest.as_ref())
        } else {
            MatchKey::new(&digest, &seat.scope, credential_digest.as_ref())
        };
        let priced =
            Priced::of(&config.prices, &config.price_hash, &to, &config.providers, &request, seat.unpriced);
        let (record, grown) = stored(memories, &seat, &to, &request, &body);
        // A conversation that grows by one message is bounded by its billed input plus that message. Server tools
        // repeat their input in each turn, so for them only the bytes count.
        let input = match grown.filter(|_| request.turns <= 1) {
            Some(tokens) => tokens.min(request.input_bound),
            None => request.input_bound,
        };
        let bound = priced.bound(&request, input);
        let retry_count =
            headers::text(&headers, "x-stainless-retry-count").and_then(|v| v.parse().ok()).unwrap_or(0);
        let idempotency_key =
            headers::text(&headers, "idempotency-key").map(|k| token::mask(k).chars().take(200).collect());
        let tried_again = leaves_it_to_us(&headers)?;
        let names_patience_ms = dialect::patience_ms(|name| headers::text(&headers, name));
        let hold_ms = match config.outage_pause {
            Some(_) if !is_left_alone(&headers) => names_patience_ms
                .unwrap_or_else(|| u64::try_from(config.admit_wait.as_millis()).unwrap_or(u64::MAX)),
            _ => 0,
        };
        Ok(Call {
            path: Arc::from(path),
            arrived: Instant::now(),
            seat,
            dialect,
            to,
            request,
            digest,
            match_key,
            bound,
            priced,
            retry_count,
            tried_again,
            hold_ms,
            idempotency_key,
            caller: caller.token,
            names_patience_ms,
            judged: None,
            chain: record.as_ref().map(Chain::from),
            payload: record.as_ref().map(payload),
            target: caller.target,
            headers,
            credential: caller.credential,
            raw,
            body,
        })
    }

    /// Returns the call's share of its upstream's rate limits: requests and tokens per minute.
    pub fn wants(&self, config: &Config) -> Wants {
        let key = match &self.credential {
            Credential::Ours => None,
            Credential::Passed { digest, .. } => Some(*digest),
        };
        Wants {
            upstream: self.upstream_name().to_owned(),
            way: self.to.provider(&config.providers).way(self.is_own_key()),
            request: self.digest,
            is_of_item: scope::is_of_item(&self.seat.scope),
            account: (key, self.request.model.clone()),
            rate: self.to.rate(config.upstream_rate),
            bound: self.bound.full().1,
            input_bound: self.bound.input_tokens,
            patience_ms: u64::try_from(config.admit_wait.as_millis()).unwrap_or(u64::MAX),
        }
    }

    /// Returns whether the key that is sent upstream is Outlast's own, and not the caller's.
    pub fn is_own_key(&self) -> bool {
        matches!(self.credential, Credential::Ours)
    }

    pub fn credential(&self) -> &Credential {
        &self.credential
    }

    /// Returns the subscription account that the request names; `None` if it names none.
    pub fn account(&self) -> Option<String> {
        dialect::account(self.dialect.upstream, &self.headers, &self.body)
    }

    pub fn upstream_name(&self) -> &str {
        self.to.name()
    }

    /// Sends the call upstream. `cap`: tokens to which its output cap is lowered; `None`: the cap stays. `connected`: see
    /// [`Pool::call`].
    pub fn send<C: Fn()>(
        &self,
        config: &Config,
        pool: &Pool,
        cap: Option<u64>,
        connected: C,
    ) -> impl Future<Output = Result<Response<Incoming>, SendFailed>> + use<C> {
        let want_usage = self.request.stream && self.to.asks_usage();
        let edited = self.request.edit(&self.body, cap, want_usage);
        let (body, is_edited) = match edited {
            std::borrow::Cow::Borrowed(_) => (self.raw.clone(), false),
            std::borrow::Cow::Owned(bytes) => (Bytes::from(bytes), true),
        };
        let mut headers = headers::upstream(&self.headers, is_edited);
        let key = credential(config, &self.to, &self.credential, &self.headers, &mut headers);
        let url = self.to.url(&config.providers, &self.target);
        let pool = pool.clone();
        async move {
            key.map_err(SendFailed::Unsendable)?;
            pool.call(&url, headers, body, connected).await
        }
    }

    /// Returns an upstream's error text for the journal, with the configured key and the caller's replaced by `***`.
    pub fn mask_secrets(&self, providers: &Providers, text: &str) -> String {
        let mut masked = text.to_owned();
        if let Some(key) = &self.to.provider(providers).key {
            masked = key.masked_text(&masked);
        }
        for name in headers::CREDENTIALS {
            for value in self.headers.get_all(name).iter().filter_map(|v| v.to_str().ok()) {
                masked = Key::new(bare(value).into_owned()).masked_text(&masked);
            }
        }
        masked
    }

    /// Returns the body as a base, against which later requests are stored as differences. Valid only after the record
    /// of entry `seq` is committed. `None` if the run records no prompts.
    pub fn base(&self, seq: outlast_core::words::id::Seq) -> Option<Base> {
        Some(Base::new(seq, self.chain?, self.body.clone()))
    }
}

/// Puts a credential into the headers `out`: the configured key, or the caller's own in the header it came in. The
/// error says why the key cannot be sent.
pub fn credential(
    config: &Config,
    to: &To,
    credential: &Credential,
    came: &HeaderMap,
    out: &mut HeaderMap,
) -> Result<(), String> {
    match credential {
        Credential::Ours => match &to.provider(&config.providers).key {
            Some(key) => named::authorize(out, to, key).map_err(|e| e.to_string()),
            None if to.lacks_key(&config.providers) => Err(format!("no key for {} is known here", to.name())),
            None => Ok(()),
        },
        Credential::Passed { .. } => {
            for name in headers::CREDENTIALS {
                for value in came.get_all(name) {
                    let ours = value.to_str().is_ok_and(|v| {
                        let bare = bare(v);
                        outlast_core::run::token::looks_like_token(&bare)
                            || config
                                .access
                                .api_token
                                .as_ref()
                                .is_some_and(|tokens| tokens.find(&bare).is_some())
                    });
                    if !ours {
                        let mut value: HeaderValue = value.clone();
                        value.set_sensitive(true);
                        out.append(name, value);
                    }
                }
            }
            Ok(())
        }
    }
}

/// Returns a request body as the journal stores it.
fn payload(record: &BodyRecord) -> Payload {
    let bytes = Bytes::from(record.to_bytes());
    // The record's middle is compressed already.
    Payload {
        codec: Codec::Raw,
        key_id: 0,
        len: bytes.len() as u64,
        sha256: Digest::of(&bytes).0,
        part: 0,
        bytes,
    }
}

/// Tokens added to the bound for the cuts in a base, where text may split into other tokens than before.
const CUT_TOKENS: u64 = 32;

/// Returns the record of a body against the run's bases, and the input bound in tokens that the base gives: its billed
/// input, plus the new bytes, plus what a few bytes can stand for (`beyond_bytes`).
fn stored(
    memories: &Memories,
    seat: &Seat,
    to: &To,
    request: &Request,
    body: &Bytes,
) -> (Option<BodyRecord>, Option<u64>) {
    if seat.record != Record::All {
        return (None, None);
    }
    let memory = memories.of(seat.run);
    let memory = memory.lock();
    let record = diff(body, memory.bases.as_slice());
    let grown = record.base.and_then(|seq| memory.billed(seq, to.name(), &request.model)).map(|billed| {
        billed
            .saturating_add(record.middle.len)
            .saturating_add(request.beyond_bytes)
            .saturating_add(CUT_TOKENS)
    });
    (Some(record), grown)
}

/// Returns whether Outlast retries for this caller: `X-Outlast-Retries` says so, or the caller does not retry itself.
///
/// The official SDKs count their own retries in a header of each request, the first one included.
///
/// Errors: `bad_header` for any other value than on or off.
pub fn leaves_it_to_us(headers: &HeaderMap) -> Result<bool, Refusal> {
    match headers.get("x-outlast-retries").map(|v| v.to_str().unwrap_or("")) {
        None => Ok(!headers.contains_key("x-stainless-retry-count")),
        Some(text) if text.eq_ignore_ascii_case("on") => Ok(true),
        Some(text) if text.eq_ignore_ascii_case("off") => Ok(false),
        Some(text) => {
            let short: String = text.chars().take(40).collect();
            Err(Refusal::BadHeader { name: "X-Outlast-Retries", had: short, wanted: "on or off" })
        }
    }
}

/// Returns whether the caller asked to receive every error of its upstream, without retries by Outlast.
fn is_left_alone(headers: &HeaderMap) -> bool {
    headers.get("x-outlast-retries").is_some_and(|v| v.as_bytes().eq_ignore_ascii_case(b"off"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_client_that_tries_again_itself_is_left_alone() {
        for (headers, wanted) in [
            (vec![], Some(true)),
            (vec![("x-stainless-retry-count", "0")], Some(false)),
            (vec![("x-stainless-retry-count", "2")], Some(false)),
            (vec![("x-outlast-retries", "off")], Some(false)),
            (vec![("x-outlast-retries", "On"), ("x-stainless-retry-count", "0")], Some(true)),
            (vec![("x-outlast-retries", "3")], None),
        ] {
            let map: HeaderMap =
                headers.iter().map(|(n, v)| (n.parse().unwrap(), v.parse().unwrap())).collect();
            assert_eq!(leaves_it_to_us(&map).ok(), wanted, "{headers:?}");
        }
    }
}
