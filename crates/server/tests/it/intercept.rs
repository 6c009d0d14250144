//! Connections of a run's programs through `CONNECT`: what is opened, what is metered, and what passes.

use std::sync::{Arc, Mutex};

use base64::{Engine as _, engine::general_purpose::STANDARD};
use outlast_core::{
    envelope::unit::{Limits, Unit},
    run::Policy,
    words::clock::Clock as _,
};
use outlast_mock as mock;
use outlast_server::{
    dialect::Upstream,
    door::{Access, Config, Network, Seen, later},
    intercept::{Intercept, Ways},
};
use rustls::{
    ClientConfig, RootCertStore, ServerConfig,
    pki_types::{CertificateDer, PrivateKeyDer, PrivatePkcs8KeyDer, ServerName, pem::PemObject as _},
};
use tokio::{
    io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _},
    net::{TcpListener, TcpStream},
};
use tokio_rustls::{TlsAcceptor, TlsConnector, client::TlsStream};

use crate::{
    client::Api,
    rig::{OPENAI_KEY, Rig, Server, within},
};

/// A provider's own host, as the proxy before this machine leads to it: keeps what it was asked, and answers it.
struct Behind {
    network: Network,
    asked: Arc<Mutex<Vec<String>>>,
}

fn trusting(authority: &CertificateDer<'static>) -> ClientConfig {
    let mut roots = RootCertStore::empty();
    roots.add(authority.clone()).unwrap();
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions().unwrap();
    config.with_root_certificates(roots).with_no_client_auth()
}

async fn head<S: AsyncRead + Unpin>(stream: &mut S) -> Option<String> {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        head.push(stream.read_u8().await.ok()?);
    }
    Some(String::from_utf8(head).unwrap())
}

impl Behind {
    /// A proxy that leads every `CONNECT` to one TLS server, which has a certificate for the provider's host.
    async fn new() -> Behind {
        let key = rcgen::generate_simple_self_signed(vec!["api.openai.com".into()]).unwrap();
        let authority = key.cert.der().clone();
        let private = PrivateKeyDer::Pkcs8(PrivatePkcs8KeyDer::from(key.signing_key.serialize_der()));
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let server = ServerConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_no_client_auth()
            .with_single_cert(vec![authority.clone()], private)
            .unwrap();
        let acceptor = TlsAcceptor::from(Arc::new(server));
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let ways = Ways::through(&format!("http://{}", listener.local_addr().unwrap()), "").unwrap();
        let asked: Arc<Mutex<Vec<String>>> = Arc::default();
        let keeps = asked.clone();
        tokio::spawn(async move {
            while let Ok((mut stream, _)) = listener.accept().await {
                let (acceptor, keeps) = (acceptor.clone(), keeps.clone());
                tokio::spawn(async move {
                    let connect = head(&mut stream).await.unwrap();
                    keeps.lock().unwrap().push(connect);
                    stream.write_all(b"HTTP/1.1 200 OK\r\n\r\n").await.unwrap();
                    let mut tls = acceptor.accept(stream).await.unwrap();
                    while let Some(request) = head(&mut tls).await {
                        keeps.lock().unwrap().push(request);
                        let answer = "HTTP/1.1 200 OK\r\nX-Theirs: Yes\r\nSet-Cookie: a=b\r\nContent-Length: 4\r\n\r\nhere";
                        tls.write_all(answer.as_bytes()).await.unwrap();
                    }
                });
            }
        });
        Behind { network: Network { ways, tls: later(move || Arc::new(trusting(&authority))) }, asked }
    }
}

/// The same trust, without a proxy before this machine.
fn straight(network: Network) -> Network {
    Network { ways: Ways::default(), ..network }
}

/// A server that intercepts, one driven run on it, and what its programs trust.
struct World {
    rig: Rig,
    server: Server,
    intercept: Arc<Intercept>,
    token: String,
}

impl World {
    async fn new() -> World {
        let behind = Behind::new().await;
        World::with(straight(behind.network), Limits::default()).await
    }

