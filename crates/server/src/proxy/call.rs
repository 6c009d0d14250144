//! One metered request, read: its seat, digest, bound, and how it goes upstream.

use std::sync::Arc;

use bytes::Bytes;
use http::{HeaderMap, HeaderValue, Method};
use hyper::{Response, body::Incoming};
use outlast_core::{
    body::{Base, BodyRecord, diff},
    journal::payload::{Codec, Payload},
    price::Bound,
    run::{Record, masks::Rules, token},
    words::{
        digest::{Digest, MatchKey, RequestDigest},
        id::{AttemptNo, RunId, RunNo, Seq, Slot},
    },
};
use tokio::time::Instant;

use super::{
    host::Host,
    live::leaves_it_to_us,
    named::To,
    prices::Priced,
    rates::Wants,
    upstream::{self, Key, SendFailed},
};
use crate::{
    dialect::{Dialect, Request, canonical},
    wire::{
        encoding, headers,
        refuse::Refusal,
        who::{Caller, Credential, bare},
    },
};

/// For whom the request is made.
#[derive(Clone, Debug)]
pub struct Seat {
    pub run: RunNo,
    pub id: RunId,
    pub attempt: AttemptNo,
    pub slot: Slot,
    pub scope: Arc<str>,
    /// The open item or step it is made in.
    pub within: Option<Seq>,
    pub record: Record,
    /// What does not count in its run's requests.
    pub rules: Arc<Rules>,
    /// A header attempt: it has no driver, and counts active time only while a call is in flight.
    pub undriven: bool,
    /// The shared run of the day: nothing is replayed or joined.
    pub shared: bool,
}

/// A metered request.
pub struct Call {
    pub seat: Seat,
    pub dialect: &'static dyn Dialect,
    /// Where it goes.
    pub to: To,
    pub request: Request,
    pub digest: Digest,
    pub match_key: MatchKey,
    pub bound: Bound,
    pub priced: Priced,
    pub retry_count: u32,
    /// Its client does not try again itself: we do.
    pub tried_again: bool,
    pub idempotency_key: Option<String>,
    /// What is stored of it: against a base, when prompts are kept.
    pub record: Option<BodyRecord>,
    pub path: Arc<str>,
    pub arrived: Instant,
    target: String,
    headers: HeaderMap,
    credential: Credential,
    /// As it came.
    raw: Bytes,
    /// Decoded.
    pub body: Bytes,
}

