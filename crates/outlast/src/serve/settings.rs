//! Settings that a running server reads again: files of keys, the API token and prices once they change, and
//! on SIGHUP also the variables' and `outlast.toml`'s settings.
//!
//! All of it is read and checked before any of it counts. Bad settings are reported and change nothing.

use std::{fs, io, os::unix::fs::MetadataExt as _, path::PathBuf, sync::Arc, time::Duration};

use outlast_core::{
    journal::Entry,
    store::{RunView, Store},
    words::{AttemptNo, RunId},
};
use outlast_server::door::{Access, Config, Proxy, RunFiles};
use outlast_view::FileChange;
use tokio::signal::unix::Signal;

use super::{Reread, ServeArgs};
use crate::{
    files, logs,
    program::{
        context::Context,
        error::CliError,
        run_directory::RunDirectory,
        server::{self, read_tokens},
    },
    proxy_setup,
    settings::{budgets, masks, prices},
};

/// Interval at which the files are checked for changes.
const LOOK: Duration = Duration::from_secs(1);

/// Returns the configuration of `outlast serve` for `args`, with the keys, token and prices that the files hold now.
pub fn config(args: &ServeArgs, context: &Context) -> Result<Config, CliError> {
    let token = args.api_token_file.as_deref().map(read_tokens).transpose()?;
    let open = [Some(args.listen), args.grpc].into_iter().flatten().find(|a| !a.ip().is_loopback());
    if let (Some(open), None) = (open, &token) {
        return Err(CliError::usage(
            format!("{open} is not a loopback address, and there is no API token"),
            Some("give --api-token-file FILE, or listen on 127.0.0.1"),
        ));
    }
    let access = Access {
        api_token: token,
        loopback: args.listen.ip().is_loopback(),
        allowed_hosts: args.allow_host.clone(),
        ..Access::default()
    };
    budgets::load(&context.around)?;
    of_proxy(args, access, context)
}

/// Returns the configuration of a proxy that admits callers by `access`: that of `outlast serve` without its listeners.
pub fn of_proxy(args: &ServeArgs, access: Access, context: &Context) -> Result<Config, CliError> {
    let keys = context.keys()?;
    let providers = proxy_setup::providers(&args.proxy, &keys, &Default::default(), context)?;
    let prices = prices::of_file(args.proxy.prices.as_deref(), &context.around)?;
    let (limits, policy) = (args.defaults.limits(), args.policy.policy());
    let network = server::network(&context.around)?;
    let config = proxy_setup::config(&args.proxy, access, providers, network, prices, limits, policy);
    let upstream_concurrency = args.upstream_concurrency.map(|n| usize::try_from(n).unwrap_or(usize::MAX));
    let upstream_rate = args.upstream_rate.unwrap_or_default();
    let masks = masks::load(&context.around)?;
    let files: Option<Arc<dyn RunFiles>> = Some(Arc::new(context.clone()));
    Ok(Config { upstream_concurrency, upstream_rate, masks, files, ..config })
}

/// Files of runs beside the context's store, for the page and for commands of another machine.
impl RunFiles for Context {
    fn last_lines(&self, run: &RunId, attempt: AttemptNo, most: usize) -> io::Result<Vec<String>> {
        let directory = RunDirectory::of(&self.place, run, &self.around).map_err(io::Error::other)?;
        logs::last_lines(&directory.logs(), attempt, most)
    }

    fn changes(
        &self,
        store: &dyn Store,
        view: &RunView,
        entry: &Entry,
    ) -> io::Result<(Vec<FileChange>, usize)> {
        files::history::changes_at_entry(store, self, view, entry).map_err(io::Error::other)
    }

    fn forget(&self, store: &dyn Store, run: &RunId) -> io::Result<()> {
        RunDirectory::of(&self.place, run, &self.around).map_err(io::Error::other)?.remove()?;
        files::collect(store, self).map_err(io::Error::other)
    }
}