    async fn with(network: Network, limits: Limits) -> World {
        let rig = Rig::new(mock::Options::default()).await;
        let intercept =
            Arc::new(Intercept::new(&rig.config().providers, network.clone(), rig.clock.now()).unwrap());
        let server = rig.serve_intercepting(network, intercept.clone()).await;
        let token = server.driven("r", limits, Policy::default()).await;
        World { rig, server, intercept, token }
    }

    /// Certificates that a program of an attempt trusts.
    fn trust(&self) -> ClientConfig {
        let pem = self.intercept.renew(self.rig.clock.now()).unwrap();
        trusting(&CertificateDer::from_pem_slice(pem.as_bytes()).unwrap())
    }

    /// Asks for a tunnel. Returns the status, and the connection.
    async fn connect(&self, to: &str, credentials: Option<&str>) -> (u16, TcpStream) {
        let mut stream = TcpStream::connect(self.server.addr).await.unwrap();
        let mut ask = format!("CONNECT {to} HTTP/1.1\r\nHost: {to}\r\n");
        if let Some(token) = credentials {
            let basic = STANDARD.encode(format!("run:{token}"));
            ask.push_str(&format!("Proxy-Authorization: Basic {basic}\r\n"));
        }
        stream.write_all(format!("{ask}\r\n").as_bytes()).await.unwrap();
        let answer = within("the answer to CONNECT", head(&mut stream)).await.unwrap();
        (answer.split(' ').nth(1).unwrap().parse().unwrap(), stream)
    }

    async fn open(&self, host: &str) -> TlsStream<TcpStream> {
        let (status, stream) = self.connect(&format!("{host}:443"), Some(&self.token)).await;
        assert_eq!(status, 200);
        self.tls(host, stream).await.unwrap()
    }

    async fn tls(&self, host: &str, stream: TcpStream) -> std::io::Result<TlsStream<TcpStream>> {
        let name = ServerName::try_from(host.to_owned()).unwrap();
        within("a handshake", TlsConnector::from(Arc::new(self.trust())).connect(name, stream)).await
    }

    /// Sends one request in a connection to `host`, and reads the whole answer.
    async fn ask(&self, host: &str, line: &str, headers: &[&str], body: &str) -> String {
        let mut tls = self.open(host).await;
        send(&mut tls, host, line, headers, body).await
    }

    /// Asks for an answer to `text` at the provider's own address, with a key of the program's own.
    async fn says(&self, api: Api, text: &str) -> String {
        let host = host_of(api);
        let (name, value) = api.credential();
        let (key, kind) = (format!("{name}: {value}-own"), "content-type: application/json");
        let version = "anthropic-version: 2023-06-01";
        let line = format!("POST {} HTTP/1.1", api.path());
        self.ask(host, &line, &[&key, kind, version], &api.body(text).to_string()).await
    }
}

fn host_of(api: Api) -> &'static str {
    match api {
        Api::Messages => "api.anthropic.com",
        Api::Gemini => "generativelanguage.googleapis.com",
        _ => "api.openai.com",
    }
}

async fn send<S: AsyncRead + AsyncWrite + Unpin>(
    stream: &mut S,
    host: &str,
    line: &str,
    headers: &[&str],
    body: &str,
) -> String {
    let mut text = format!("{line}\r\nHost: {host}\r\n");
    for header in headers {
        text.push_str(&format!("{header}\r\n"));
    }
    text.push_str(&format!("Connection: close\r\nContent-Length: {}\r\n\r\n{body}", body.len()));
    stream.write_all(text.as_bytes()).await.unwrap();
    let mut answer = Vec::new();
    let _ = within(line, stream.read_to_end(&mut answer)).await;
    String::from_utf8(answer).unwrap()
}

fn body_of(answer: &str) -> &str {
    answer.split_once("\r\n\r\n").unwrap().1
}