impl Call {
    /// Reads a request. Errors are refusals that cost nothing.
    pub fn read(
        host: &Host,
        seat: Seat,
        caller: Caller,
        dialect: &'static dyn Dialect,
        to: To,
        headers: HeaderMap,
        raw: Bytes,
    ) -> Result<Call, Refusal> {
        let encoding = headers::text(&headers, "content-encoding");
        let body = encoding::decode(&raw, encoding, host.config.max_body)?;
        let request = dialect.parse(&caller.target, &body)?;
        let canonical = canonical(&body, &seat.rules)?;
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
            body: &canonical,
        }
        .digest();
        let credential_digest = match &caller.credential {
            Credential::Ours => None,
            Credential::Passed { digest, .. } => Some(*digest),
        };
        let match_key = if seat.shared {
            // Nobody's requests are all different: there is no attempt a replay could belong to.
            let nonce = format!("{}#{}", seat.scope, host.nonce());
            MatchKey::new(&digest, &nonce, credential_digest.as_ref())
        } else {
            MatchKey::new(&digest, &seat.scope, credential_digest.as_ref())
        };
        let priced = Priced::of(&host.config.prices, &host.config.price_hash, &to, &request);
        let (record, grown) = stored(host, &seat, &to, &request, &body);
        // A conversation that grows by a message costs a message. Server tools repeat their input, so
        // for them the bytes alone count.
        let input = match grown.filter(|_| request.turns <= 1) {
            Some(tokens) => tokens.min(request.input_bound),
            None => request.input_bound,
        };
        let bound = priced.bound(&request, input);
        let retry_count =
            headers::text(&headers, "x-stainless-retry-count").and_then(|v| v.parse().ok()).unwrap_or(0);
        let idempotency_key =
            headers::text(&headers, "idempotency-key").map(|k| token::mask(k).chars().take(200).collect());
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
            tried_again: leaves_it_to_us(&headers)?,
            idempotency_key,
            record,
            target: caller.target,
            headers,
            credential: caller.credential,
            raw,
            body,
        })
    }

    /// What it wants of its upstream's minute.
    pub fn wants(&self, host: &Host) -> Wants {
        let key = match &self.credential {
            Credential::Ours => None,
            Credential::Passed { digest, .. } => Some(*digest),
        };
        Wants {
            upstream: self.upstream_name().to_owned(),
            account: (key, self.request.model.clone()),
            rate: self.to.rate(host.config.upstream_rate),
            bound: self.bound.full().1,
            input_bound: self.bound.input_tokens,
            patience: host.config.admit_wait,
        }
    }

    pub fn upstream_name(&self) -> &str {
        self.to.name()
    }

    /// The request body as it is stored.
    pub fn payload(&self) -> Option<Payload> {
        let bytes = Bytes::from(self.record.as_ref()?.to_bytes());
        // Its middle is compressed already.
        Some(Payload {
            codec: Codec::Raw,
            key_id: 0,
            len: bytes.len() as u64,
            sha256: Digest::of(&bytes).0,
            part: 0,
            bytes,
        })
    }

    /// Sends it upstream, with its output cap lowered to `cap`.
    pub fn send(
        &self,
        host: &Host,
        cap: Option<u64>,
    ) -> impl Future<Output = Result<Response<Incoming>, SendFailed>> + use<> {
        let want_usage = self.request.stream && self.to.asks_usage();
        let edited = self.dialect.edit(&self.body, &self.request, cap, want_usage);
        let (body, is_edited) = match edited {
            std::borrow::Cow::Borrowed(_) => (self.raw.clone(), false),
            std::borrow::Cow::Owned(bytes) => (Bytes::from(bytes), true),
        };
        let mut headers = headers::upstream(&self.headers, is_edited);
        let key = self.authorize(host, &mut headers);
        let url = self.to.url(&host.config.providers, &self.target);
        let pool = host.pool.clone();
        async move {
            key.map_err(SendFailed::Unsendable)?;
            pool.send(Method::POST, &url, headers, body).await
        }
    }

    fn authorize(&self, host: &Host, headers: &mut HeaderMap) -> Result<(), String> {
        credential(host, &self.to, &self.credential, &self.headers, headers)
    }

    /// An upstream's own words about a call, as the journal keeps them: without the key it was sent,
    /// ours or the caller's.
    pub fn mask_secrets(&self, host: &Host, text: &str) -> String {
        let mut masked = text.to_owned();
        if let Some(key) = &self.to.provider(&host.config.providers).key {
            masked = key.masked_text(&masked);
        }
        for name in headers::CREDENTIALS {
            for value in self.headers.get_all(name).iter().filter_map(|v| v.to_str().ok()) {
                masked = Key::new(bare(value).to_owned()).masked_text(&masked);
            }
        }
        masked
    }

    /// As a base for the requests after it. Only after its record is committed.
    pub fn base(&self, seq: outlast_core::words::id::Seq) -> Option<Base> {
        Some(Base::new(seq, self.record.as_ref()?, self.body.clone()))
    }
}

/// Puts a credential into `out`: ours, or the caller's own in the header it came in.
pub fn credential(
    host: &Host,
    to: &To,
    credential: &Credential,
    came: &HeaderMap,
    out: &mut HeaderMap,
) -> Result<(), String> {
    match credential {
        Credential::Ours => match &to.provider(&host.config.providers).key {
            Some(key) => upstream::authorize(out, to, key).map_err(|e| e.to_string()),
            None if to.lacks_key(&host.config.providers) => {
                Err(format!("no key for {} is known here", to.name()))
            }
            None => Ok(()),
        },
        Credential::Passed { .. } => {
            for name in headers::CREDENTIALS {
                for value in came.get_all(name) {
                    let ours = value.to_str().is_ok_and(|v| {
                        let bare = bare(v);
                        outlast_core::run::token::looks_like_token(bare)
                            || host.config.access.api_token.as_deref() == Some(bare)
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

/// Where a base is cut, the tokens across the cut fall apart.
const CUT_TOKENS: u64 = 32;

/// The record of a body against the run's bases, and the input bound that the base gives: its billed
/// input, the bytes that are new, and what few bytes can stand for.
fn stored(
    host: &Host,
    seat: &Seat,
    to: &To,
    request: &Request,
    body: &Bytes,
) -> (Option<BodyRecord>, Option<u64>) {
    if seat.record != Record::All {
        return (None, None);
    }
    let memory = host.memory(seat.run);
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
