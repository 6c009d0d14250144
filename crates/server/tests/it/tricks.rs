//! Tricks of agents and of pages: none gets a call past its run's budget and journal, nor a secret out.
//!
//! More of them stand beside what they are tricks of: forged and foreign tokens and other sites' pages in `access`, the
//! choice of an upstream in `named`, redirects in `faults`, keys in answers in `faithful`, ids of other runs' answers in
//! `responses`, targets that can be read in two ways in `bad_input`.

use outlast_core::{
    envelope::unit::{Limits, Unit},
    journal::State,
    run::Policy,
};
use outlast_mock as mock;
use outlast_server::door::{Access, Config};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::TcpStream,
};

use crate::{
    client::{ALL, Api, Ask, every},
    rig::{Rig, Server, limit, within},
};

fn percent(token: &str) -> String {
    token.bytes().map(|b| format!("%{b:02X}")).collect()
}

/// Nothing that went upstream has a token in it, however it is written.
fn no_token_left(rig: &Rig, token: &str) {
    for sent in rig.mock.requests() {
        let all = format!("{} {:?} {}", sent.target, sent.headers, String::from_utf8_lossy(&sent.body));
        let plain = all.to_ascii_lowercase();
        for written in [token.to_ascii_lowercase(), percent(token).to_ascii_lowercase()] {
            assert!(!plain.contains(&written), "{all}");
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn tokens_in_query_path_and_headers_together_have_to_agree_and_go_no_further() {
    for api in every() {
        let rig = Rig::in_memory(mock::Options::default()).await;
        let server = rig.serve().await;
        let mine = server.driven("mine", Limits::default(), Policy::default()).await;
        let other = server.driven("other", Limits::default(), Policy::default()).await;
        let says = |text: &str, target: String| api.says(text).without("x-outlast-run").target(&target);
        let (path, in_path) = (api.path(), format!("/run/{mine}{}", api.path()));
        for (n, ask) in [
            says("a", format!("{in_path}?key={mine}")).header("x-api-key", &mine),
            says("b", format!("{path}?key={mine}&key={mine}")).header("api-key", &mine),
            says("c", format!("{path}?k={}", percent(&mine))),
            says("d", format!("{in_path}?x=1&ol={}", percent(&mine)))
                .header("authorization", &format!("Bearer {mine}")),
        ]
        .iter()
        .enumerate()
        {
            ask.to(&server).await.ok();
            assert_eq!(server.entries("mine").len(), n + 1, "{ask:?}");
        }
        let before = rig.mock.requests().len();
        for ask in [
            says("e", format!("{in_path}?key={other}")),
            says("f", format!("{path}?key={mine}&key={other}")),
            says("g", format!("{path}?key={other}&token={mine}")),
            says("h", format!("{path}?key={mine}&k={}", percent(&other))),
            says("i", in_path.clone()).header("x-goog-api-key", &other),
            says("j", format!("{path}?key={mine}")).run("other"),
        ] {
            let refused = ask.to(&server).await;
            assert_eq!(
                (refused.status.as_u16(), refused.code()),
                (403, "credentials_disagree".into()),
                "{ask:?}"
            );
        }
        assert_eq!((rig.mock.requests().len(), server.entries("other").len()), (before, 0));
        no_token_left(&rig, &mine);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_token_is_nowhere_in_what_a_server_tells() {
    let rig = Rig::in_memory(mock::Options::default()).await;
    let server = rig.serve().await;
    let token = server.driven("r", Limits::default(), Policy::default()).await;
    let secret = &token[3..];
    for ask in [
        Api::Chat.says("x").token(&token).target(&format!("/run/{token}/v1/no/such/path")),
        Ask::new("GET", &format!("/v1/{token}")),
        Api::Chat.says("x").target(&format!("/u/{token}/v1/chat/completions")),
        Api::Chat.says("x").run(&token),
        Api::Chat.says("x").run("s").label(&token),
        Api::Chat.says("x").header("x-outlast-run", &format!("r {token}")),
        Api::Chat.says("x").token(&token).header("x-outlast-scope", &token),
        Api::Chat.says("x").token(&format!("{token}A")),
        Api::Chat.says("x").header("host", &format!("{token}.example")),
        Api::Chat.says("x").header("origin", &format!("http://{token}")),
        Api::Chat.says("x").header("x-outlast-retries", &token),
    ] {
        let refused = ask.to(&server).await;
        assert!(refused.status.is_client_error(), "{ask:?}");
        assert!(!refused.text().contains(secret), "{ask:?}: {}", refused.text());
    }
    assert_eq!(rig.mock.requests().len(), 0);
    // Nor is one in what the journal keeps of a call.
    Api::Chat.says("x").token(&token).header("idempotency-key", &format!("k-{token}")).to(&server).await.ok();
    assert!(!format!("{:?}", server.entries("r")).contains(secret));
}

/// Sends bytes as they are, and returns the first line of each answer. The last request, which nobody serves, ends the
/// connection: a client that hung up would not be waited for.
async fn raw(server: &Server, bytes: &str) -> Vec<String> {
    let mut stream = TcpStream::connect(server.addr).await.unwrap();
    let last = "GET /none HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n";
    stream.write_all(format!("{bytes}{last}").as_bytes()).await.unwrap();
    let mut all = Vec::new();
    within("all answers", stream.read_to_end(&mut all)).await.unwrap();
    let text = String::from_utf8_lossy(&all).into_owned();
    // An answer's body may end without a line end.
    let heads = text.split("HTTP/1.1 ").skip(1).filter_map(|rest| rest.lines().next());
    heads.map(|head| format!("HTTP/1.1 {head}")).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_request_that_hides_another_is_refused_or_both_are_counted() {
    let body = Api::Chat.body("x").to_string();
    let (n, line) =
        (body.len(), "POST /v1/chat/completions HTTP/1.1\r\nhost: localhost\r\nx-outlast-run: r\r\n");
    let hidden = format!("{line}content-length: {n}\r\n\r\n{body}");
    for (what, bytes) in [
        ("two lengths", format!("{line}content-length: {n}\r\ncontent-length: 0\r\n\r\n{body}{hidden}")),
        ("a list of lengths", format!("{line}content-length: {n}, 0\r\n\r\n{body}{hidden}")),
        ("a signed length", format!("{line}content-length: +{n}\r\n\r\n{body}{hidden}")),
        (
            "a length and chunks",
            format!("{line}content-length: {n}\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n{hidden}"),
        ),
        (
            "chunks that are none",
            format!("{line}transfer-encoding: xchunked\r\ncontent-length: {n}\r\n\r\n{body}{hidden}"),
        ),
        (
            "chunks twice",
            format!(
                "{line}transfer-encoding: chunked\r\ntransfer-encoding: identity\r\n\r\n0\r\n\r\n{hidden}"
            ),
        ),
        ("a chunk with a bad length", format!("{line}transfer-encoding: chunked\r\n\r\n-1\r\n\r\n{hidden}")),
        ("a space before the colon", format!("{line}content-length : {n}\r\n\r\n{body}{hidden}")),
        (
            "a folded header",
            format!("{line}x-a: 1\r\n content-length: 0\r\ncontent-length: {n}\r\n\r\n{body}{hidden}"),
        ),
        (
            "a line end in a value",
            format!("{line}x-a: 1\rx-outlast-run: s\r\ncontent-length: {n}\r\n\r\n{body}"),
        ),
        (
            "a header in the target",
            format!(
                "POST /v1/chat/completions\tHTTP/1.1 HTTP/1.1\r\nhost: localhost\r\ncontent-length: {n}\r\n\r\n{body}{hidden}"
            ),
        ),
        ("no length", format!("{line}\r\n{hidden}")),
    ] {
        let rig = Rig::in_memory(mock::Options::default()).await;
        let server = rig.serve().await;
        let answers = raw(&server, &bytes).await;
        let good = answers.iter().filter(|l| l.contains(" 200 ")).count();
        // Every call that was sent is in the journal, whatever the request looked like.
        let is_there =
            server.store.run_no(&outlast_core::words::id::RunId::new("r").unwrap()).unwrap().is_some();
        let entries = if is_there { server.entries("r") } else { Vec::new() };
        assert_eq!(rig.mock.requests().len(), entries.len(), "{what}: {answers:?}");
        assert_eq!(rig.mock.requests().len(), good, "{what}: {answers:?}");
        assert!(entries.iter().all(|e| e.state == State::Done), "{what}");
        for sent in rig.mock.requests() {
            assert_eq!(sent.headers.get_all("content-length").iter().count(), 1, "{what}");
            assert!(!sent.headers.contains_key("transfer-encoding"), "{what}");
            assert_eq!(sent.body, body.as_bytes(), "{what}");
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn headers_that_are_ours_to_set_cannot_be_smuggled_to_the_provider() {
    for api in ALL {
        let rig = Rig::in_memory(mock::Options::default()).await;
        let server = rig.serve().await;
        let (name, key) = api.credential();
        // Hop by hop is what `Connection` names, and not the key that we add.
        api.says("a").header("connection", name).header("te", "trailers").to(&server).await.ok();
        let sent = rig.mock.requests().pop().unwrap();
        assert_eq!(sent.headers[name], *key, "{api:?}");
        for hop in ["connection", "te", "x-outlast-run"] {
            assert!(!sent.headers.contains_key(hop), "{api:?} {hop}");
        }
        let odd =
            api.says("b").header("proxy-authorization", "Basic eDp5").header("x-forwarded-host", "evil");
        odd.header("x-outlast-anything", "1").header("cookie", "a=b").to(&server).await.ok();
        let sent = rig.mock.requests().pop().unwrap();
        for gone in ["proxy-authorization", "x-forwarded-host", "x-outlast-anything", "cookie"] {
            assert!(!sent.headers.contains_key(gone), "{api:?} {gone}");
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_name_made_to_resolve_here_gets_nothing_from_any_route() {
    let rig = Rig::in_memory(mock::Options::default()).await;
    let guarded = Access { api_token: Some("the-api-token-of-the-house".into()), ..Access::default() };
    for access in [rig.config().access, guarded] {
        let server = rig.serve_with(Config { access, ..rig.config() }).await;
        for (method, target) in [
            ("GET", "/metrics"),
            ("GET", "/v1/models"),
            ("GET", "/v1/state/keys?namespace=n"),
            ("PUT", "/v1/state/n/a/k"),
            ("POST", "/v1/chat/completions"),
            ("POST", "/u/house/v1/chat/completions"),
        ] {
            for (header, value, code) in [
                ("host", "rebound.example:7077", "foreign_host"),
                ("origin", "http://rebound.example", "foreign_origin"),
            ] {
                let ask = Ask::new(method, target)
                    .bytes("1")
                    .header("authorization", "Bearer the-api-token-of-the-house");
                let refused = ask.header(header, value).to(&server).await;
                assert_eq!(
                    (refused.status.as_u16(), refused.header("x-outlast-code")),
                    (403, Some(code)),
                    "{method} {target}"
                );
            }
        }
    }
    assert_eq!(rig.mock.requests().len(), 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_agent_cannot_raise_its_own_budget() {
    let rig = Rig::in_memory(mock::Options::default()).await;
    let setup = rig.serve().await;
    let token = setup.driven("r", limit(Unit::Calls, 1), Policy::default()).await;
    let access = Access { only_run: Some(setup.run_no("r")), ..rig.config().access };
    let server = rig.serve_with(Config { access, ..rig.config() }).await;
    Api::Chat.says("one").token(&token).to(&server).await.ok();
    let before = server.envelope("r").limits;
    // No route changes a limit, and no header does.
    for (method, target) in [
        ("POST", "/v1/runs/r/budget"),
        ("POST", "/v1/runs"),
        ("PATCH", "/v1/runs/r"),
        ("POST", "/v1/budget"),
        ("PUT", "/v1/state/run:r/outlast/limits"),
        ("PUT", "/v1/state/limits/r/calls"),
        ("POST", "/u/house/v1/budget"),
    ] {
        let body = r#"{"calls":1000000,"usd":1000000,"limits":{"calls":null}}"#;
        Ask::new(method, target).bytes(body).token(&token).to(&server).await;
    }
    let refused = |ask: Ask, code: &'static str| {
        let (ask, server) = (ask.token(&token), &server);
        async move {
            let answer = ask.to(server).await;
            assert_eq!(answer.code(), code, "{ask:?}");
        }
    };
    for (name, value) in [
        ("x-outlast-usd", "1000"),
        ("x-outlast-calls", "1000"),
        ("x-outlast-limits", "none"),
        ("x-outlast-budget", "none"),
        ("x-outlast-admission", "observe"),
        ("x-outlast-unpriced", "free"),
        ("x-riskkernel-budget", "1000"),
    ] {
        refused(Api::Chat.says("two").header(name, value), "call_budget_exceeded").await;
    }
    // Nor another name, run or life: the token says whose it is.
    let with_run = Api::Chat.says("two").token(&token).run("fresh");
    assert_eq!(with_run.to(&server).await.code(), "credentials_disagree");
    let label = Api::Chat
        .says("two")
        .header("x-outlast-attempt", "another")
        .header("x-api-key", &token)
        .without("x-outlast-run");
    assert_eq!(label.to(&server).await.code(), "call_budget_exceeded");
    assert_eq!(server.envelope("r").limits, before);
    assert_eq!(rig.mock.requests().len(), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn answers_of_another_run_or_credential_are_not_given() {
    for api in every() {
        let rig = Rig::in_memory(mock::Options::default()).await;
        let server = rig.serve().await;
        let ask = api.says("the same words");
        ask.clone().run("one").label("a").to(&server).await.ok();
        // The same request of another run, by its header or its token, or with another key.
        assert!(!ask.clone().run("two").label("a").to(&server).await.is_replayed(), "{api:?}");
        let token = server.driven("three", Limits::default(), Policy::default()).await;
        assert!(!ask.clone().token(&token).to(&server).await.is_replayed(), "{api:?}");
        let own = ask.clone().run("one").label("b").header("authorization", "Bearer sk-of-somebody");
        assert!(!own.to(&server).await.is_replayed(), "{api:?}");
        let other = ask.clone().run("one").label("c").header("authorization", "Bearer sk-of-somebody-else");
        assert!(!other.to(&server).await.is_replayed(), "{api:?}");
        // And its own is.
        assert!(ask.run("one").label("d").to(&server).await.is_replayed(), "{api:?}");
        assert_eq!(rig.mock.paid(), 5, "{api:?}");
    }
}