#[tokio::test]
async fn a_call_to_a_providers_own_address_is_metered_and_sent_as_it_came() {
    let world = World::new().await;
    for (n, api) in [Api::Chat, Api::Responses, Api::Messages, Api::Gemini].into_iter().enumerate() {
        let answer = world.says(api, "hello").await;
        assert!(answer.starts_with("HTTP/1.1 200"), "{api:?}: {answer}");
        assert_eq!(world.server.at_rest("r").await.spent[Unit::Calls], n as i64 + 1, "{api:?}");
        let received = world.rig.mock.requests();
        let last = received.last().unwrap();
        assert_eq!(last.body, api.body("hello").to_string().as_bytes(), "{api:?}");
        let (name, value) = api.credential();
        assert_eq!(last.headers[name].to_str().unwrap(), format!("{value}-own"), "the program's own key");
    }
    let spent = world.server.envelope("r").spent;
    assert!(spent[Unit::CostNanoUsd] > 0 && spent[Unit::Tokens] > 0, "{spent:?}");
}

#[tokio::test]
async fn a_token_in_a_keys_place_is_replaced_by_the_key() {
    let world = World::new().await;
    let key = format!("authorization: Bearer {}", world.token);
    let body = Api::Chat.body("hello").to_string();
    let answer = world.ask("api.openai.com", "POST /v1/chat/completions HTTP/1.1", &[&key], &body).await;
    assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
    let received = world.rig.mock.requests();
    assert_eq!(received[0].headers["authorization"].to_str().unwrap(), format!("Bearer {OPENAI_KEY}"));
    // Somebody else's token beside the one of the connection.
    let other = world.server.driven("other", Limits::default(), Policy::default()).await;
    let key = format!("authorization: Bearer {other}");
    let answer = world.ask("api.openai.com", "POST /v1/chat/completions HTTP/1.1", &[&key], &body).await;
    assert!(answer.starts_with("HTTP/1.1 403") && answer.contains("credentials_disagree"), "{answer}");
    assert_eq!(world.rig.mock.paid(), 1);
}

#[tokio::test]
async fn an_answer_that_was_paid_is_given_again_in_the_next_life() {
    let mut world = World::new().await;
    let first = world.says(Api::Messages, "hello").await;
    let World { rig, server, intercept, .. } = world;
    server.kill().await;
    let server = rig.serve_intercepting(rig.config().network, intercept.clone()).await;
    server.sweep().await;
    let token = server.claim("r").await;
    world = World { rig, server, intercept, token };
    let again = world.says(Api::Messages, "hello").await;
    assert_eq!(body_of(&again), body_of(&first));
    assert_eq!((world.rig.mock.paid(), world.server.entries("r").len()), (1, 1));
}

#[tokio::test]
async fn a_budget_holds_in_a_tunnel() {
    let network = straight(Behind::new().await.network);
    let world = World::with(network, crate::rig::limit(Unit::Calls, 1)).await;
    assert!(world.says(Api::Chat, "one").await.starts_with("HTTP/1.1 200"));
    let refused = world.says(Api::Chat, "two").await;
    assert!(refused.starts_with("HTTP/1.1 402") && refused.contains("call_budget_exceeded"), "{refused}");
    assert_eq!(world.rig.mock.paid(), 1);
}

#[tokio::test]
async fn a_tunnel_is_for_programs_of_the_run_alone() {
    let world = World::new().await;
    let other = world.server.driven("other", Limits::default(), Policy::default()).await;
    let access = Access { loopback: true, only_run: Some(world.server.run_no("r")), ..Access::default() };
    world.server.proxy.reconfigure(Config { access, ..world.rig.config() });
    let forged = format!("{}A", &world.token[..world.token.len() - 1]);
    for to in ["api.openai.com:443", "127.0.0.1:9"] {
        for (credentials, wanted) in
            [(None, 407), (Some("x"), 407), (Some(forged.as_str()), 407), (Some(other.as_str()), 403)]
        {
            let (status, _) = world.connect(to, credentials).await;
            assert_eq!(status, wanted, "{to} {credentials:?}");
        }
    }
    let (status, _) = world.connect("api.openai.com", Some(&world.token)).await;
    assert_eq!(status, 400, "without a port");
}

