//! Posts of messages to a person's endpoints: signed webhooks, ntfy, Slack, Discord.
//!
//! No redirect is followed, no proxy variable is read, and addresses that no person means are refused: see `address`.

mod address;
mod sign;

use std::{collections::BTreeMap, time::Duration};

use bytes::Bytes;
use http::{HeaderName, HeaderValue, Method, Request, Uri};
use http_body_util::{BodyExt as _, Full, Limited};
use hyper_rustls::HttpsConnector;
use hyper_util::{
    client::legacy::{Client, connect::HttpConnector},
    rt::TokioExecutor,
};

pub use address::BadAddress;
use address::Resolver;
pub use sign::{BadSecret, Secret};

use crate::wire::network::Network;

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
    client: Client<HttpsConnector<HttpConnector<Resolver>>, Full<Bytes>>,
}

impl Poster {
    /// Creates a client that verifies endpoints by the authorities of `network`, and connects directly.
    pub fn new(network: &Network) -> Poster {
        let mut tcp = HttpConnector::new_with_resolver(Resolver::default());
        tcp.set_connect_timeout(Some(Duration::from_secs(10)));
        tcp.enforce_http(false);
        let https = hyper_rustls::HttpsConnectorBuilder::new().with_tls_config((*network.tls).clone());
        let connector = https.https_or_http().enable_http1().wrap_connector(tcp);
        // No connection is kept: a message is rare, and an endpoint may move.
        let client = Client::builder(TokioExecutor::new()).pool_max_idle_per_host(0).build(connector);
        Poster { client }
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
            let response = self.client.request(request).await.map_err(|e| {
                let mut why = e.to_string();
                let causes = std::iter::successors(std::error::Error::source(&e), |e| e.source());
                causes.for_each(|cause| why.push_str(&format!(": {cause}")));
                NotPosted::Unreachable(why)
            })?;
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
