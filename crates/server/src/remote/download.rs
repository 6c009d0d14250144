//! Downloads of text that a person names by its URL.

use std::time::Duration;

use http::{HeaderMap, Method};
use http_body_util::{BodyExt as _, Limited};

use crate::{
    notify::Target,
    proxy::upstream::{IDLE, Pool},
    wire::network::Network,
};

/// Time in which the whole text has to come.
const WHOLE: Duration = Duration::from_secs(120);

/// Largest text, in bytes.
const MOST: usize = 32 << 20;

/// Downloads a text by `https://`, or by `http://` from this machine. Blocks; not for async code. No redirect is followed.
///
/// Errors: why there is no such text.
pub fn download(url: &str, network: &Network) -> Result<String, String> {
    Target::parse(url).map_err(|e| e.to_string())?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let whole = async {
        let sent =
            Pool::new(network, IDLE).send(Method::GET, url, HeaderMap::new(), Default::default()).await;
        let response = sent.map_err(|e| e.to_string())?;
        if !response.status().is_success() {
            return Err(format!("the server answered {}, and redirects are not followed", response.status()));
        }
        let body = Limited::new(response.into_body(), MOST).collect().await.map_err(|e| e.to_string())?;
        String::from_utf8(body.to_bytes().into()).map_err(|e| e.to_string())
    };
    runtime.map_err(|e| e.to_string())?.block_on(async {
        let late = |_| Err(format!("it did not come within {} s", WHOLE.as_secs()));
        tokio::time::timeout(WHOLE, whole).await.unwrap_or_else(late)
    })
}