#[tokio::test]
async fn another_host_is_carried_byte_for_byte() {
    let world = World::new().await;
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let to = listener.local_addr().unwrap().to_string();
    let serving = tokio::spawn(async move {
        let (mut stream, _) = listener.accept().await.unwrap();
        // The server may speak first.
        stream.write_all(b"220 hello\r\n").await.unwrap();
        let mut said = Vec::new();
        stream.read_to_end(&mut said).await.unwrap();
        stream.write_all(b"bye").await.unwrap();
        said
    });
    let (status, mut stream) = world.connect(&to, Some(&world.token)).await;
    assert_eq!(status, 200);
    let mut hello = [0; 11];
    stream.read_exact(&mut hello).await.unwrap();
    assert_eq!(&hello, b"220 hello\r\n");
    let bytes: Vec<u8> = (0..100_000_u32).map(|n| (n % 251) as u8).collect();
    stream.write_all(&bytes).await.unwrap();
    stream.shutdown().await.unwrap();
    let mut bye = Vec::new();
    within("the end", stream.read_to_end(&mut bye)).await.unwrap();
    assert_eq!((serving.await.unwrap(), bye), (bytes, b"bye".to_vec()));
    // Nobody is there any more.
    let (status, _) = world.connect(&to, Some(&world.token)).await;
    assert_eq!(status, 502);
}

#[tokio::test]
async fn what_is_no_call_goes_on_to_the_host_as_it_came() {
    let Behind { network, asked } = Behind::new().await;
    let world = World::with(network, Limits::default()).await;
    let line = "POST /v1/traces/ingest?next=%2F HTTP/1.1";
    let answer = world
        .ask("api.openai.com", line, &["X-Custom-Case: A", "X-Outlast-Agent: a", "Cookie: s=1"], "")
        .await;
    assert!(answer.starts_with("HTTP/1.1 200") && answer.ends_with("\r\n\r\nhere"), "{answer}");
    assert!(answer.contains("X-Theirs: Yes") && answer.contains("Set-Cookie: a=b"), "{answer}");
    {
        let asked = asked.lock().unwrap();
        assert!(asked[0].starts_with("CONNECT api.openai.com:443 "), "{asked:?}");
        let wanted = "POST /v1/traces/ingest?next=%2F HTTP/1.1\r\nHost: api.openai.com\r\nX-Custom-Case: A\r\n\
                      Cookie: s=1\r\nConnection: close\r\nContent-Length: 0\r\n\r\n";
        assert_eq!(asked[1], wanted);
    }
    assert!(world.server.entries("r").is_empty() && world.rig.mock.requests().is_empty());
    // One connection serves several requests, and its host's is kept open, too.
    let mut tls = world.open("api.openai.com").await;
    for n in 0..3 {
        let request = format!("GET /api/{n} HTTP/1.1\r\nHost: api.openai.com\r\n\r\n");
        tls.write_all(request.as_bytes()).await.unwrap();
        let answer = within("an answer", head(&mut tls)).await.unwrap();
        assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
        let mut here = [0; 4];
        tls.read_exact(&mut here).await.unwrap();
    }
    let connects = asked.lock().unwrap().iter().filter(|head| head.starts_with("CONNECT")).count();
    assert_eq!(connects, 2);
}

/// A socket is no call that could be read: it asked a model at an address that nobody had listed.
#[tokio::test]
async fn no_websocket_is_carried_on_an_opened_host() {
    let Behind { network, asked } = Behind::new().await;
    let world = World::with(network, Limits::default()).await;
    let upgrade = ["Upgrade: websocket", "Sec-WebSocket-Key: x", "Sec-WebSocket-Version: 13"];
    for target in ["/v1/responses", "/v1/realtime?model=gpt-realtime", "/ws"] {
        let answer = world.ask("api.openai.com", &format!("GET {target} HTTP/1.1"), &upgrade, "").await;
        assert!(answer.starts_with("HTTP/1.1 426"), "{target}: {answer}");
    }
    assert!(asked.lock().unwrap().is_empty());
}

