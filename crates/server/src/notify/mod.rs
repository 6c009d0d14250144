//! Posts of messages to a person's endpoints: signed webhooks, ntfy, Slack, Discord.
//!
//! No redirect is followed, no proxy variable is read, and addresses that no person means are refused: see `address`.
//!
//! Signatures of webhooks, by Standard Webhooks: HMAC-SHA256 over id, time and body.

mod address;

use std::{collections::BTreeMap, time::Duration};

use address::Resolver;
use base64::{Engine as _, engine::general_purpose::STANDARD};
use bytes::Bytes;
use hmac::{Hmac, KeyInit as _, Mac as _};
use http::{HeaderName, HeaderValue, Method, Request, Uri};
use http_body_util::{BodyExt as _, Full, Limited};
use hyper_rustls::HttpsConnector;
use hyper_util::{
    client::legacy::{Client, connect::HttpConnector},
    rt::TokioExecutor,
};
use outlast_core::words::bad::with_causes;
use rustls::ClientConfig;
use sha2::Sha256;

use crate::wire::network::{Later, Network, later};

pub use address::BadAddress;

/// Time in which an endpoint has to answer a post.
const ANSWER: Duration = Duration::from_secs(15);

/// Number of bytes of an endpoint's answer that are read to explain a refusal.
const READ: usize = 4 << 10;

/// Address of an endpoint, which may be posted to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Target(Uri);

impl Target {
    /// Parses a URL. Errors: no `https://`, except to this machine; an address that is never posted to.
    pub fn parse(url: &str) -> Result<Target, BadAddress> {
        address::check(url).map(Target)
    }

    /// Returns the address as messages show it: without user, path and query, which may be secrets.
    pub fn shown(&self) -> String {
        let authority = self.0.authority().map_or("", |a| a.as_str());
        let host = authority.rsplit_once('@').map_or(authority, |(_, host)| host);
        format!("{}://{host}", self.0.scheme_str().unwrap_or("https"))
    }
}

/// Message to post. `id` and `at_s` go into the headers of a signed webhook.
#[derive(Clone, Debug)]
pub struct Post {
    /// Id of the message, the same in each try to deliver it.
    pub id: String,
    /// Time of this try, in seconds since the Unix epoch.
    pub at_s: i64,
    pub body: Bytes,
    pub content_type: &'static str,
    /// Further HTTP headers, by name. A value that no header can have is left out.
    pub headers: BTreeMap<&'static str, String>,
    pub secret: Option<Secret>,
}

/// Reason why a post did not arrive.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NotPosted {
    #[error("it cannot be reached: {0}")]
    Unreachable(String),
    #[error("it did not answer within {} s", ANSWER.as_secs())]
    NoAnswer,
    #[error("it answered {status}{}", colon(.told))]
    Refused { status: u16, told: String },
    #[error("it answered {status}, and redirects are not followed")]
    Redirect { status: u16 },
}

fn colon(text: &str) -> String {
    if text.is_empty() { String::new() } else { format!(": {text}") }
}

/// HTTP client that posts messages. Cheap to clone.
#[derive(Clone)]
pub struct Poster {
    /// Made with the first message, as the pool to the upstreams is with the first call.
    client: Later<HttpClient>,
}

type HttpClient = Client<HttpsConnector<HttpConnector<Resolver>>, Full<Bytes>>;

impl Poster {
    /// Creates a client that verifies endpoints by the authorities of `network`, and connects directly.
    pub fn new(network: &Network) -> Poster {
        let network = network.clone();
        Poster { client: later(move || Poster::client(&network)) }
    }

    fn client(network: &Network) -> HttpClient {
        let mut tcp = HttpConnector::new_with_resolver(Resolver::default());
        tcp.set_connect_timeout(Some(Duration::from_secs(10)));
        tcp.enforce_http(false);
        let https =
            hyper_rustls::HttpsConnectorBuilder::new().with_tls_config(ClientConfig::clone(&network.tls));
        let connector = https.https_or_http().enable_http1().wrap_connector(tcp);
        // No connection is kept: a message is rare, and an endpoint may move.
        Client::builder(TokioExecutor::new()).pool_max_idle_per_host(0).build(connector)
    }

    /// Posts a message, and waits for the endpoint's answer. Errors: any answer but a 2xx status, or none.
    pub async fn post(&self, to: &Target, post: Post) -> Result<(), NotPosted> {
        let mut request = Request::new(Full::new(post.body.clone()));
        *request.method_mut() = Method::POST;
        *request.uri_mut() = to.0.clone();
        let headers = request.headers_mut();
        headers.insert(http::header::CONTENT_TYPE, HeaderValue::from_static(post.content_type));
        headers.insert(http::header::USER_AGENT, HeaderValue::from_static("outlast"));
        for (name, value) in &post.headers {
            if let (Ok(name), Ok(value)) =
                (name.parse::<HeaderName>(), HeaderValue::from_bytes(value.as_bytes()))
            {
                headers.insert(name, value);
            }
        }
        if let Some(secret) = &post.secret {
            for (name, value) in secret.headers(&post.id, post.at_s, &post.body) {
                if let Ok(value) = HeaderValue::from_str(&value) {
                    headers.insert(name, value);
                }
            }
        }
        self.send(request).await
    }

    /// Requests an address by GET, only as a heartbeat for whoever watches it. Errors: as [`Poster::post`].
    pub async fn get(&self, to: &Target) -> Result<(), NotPosted> {
        let mut request = Request::new(Full::new(Bytes::new()));
        *request.uri_mut() = to.0.clone();
        self.send(request).await
    }

    async fn send(&self, request: Request<Full<Bytes>>) -> Result<(), NotPosted> {
        let answered = tokio::time::timeout(ANSWER, async {
            let response = self.client.request(request).await;
            let response = response.map_err(|e| NotPosted::Unreachable(with_causes(&e)))?;
            let status = response.status();
            if status.is_success() {
                return Ok(());
            }
            if status.is_redirection() {
                return Err(NotPosted::Redirect { status: status.as_u16() });
            }
            let body = Limited::new(response.into_body(), READ).collect().await;
            let body = body.map(|whole| whole.to_bytes()).unwrap_or_default();
            let told = String::from_utf8_lossy(&body).chars().filter(|c| !c.is_control()).take(200).collect();
            Err(NotPosted::Refused { status: status.as_u16(), told })
        });
        answered.await.unwrap_or(Err(NotPosted::NoAnswer))
    }
}

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