/// Watches the settings and applies changes to `proxy`. Never returns.
pub async fn follow(
    proxy: Proxy,
    store: Arc<dyn Store>,
    mut args: ServeArgs,
    context: Context,
    reread: Reread,
    mut hangup: Signal,
) {
    let mut stamps = Stamps::of(&args, &context);
    let mut look = tokio::time::interval(LOOK);
    loop {
        let wanted = tokio::select! {
            _ = hangup.recv() => match reread(&context) {
                Ok(new) => kept_of(&args, new),
                Err(e) => {
                    refused(&e);
                    continue;
                }
            },
            _ = look.tick() => {
                if Stamps::of(&args, &context) == stamps {
                    continue;
                }
                args.clone()
            }
        };
        // Stamps are taken before reading, so that a change meanwhile is read again.
        stamps = Stamps::of(&wanted, &context);
        match config(&wanted, &context) {
            Ok(config) => {
                if let Err(e) = sync_budgets(store.clone(), &context).await {
                    refused(&e);
                    continue;
                }
                proxy.reconfigure(config);
                args = wanted;
                tracing::info!("settings, keys and prices were read again and count from here on");
            }
            Err(e) => refused(&e),
        }
    }
}

/// Writes the named budgets of the settings into the store, off the runtime's threads.
pub async fn sync_budgets(store: Arc<dyn Store>, context: &Context) -> Result<(), CliError> {
    let around = context.around.clone();
    let sync =
        move || -> Result<(), CliError> { Ok(budgets::sync(store.as_ref(), budgets::load(&around)?)?) };
    tokio::task::spawn_blocking(sync).await.map_err(io::Error::other)?
}

fn refused(e: &CliError) {
    tracing::error!(code = e.code(), error = %e, "the new settings are refused; the old ones stay");
}

/// Returns the new settings, but for those that are read at the start only: these stay as they were, and a change of one is
/// logged.
fn kept_of(old: &ServeArgs, new: ServeArgs) -> ServeArgs {
    for (flag, changed) in [
        ("listen", new.listen != old.listen),
        ("grpc", new.grpc != old.grpc),
        ("grpc-conflicts", new.grpc_conflicts != old.grpc_conflicts),
        ("drain", new.drain_ms != old.drain_ms),
        ("log", new.log != old.log),
        ("durability", new.proxy.durability != old.proxy.durability),
    ] {
        if changed {
            tracing::warn!("--{flag} is read at the start only: start the server again to change it");
        }
    }
    if old.grpc.is_some() && new.api_token_file != old.api_token_file {
        tracing::warn!("gRPC keeps the API token it began with: start the server again to change it");
    }
    let (listen, grpc, grpc_conflicts, drain_ms, log) =
        (old.listen, old.grpc, old.grpc_conflicts, old.drain_ms, old.log);
    ServeArgs { listen, grpc, grpc_conflicts, drain_ms, log, ..new }
}

/// Stamps of the settings files, by which a change is noticed; `None` for a file that is missing.
#[derive(PartialEq)]
struct Stamps(Vec<Option<Stamp>>);

#[derive(PartialEq)]
struct Stamp {
    inode: u64,
    size: u64,
    modified: (i64, i64),
    /// Permissions of the file: a file that was made private is read again.
    mode: u32,
}

impl Stamps {
    fn of(args: &ServeArgs, context: &Context) -> Stamps {
        let keys = context.around.config_directory().map(|d| d.join("env"));
        let (prices, token) = (args.proxy.prices.clone(), args.api_token_file.clone());
        let files: [Option<PathBuf>; 4] = [keys, token, prices, prices::own_path(&context.around)];
        let stamp = |path: PathBuf| {
            let m = fs::metadata(path).ok()?;
            let modified = (m.mtime(), m.mtime_nsec());
            Some(Stamp { inode: m.ino(), size: m.size(), modified, mode: m.mode() })
        };
        Stamps(files.into_iter().map(|path| path.and_then(stamp)).collect())
    }
}