#[tokio::test]
async fn what_may_cost_money_never_passes_unread() {
    let Behind { network, asked } = Behind::new().await;
    let world = World::with(network, Limits::default()).await;
    let token = format!("x-api-key: {}", world.token);
    for (host, line, header, status, code) in [
        ("api.openai.com", "POST /v1/images/generations", "a: b", 403, "not_metered"),
        ("api.openai.com", "PUT /v1/chat/completions", "a: b", 403, "unknown_path"),
        ("api.openai.com", "POST /v1/chat/completions/", "a: b", 403, "unknown_path"),
        ("api.openai.com", "POST /V1/Responses", "a: b", 403, "unknown_path"),
        ("api.openai.com", "POST /v1//responses", "a: b", 400, "bad_target"),
        ("api.openai.com", "POST /v1/chat/c%6Fmpletions", "a: b", 400, "bad_target"),
        ("api.openai.com", "POST /v1/responses;a=b", "a: b", 400, "bad_target"),
        ("chatgpt.com", "POST /backend-api//codex/responses", "a: b", 400, "bad_target"),
        ("chatgpt.com", "POST /Backend-API/codex/responses", "a: b", 403, "unknown_path"),
        ("chatgpt.com", "POST /backend-api/conversation", "a: b", 403, "unknown_path"),
        ("eu.api.openai.com", "POST /v2/responses", "a: b", 403, "unknown_path"),
        ("generativelanguage.googleapis.com", "POST /batch", "a: b", 403, "unknown_path"),
        ("generativelanguage.googleapis.com", "POST /v1alpha/models/m:predict", "a: b", 403, "not_metered"),
        ("api.anthropic.com", "POST /v1/experimental/generate_prompt", "a: b", 403, "unknown_path"),
        ("api.anthropic.com", "GET /api/hello", "x-http-method-override: POST", 403, "unknown_path"),
        ("api.openai.com", "POST /v1/messages", "a: b", 403, "not_metered"),
        ("api.anthropic.com", "POST /v1/chat/completions", "a: b", 403, "not_metered"),
        ("chatgpt.com", "POST /backend-api/codex/responses/compact", "a: b", 403, "not_metered"),
        ("api.anthropic.com", "POST /api/hello", token.as_str(), 403, "unknown_path"),
        ("api.openai.com", "POST https://api.openai.com/v1/responses", "a: b", 400, "absolute_target"),
    ] {
        let answer = world.ask(host, &format!("{line} HTTP/1.1"), &[header], "{}").await;
        assert!(answer.starts_with(&format!("HTTP/1.1 {status} ")), "{host} {line}: {answer}");
        assert!(answer.contains(&format!("x-outlast-code: {code}\r\n")), "{host} {line}: {answer}");
    }
    // Another host's name in a connection to this one.
    let mut tls = world.open("api.openai.com").await;
    let answer = send(&mut tls, "api.anthropic.com", "POST /v1/messages HTTP/1.1", &[], "{}").await;
    assert!(answer.starts_with("HTTP/1.1 421") && answer.contains("other_host"), "{answer}");
    let (status, stream) = world.connect("api.openai.com:443", Some(&world.token)).await;
    assert_eq!(status, 200);
    assert!(world.tls("chatgpt.com", stream).await.is_err(), "the name of another opened host");
    assert_eq!((asked.lock().unwrap().len(), world.rig.mock.requests().len()), (0, 0));
}

