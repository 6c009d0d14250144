//! Test harness: a provider of its own for each test, and a client that speaks to it.

mod answers;
mod delivery;
mod requests;

use std::{io::Write, time::Instant};

use bytes::Bytes;
use http::{HeaderMap, Request, Response, StatusCode};
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper_util::{
    client::legacy::{Client, connect::HttpConnector},
    rt::TokioExecutor,
};
use serde_json::{Value, json};

use super::*;

const CHAT: &str = "/v1/chat/completions";
const RESPONSES: &str = "/v1/responses";
const MESSAGES: &str = "/v1/messages";

struct Provided {
    handle: Handle,
    client: Client<HttpConnector, Full<Bytes>>,
}

struct Answered {
    status: StatusCode,
    headers: HeaderMap,
    body: Bytes,
}

async fn provide(options: Options) -> Provided {
    let client = Client::builder(TokioExecutor::new()).build_http();
    Provided { handle: start(options).await.unwrap(), client }
}

impl Provided {
    async fn send(
        &self,
        method: &str,
        path: &str,
        headers: &[(&str, &str)],
        body: Vec<u8>,
    ) -> Response<Incoming> {
        let mut request = Request::builder().method(method).uri(self.handle.base_url() + path);
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        self.client.request(request.body(Full::from(body)).unwrap()).await.unwrap()
    }

    /// Sends a body as its dialect's client does.
    async fn post(&self, path: &str, body: &Value) -> Response<Incoming> {
        let key =
            if path == CHAT { ("authorization", "Bearer sk-secret") } else { ("x-api-key", "sk-secret") };
        self.send("POST", path, &[key, ("anthropic-version", "2023-06-01")], body.to_string().into()).await
    }

    async fn ask(&self, path: &str, body: &Value) -> Answered {
        Answered::read(self.post(path, body).await).await
    }
}

impl Answered {
    async fn read(response: Response<Incoming>) -> Self {
        let (head, body) = response.into_parts();
        Self { status: head.status, headers: head.headers, body: body.collect().await.unwrap().to_bytes() }
    }

    fn text(&self) -> &str {
        std::str::from_utf8(&self.body).unwrap()
    }

    fn json(&self) -> Value {
        serde_json::from_slice(&self.body).unwrap()
    }

    /// Returns the `data` of a stream's frames, `[DONE]` left out.
    fn events(&self) -> Vec<Value> {
        let data = self.text().lines().filter_map(|line| line.strip_prefix("data: "));
        data.filter(|data| *data != "[DONE]").map(|data| serde_json::from_str(data).unwrap()).collect()
    }
}

fn says(text: &str) -> Value {
    json!({"model": "m", "max_tokens": 5000, "messages": [{"role": "user", "content": text}]})
}

fn with(mut body: Value, more: Value) -> Value {
    body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    body
}

/// Returns the text of a whole answer.
fn said(path: &str, answer: &Value) -> String {
    let text = match path {
        CHAT => &answer["choices"][0]["message"]["content"],
        _ => &answer["content"][0]["text"],
    };
    text.as_str().unwrap().into()
}
