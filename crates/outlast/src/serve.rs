//! `outlast serve`: the proxy, and the state, for agents that are started elsewhere.

use std::{fs, net::SocketAddr, os::unix::fs::MetadataExt as _, path::Path, time::Duration};

use outlast_server::{
    grpc,
    proxy::{Access, Proxy},
    state::{StateDesk, Writer},
};
use tokio::{net::TcpListener, signal::unix, sync::oneshot};

use crate::{
    cli::ServeArgs, context::Context, error::CliError, exit_code, log, prices, proxy_setup, say::say,
};

/// How long calls in flight may go on after SIGTERM.
const DRAIN: Duration = Duration::from_secs(15 * 60);

/// How long gRPC calls in flight may go on then.
const GRPC_DRAIN: Duration = Duration::from_secs(5);

/// Serves until it is told to stop. Returns the exit code.
pub fn serve(args: ServeArgs, context: Context) -> Result<u8, CliError> {
    log::start(&context.around, "info");
    let token = args.api_token_file.as_deref().map(read_token).transpose()?;
    let loopback = args.listen.ip().is_loopback();
    let open = [Some(args.listen), args.grpc].into_iter().flatten().find(|a| !a.ip().is_loopback());
    if let (Some(open), None) = (open, &token) {
        return Err(CliError::Usage {
            message: format!("{open} is not a loopback address, and there is no API token"),
            hint: Some("give --api-token-file FILE, or listen on 127.0.0.1".into()),
        });
    }
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()
        .map_err(|e| cannot("runtime", format!("cannot start the runtime: {e}")))?;
    runtime.block_on(async {
        let listener = listen(args.listen, "--listen").await?;
        let grpc = match args.grpc {
            Some(address) => Some(listen(address, "--grpc").await?),
            None => None,
        };
        let store = context.open(true, args.proxy.durability)?;
        let node = proxy_setup::join(store, &context, "outlast serve")?;
        let keys = context.keys()?;
        let providers = proxy_setup::providers(&args.proxy, &keys, &Default::default(), &context)?;
        let (clock, entropy) = (context.clock.clone(), context.entropy.clone());
        let desk =
            StateDesk::new(node.store().clone(), clock, entropy, args.grpc_conflicts, Writer::NoRun);
        let access = Access {
            api_token: token.clone(),
            loopback,
            allowed_hosts: args.allow_host.clone(),
            only_run: None,
        };
        let prices = prices::typed(&args.proxy)?;
        let config =
            proxy_setup::config(&args.proxy, access, providers, prices, args.defaults.limits(), args.policy.policy());
        let proxy = Proxy::new(node.clone(), context.entropy.as_ref(), config, None)?.with_state(desk.clone());
        let (mut first, mut second) = (Stops::new()?, Stops::new()?);
        let address = listener.local_addr().map_err(|e| cannot("cannot_listen", e.to_string()))?;
        say(&format!("serving on http://{address}, store {}", context.place));
        say(&format!("OPENAI_BASE_URL=http://{address}/v1 ANTHROPIC_BASE_URL=http://{address}, and a header X-Outlast-Run"));
        let (stop_grpc, stopped) = oneshot::channel();
        let mut serving_grpc = None;
        if let Some(listener) = grpc {
            let address = listener.local_addr().map_err(|e| cannot("cannot_listen", e.to_string()))?;
            say(&format!("serving the state over gRPC on {address}"));
            let stopped = async { drop(stopped.await) };
            serving_grpc = Some(tokio::spawn(grpc::serve(desk, listener, token, stopped)));
        }
        let beat = tokio::spawn(node.clone().keep_alive());
        let stop = async {
            first.next().await;
            say("stopping; waiting for calls in flight (once more leaves them in doubt)");
        };
        tokio::select! {
            () = proxy.serve(listener, stop, DRAIN) => {}
            () = async { second.next().await; second.next().await } => {}
        }
        beat.abort();
        let _ = stop_grpc.send(());
        if let Some(serving) = serving_grpc {
            // A replay that nobody takes must not hold us.
            let _ = tokio::time::timeout(GRPC_DRAIN, serving).await;
        }
        tokio::task::spawn_blocking(move || node.leave())
            .await
            .map_err(|e| cannot("internal", e.to_string()))??;
        Ok(exit_code::OK)
    })
}

async fn listen(address: SocketAddr, flag: &str) -> Result<TcpListener, CliError> {
    TcpListener::bind(address).await.map_err(|e| CliError::Other {
        exit: exit_code::UNAVAILABLE,
        code: "cannot_listen",
        message: format!("cannot listen on {address}: {e}"),
        hint: Some(format!("is another outlast serving there? choose another with {flag}")),
    })
}

fn cannot(code: &'static str, message: String) -> CliError {
    CliError::Other { exit: exit_code::UNAVAILABLE, code, message, hint: None }
}

/// SIGTERM and SIGINT, as they come.
struct Stops {
    term: unix::Signal,
    int: unix::Signal,
}

impl Stops {
    fn new() -> Result<Stops, CliError> {
        let on =
            |kind| unix::signal(kind).map_err(|e| cannot("signals", format!("cannot handle signals: {e}")));
        Ok(Stops { term: on(unix::SignalKind::terminate())?, int: on(unix::SignalKind::interrupt())? })
    }

    async fn next(&mut self) {
        tokio::select! { _ = self.term.recv() => {}, _ = self.int.recv() => {} }
    }
}

/// The token that callers have to show: at least 16 characters, from a file nobody else can read.
fn read_token(path: &Path) -> Result<String, CliError> {
    let bad = |message: String| CliError::Other {
        exit: exit_code::USAGE,
        code: "bad_api_token_file",
        message: format!("the API token file {}: {message}", path.display()),
        hint: Some("for example: (umask 077; openssl rand -hex 32 > FILE)".into()),
    };
    let meta = fs::metadata(path).map_err(|e| bad(e.to_string()))?;
    if meta.mode() & 0o077 != 0 {
        return Err(bad(format!(
            "it has mode {:o}, and others must not read it (wanted 0600)",
            meta.mode() & 0o777
        )));
    }
    let text = fs::read_to_string(path).map_err(|e| bad(e.to_string()))?;
    let token = text.trim();
    if token.len() < 16 || token.contains(char::is_whitespace) {
        return Err(bad("wanted one token of at least 16 characters".into()));
    }
    Ok(token.to_owned())
}