#[tokio::test]
async fn calls_go_through_the_proxy_before_this_machine_too() {
    let Behind { network, asked } = Behind::new().await;
    let rig = Rig::in_memory(mock::Options::default()).await;
    let mut config = rig.config();
    config.providers.of_mut(Upstream::OpenAi).base = "https://api.openai.com".into();
    let intercept = Arc::new(Intercept::new(&config.providers, network.clone(), rig.clock.now()).unwrap());
    let server = rig.serve_intercepting(network, intercept.clone()).await;
    server.proxy.reconfigure(config);
    let token = server.driven("r", Limits::default(), Policy::default()).await;
    let world = World { rig, server, intercept, token };
    world.says(Api::Chat, "hello").await;
    let asked = asked.lock().unwrap();
    assert!(asked[0].starts_with("CONNECT api.openai.com:443 "), "{asked:?}");
    assert!(asked[1].starts_with("POST /v1/chat/completions "), "{asked:?}");
}

#[tokio::test]
async fn a_program_that_does_not_trust_the_run_is_told_of() {
    let world = World::new().await;
    let stranger = Behind::new().await.network.tls;
    let (_, stream) = world.connect("api.openai.com:443", Some(&world.token)).await;
    let name = ServerName::try_from("api.openai.com").unwrap();
    assert!(TlsConnector::from(Arc::<ClientConfig>::clone(&stranger)).connect(name, stream).await.is_err());
    let told = |seen: &Seen| matches!(seen, Seen::Refused { code, message, .. } if code == "not_opened" && message.contains("api.openai.com"));
    crate::rig::until("it is told", || world.server.saw(told) == 1).await;
}

#[tokio::test]
async fn http_1_1_is_all_that_is_offered() {
    let world = World::new().await;
    let mut trust = world.trust();
    let name = ServerName::try_from("api.openai.com").unwrap();
    for (offer, good) in [(vec![b"h2".to_vec(), b"http/1.1".to_vec()], true), (vec![b"h2".to_vec()], false)] {
        trust.alpn_protocols = offer;
        let (_, stream) = world.connect("api.openai.com:443", Some(&world.token)).await;
        let done = TlsConnector::from(Arc::new(trust.clone())).connect(name.clone(), stream).await;
        assert_eq!(done.is_ok(), good);
        if let Ok(tls) = done {
            assert_eq!(tls.get_ref().1.alpn_protocol(), Some(b"http/1.1".as_slice()));
        }
    }
}

#[tokio::test]
async fn a_confined_run_reaches_the_host_that_it_names_in_its_handshake() {
    let Behind { network, asked } = Behind::new().await;
    let rig = Rig::in_memory(mock::Options::default()).await;
    let providers = rig.config().providers;
    let intercept = Intercept::new(&providers, network.clone(), rig.clock.now()).unwrap();
    let allowed = vec!["allowed.test".parse().unwrap()];
    let intercept = Arc::new(intercept.only(Some(allowed)));
    let server = rig.serve_intercepting(network.clone(), intercept.clone()).await;
    let token = server.driven("r", Limits::default(), Policy::default()).await;
    let world = World { rig, server, intercept, token };
    let (status, _) = world.connect("other.test:443", Some(&world.token)).await;
    assert_eq!(status, 403);
    // The certificate behind is for another name: that the handshake gets there is what counts.
    for (named, arrives) in [("allowed.test", true), ("other.test", false)] {
        let (status, stream) = world.connect("allowed.test:443", Some(&world.token)).await;
        assert_eq!(status, 200);
        let name = ServerName::try_from(named).unwrap();
        let failed = TlsConnector::from(Arc::<ClientConfig>::clone(&network.tls))
            .connect(name, stream)
            .await
            .unwrap_err();
        assert_eq!(failed.to_string().contains("certificate"), arrives, "{named}: {failed}");
    }
    let (_, mut stream) = world.connect("allowed.test:443", Some(&world.token)).await;
    stream.write_all(b"SSH-2.0-x\r\n").await.unwrap();
    let mut rest = Vec::new();
    let _ = within("the end", stream.read_to_end(&mut rest)).await;
    assert!(rest.is_empty(), "what is no TLS names no host");
    assert_eq!(asked.lock().unwrap().len(), 3);
}
