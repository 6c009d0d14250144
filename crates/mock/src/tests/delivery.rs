//! Tests of delivery: answers late, cut off, garbled or absent, and always paid before they begin.

use super::*;

#[tokio::test]
async fn a_truncated_answer_is_paid_begins_well_and_breaks_off() {
    let provided = provide(Options::default()).await;
    for path in [CHAT, MESSAGES] {
        for stream in [false, true] {
            let request = with(says("mock: truncate"), json!({"stream": stream}));
            let mut response = provided.post(path, &request).await;
            assert_eq!(response.status(), StatusCode::OK);
            let first = response.body_mut().frame().await.unwrap().unwrap().into_data().unwrap();
            assert!(first.starts_with(if stream { b"" } else { b"{" }) && !first.is_empty());
            let rest = response.into_body().collect().await;
            assert!(rest.is_err(), "{path} ended cleanly");
        }
    }
    assert_eq!(provided.handle.paid(), 4);
}

#[tokio::test]
async fn garbage_is_a_paid_200_that_is_not_json() {
    let provided = provide(Options::default()).await;
    let answer = provided.ask(MESSAGES, &says("mock: garbage")).await;
    assert_eq!(answer.status, StatusCode::OK);
    assert!(serde_json::from_slice::<Value>(&answer.body).is_err());
    assert_eq!(provided.handle.paid(), 1);
}

#[tokio::test]
async fn a_hanging_answer_begins_and_a_silent_one_does_not() {
    let provided = provide(Options::default()).await;
    let mut response = provided.post(CHAT, &with(says("mock: hang"), json!({"stream": true}))).await;
    let mut seen = Vec::new();
    // The frames before the hang are half of the stream's six.
    while seen.windows(2).filter(|pair| pair == b"\n\n").count() < 3 {
        seen.extend(response.body_mut().frame().await.unwrap().unwrap().into_data().unwrap());
    }
    let briefly = Duration::from_millis(20);
    assert!(tokio::time::timeout(briefly, response.body_mut().frame()).await.is_err());
    assert_eq!(provided.handle.paid(), 1);

    let silent = says("mock: silent");
    assert!(tokio::time::timeout(briefly, provided.post(CHAT, &silent)).await.is_err());
    assert_eq!(provided.handle.paid(), 1);
}

#[tokio::test]
async fn a_paid_request_is_on_the_log_before_its_first_byte() {
    let dir = tempfile::tempdir().unwrap();
    let log = dir.path().join("paid.jsonl");
    let hour = Duration::from_secs(3600);
    let provided = provide(Options { latency: hour, log: Some(log.clone()), ..Options::default() }).await;
    let request = with(says("hello"), json!({"stream": true}));
    let line = {
        let answer = std::pin::pin!(provided.post(MESSAGES, &request));
        let logged = std::pin::pin!(async {
            loop {
                let text = std::fs::read_to_string(&log).unwrap();
                if !text.is_empty() {
                    return text;
                }
                tokio::task::yield_now().await;
            }
        });
        tokio::select! {
            _ = answer => panic!("answered at once"),
            line = logged => line,
        }
    };
    let line: Value = serde_json::from_str(line.strip_suffix('\n').unwrap()).unwrap();
    let known = ["n", "dialect", "model", "stream", "occurrence", "credential", "bytes", "output_tokens"];
    let known = known.map(|name| line[name].clone());
    let bytes = request.to_string().len();
    assert_eq!(json!(known), json!([1, "anthropic", "m", true, 1, "sk-sec", bytes, 3]));
    assert_eq!(line["input_tokens"], bytes.div_ceil(4));
    assert_eq!(line["digest"].as_str().unwrap().len(), 64);
    assert!(line["at_ms"].as_u64().unwrap() > 1_700_000_000_000);

    // A later provider goes on in the same file.
    let provided = provide(Options { log: Some(log.clone()), ..Options::default() }).await;
    assert_eq!(provided.ask(CHAT, &says("hello")).await.status, StatusCode::OK);
    assert_eq!(provided.ask(CHAT, &says("mock: status 500")).await.status, 500);
    assert_eq!(std::fs::read_to_string(&log).unwrap().lines().count(), 2);
}

#[tokio::test]
async fn latency_is_the_time_to_the_first_byte() {
    let provided = provide(Options { latency: Duration::from_secs(3600), ..Options::default() }).await;
    let begun = Instant::now();
    assert_eq!(provided.ask(CHAT, &says("mock: latency 30ms")).await.status, StatusCode::OK);
    assert!(begun.elapsed() >= Duration::from_millis(30));
}

#[tokio::test]
async fn a_lingering_answer_is_whole_and_its_end_comes_late() {
    let provided = provide(Options::default()).await;
    let begun = Instant::now();
    let body = with(says("mock: linger 30ms\nmock: reply all of it"), json!({"stream": true}));
    let answer = provided.ask(CHAT, &body).await;
    assert!(answer.text().contains("[DONE]"), "{}", answer.text());
    assert!(begun.elapsed() >= Duration::from_millis(30));
}

#[tokio::test]
async fn it_ends_at_its_shutdown_though_clients_still_wait() {
    let listener = TcpListener::bind(("127.0.0.1", 0)).await.unwrap();
    let addr = listener.local_addr().unwrap();
    let (stop, stopped) = tokio::sync::oneshot::channel::<()>();
    let server = tokio::spawn(serve(listener, Options::default(), stopped));
    let client: Client<HttpConnector, Full<Bytes>> = Client::builder(TokioExecutor::new()).build_http();
    let body = with(says("mock: hang"), json!({"stream": true})).to_string();
    let request = Request::post(format!("http://{addr}{CHAT}")).header("authorization", "Bearer k");
    let response = client.request(request.body(Full::from(body)).unwrap()).await.unwrap();
    stop.send(()).unwrap();
    assert!(server.await.unwrap().is_ok());
    assert!(response.into_body().collect().await.is_err());
}

#[tokio::test]
async fn a_log_that_cannot_be_opened_is_an_error_that_names_it() {
    let dir = tempfile::tempdir().unwrap();
    let log = dir.path().join("missing").join("paid.jsonl");
    let error = start(Options { log: Some(log.clone()), ..Options::default() }).await.unwrap_err();
    assert!(error.to_string().contains(log.to_str().unwrap()), "{error}");
}
