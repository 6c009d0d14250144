//! Flags that several commands have.

use std::{ffi::OsString, io::IsTerminal as _, net::SocketAddr, path::PathBuf};

use clap::{Args, ValueEnum};
use outlast_core::{
    engine::state::transaction::Conflicts,
    envelope::{Limits, PerUnit, Unit},
    run::{self, Grpc, Policy},
    words::NanoUsd,
};

use super::values::{self, Limit};
use crate::{
    program::{
        context::Context,
        error::{Result, RunError},
    },
    render::{look::Look, quote::word},
    settings::{store_address::Durability, surroundings::Surroundings},
};
use outlast_server::dialect::Upstream;

/// Flags of every command.
#[derive(Args, Clone, Debug)]
#[command(next_help_heading = "Global options")]
pub struct Globals {
    /// Where the runs are kept: a file, or postgres://USER@HOST/DATABASE
    #[arg(long, global = true, value_name = "PLACE")]
    pub store: Option<String>,
    /// Whether the command line itself names the store.
    #[arg(skip)]
    pub names_store: bool,
    /// Work with the runs of another machine: the URL of its `outlast serve`; the token is read from OUTLAST_API_TOKEN
    #[arg(long, global = true, value_name = "URL")]
    pub server: Option<String>,
    /// Print JSON, errors included
    #[arg(long, global = true)]
    pub json: bool,
    /// When to use colour: auto (on a terminal), always, never
    #[arg(long, global = true, value_name = "WHEN", value_enum, default_value_t = Color::Auto, hide_possible_values = true)]
    pub color: Color,
}

impl Globals {
    /// Decides the look of output from the flags, `NO_COLOR`, `TERM` and whether the output is a terminal.
    pub fn look(&self, around: &Surroundings, is_terminal: bool) -> Look {
        let color = match self.color {
            Color::Always => true,
            Color::Never => false,
            Color::Auto => {
                is_terminal
                    && around.var("NO_COLOR").is_none()
                    && around.var("TERM").is_none_or(|t| t != "dumb")
            }
        };
        Look { color, json: self.json }
    }

    /// Returns the option by which suggested commands find the store that the command line names, without a password.
    pub fn place(&self, context: &Context) -> String {
        match self.store.as_deref().filter(|_| self.names_store && context.server.is_none()) {
            Some(typed) if context.place.without_secret().is_some() => format!("--store {} ", word(typed)),
            Some(_) => format!("--store {} ", word(&context.place.to_string())),
            None => String::new(),
        }
    }

    /// Builds the context of a command. Errors: an address that names no store, or no server.
    pub fn context(&self, around: Surroundings) -> Result<Context> {
        let look = self.look(&around, std::io::stdout().is_terminal());
        Context::new(self.store.as_deref(), self.server.as_deref(), look, around)
    }
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum Color {
    #[default]
    Auto,
    Always,
    Never,
}

/// Limits of a run's spend.
#[derive(Args, Clone, Debug, Default, PartialEq, Eq)]
#[command(next_help_heading = "Limits (of a new run; `none` removes one)")]
pub struct LimitArgs {
    /// Dollars [default: 5]
    #[arg(long, value_name = "AMOUNT", value_parser = values::limit(values::usd))]
    pub usd: Option<Limit>,
    /// Tokens, input and output
    #[arg(long, value_name = "N", value_parser = values::limit(values::count))]
    pub tokens: Option<Limit>,
    /// LLM calls
    #[arg(long, value_name = "N", value_parser = values::limit(values::count))]
    pub calls: Option<Limit>,
    /// Turns of the agent: every LLM call that is not replayed counts as one, unless the agent counts its turns itself
    #[arg(long, value_name = "N", value_parser = values::limit(values::count))]
    pub loops: Option<Limit>,
    /// Time since the run began, downtime included
    #[arg(long, value_name = "TIME", value_parser = values::limit(values::ms))]
    pub wall: Option<Limit>,
    /// Time during which the agent is running
    #[arg(long, value_name = "TIME", value_parser = values::limit(values::ms))]
    pub active: Option<Limit>,
    /// Restarts after the agent died
    #[arg(long, value_name = "N", value_parser = values::limit(values::count))]
    pub restarts: Option<Limit>,
}

/// Limits chosen for a new run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Chosen {
    pub limits: Limits,
    /// Default limit in usd, if it was added because `--usd` was not given. The run's start prints it first.
    pub by_default: Option<NanoUsd>,
}

impl Chosen {
    /// Returns these limits lowered to the policy's: for each unit the lower of the two. A default limit in usd is
    /// replaced by the policy's.
    pub fn under(mut self, policy: &Limits) -> Chosen {
        if policy[Unit::CostNanoUsd].is_some() && self.by_default.take().is_some() {
            self.limits[Unit::CostNanoUsd] = None;
        }
        for unit in Unit::ALL {
            let both = [self.limits[unit], policy[unit]];
            self.limits[unit] = both.into_iter().flatten().min();
        }
        self
    }
}

impl LimitArgs {
    /// Default limit in usd, for a run that is created without `--usd`, whatever its other limits.
    pub const DEFAULT_USD: NanoUsd = NanoUsd(5_000_000_000);

    fn all(&self) -> PerUnit<Option<Limit>> {
        PerUnit([self.usd, self.tokens, self.calls, self.loops, self.wall, self.active, self.restarts])
    }

    /// Returns whether any limit was given. An existing run keeps its limits, which is said if any is given.
    pub fn any(&self) -> bool {
        self.all().0.iter().any(Option::is_some)
    }

    pub fn choose(&self) -> Chosen {
        let mut limits = PerUnit(self.all().0.map(|limit| limit.and_then(Limit::at)));
        let by_default = self.usd.is_none().then_some(Self::DEFAULT_USD);
        if let Some(usd) = by_default {
            limits[Unit::CostNanoUsd] = Some(usd.0);
        }
        Chosen { limits, by_default }
    }
}

/// The rules a run keeps for its whole life.
#[derive(Args, Clone, Copy, Debug, Default, PartialEq, Eq)]
#[command(next_help_heading = "Rules (of a new run, for its whole life)")]
pub struct PolicyArgs {
    /// Charge for a call of unknown outcome: as much as its retry costs, the whole amount that was reserved for it, or nothing
    #[arg(long, value_name = "RULE", default_value = "as_retry", value_parser = values::words(run::InDoubt::ALL, run::InDoubt::name))]
    pub in_doubt: run::InDoubt,
    /// Reserve the most that each call can cost before it is sent, and refuse it where that does not fit; or only count what was spent
    #[arg(long, value_name = "RULE", default_value = "strict", value_parser = values::words(run::Admission::ALL, run::Admission::name))]
    pub admission: run::Admission,
    /// A restarted agent makes a call that is not recorded while recorded answers are left: send it (live), or halt the run (halt)
    #[arg(long, value_name = "RULE", default_value = "live", value_parser = values::words(run::OnDivergence::ALL, run::OnDivergence::name))]
    pub on_divergence: run::OnDivergence,
    /// Content that is kept of calls: requests and answers (all), answers alone (answers), or neither (digests), with which nothing can be replayed
    #[arg(long, value_name = "WHAT", default_value = "all", value_parser = values::words(run::Record::ALL, run::Record::name))]
    pub record: run::Record,
    /// Under a limit in usd, refuse a model without a known price (deny), count it as free (free), or charge it at twice the dearest known model whose name begins with the same letters (dearest)
    #[arg(long, value_name = "RULE", default_value = "deny", value_parser = values::words(run::Unpriced::ALL, run::Unpriced::name))]
    pub unpriced: run::Unpriced,
    /// Stop the clock of `--wall` while an approval is pending
    #[arg(long)]
    pub pause_wall: bool,
    /// An agent asks for the same again and again, and is told the same: say so (warn), hold its next call until what it waits for has moved (hold), or halt the run after 200 such calls (halt)
    #[arg(long, value_name = "RULE", default_value = "warn", value_parser = values::words(run::NoProgress::ALL, run::NoProgress::name))]
    pub no_progress: run::NoProgress,
}

impl PolicyArgs {
    pub fn policy(&self) -> Policy {
        Policy {
            in_doubt: self.in_doubt,
            admission: self.admission,
            on_divergence: self.on_divergence,
            record: self.record,
            unpriced: self.unpriced,
            pause_wall: self.pause_wall,
            no_progress: self.no_progress,
        }
    }
}

/// Servers for the run beside its proxy.
#[derive(Args, Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct GrpcArgs {
    /// Serve the versioned state to the command over gRPC; what it writes belongs to this run. A run keeps the address it was created with; another one holds for one resumption [without an address: 127.0.0.1:50051]
    #[arg(long, value_name = "ADDRESS", num_args = 0..=1, default_missing_value = "127.0.0.1:50051", value_parser = values::loopback)]
    pub grpc: Option<SocketAddr>,
    /// Two gRPC transactions that write the same key: the later one wins (last_writer), or it is refused (first_committer). Kept with the run [default: last_writer]
    #[arg(long, value_name = "RULE", value_parser = values::conflicts())]
    pub grpc_conflicts: Option<Conflicts>,
}

impl GrpcArgs {
    /// Returns the address and rule to serve: typed flags take precedence over those kept with the run. `None`: no
    /// gRPC.
    pub fn over(self, kept: Option<&Grpc>) -> Result<Option<(SocketAddr, Conflicts)>> {
        let was = kept.map(|kept| kept.address.parse()).transpose().map_err(RunError::KeptAddress)?;
        let conflicts = self.grpc_conflicts.or(kept.map(|kept| kept.conflicts)).unwrap_or_default();
        Ok(self.grpc.or(was).map(|address| (address, conflicts)))
    }

    /// Returns the settings to store with a new run; `None` without an address.
    pub fn to_keep(self) -> Option<Grpc> {
        let conflicts = self.grpc_conflicts.unwrap_or_default();
        self.grpc.map(|address| Grpc { address: address.to_string(), conflicts })
    }
}

/// Treatment of calls by the proxy.
#[derive(Args, Clone, Debug, PartialEq, Eq)]
#[command(next_help_heading = "Proxy")]
pub struct ProxyArgs {
    /// File of prices that add to the built-in table, or replace some of it
    #[arg(long, value_name = "FILE")]
    pub prices: Option<PathBuf>,
    /// Where OpenAI calls go
    #[arg(long, value_name = "URL", value_parser = values::base_url)]
    pub openai_base_url: Option<String>,
    /// Where Anthropic calls go
    #[arg(long, value_name = "URL", value_parser = values::base_url)]
    pub anthropic_base_url: Option<String>,
    /// Where Gemini calls go
    #[arg(long, value_name = "URL", value_parser = values::base_url)]
    pub gemini_base_url: Option<String>,
    /// Longest wait of a call for room in the budget
    #[arg(long = "admit-wait", value_name = "TIME", default_value = "45s", value_parser = values::ms)]
    pub admit_wait_ms: i64,
    /// Number of times that a call is sent again that its upstream refused for the moment (429, 503, 529) or that did not reach it; 0: never. Within --admit-wait, and not for clients that do so themselves
    #[arg(long, value_name = "N", default_value_t = 2, value_parser = clap::value_parser!(u32).range(0..=10))]
    pub upstream_retries: u32,
    /// Longest wait of a run for a provider that answers no call; 0: no wait, errors go to the agent at once
    #[arg(long = "outage-wait", value_name = "TIME", default_value = "12h", value_parser = values::ms)]
    pub outage_wait_ms: i64,
    /// Longest pause between two calls that try whether a provider answers again
    #[arg(long = "outage-pause", value_name = "TIME", default_value = "5m", value_parser = values::ms, hide = true)]
    pub outage_pause_ms: i64,
    /// Longest time that an answer waits to be recorded before its client gets an error
    #[arg(long = "settle-wait", value_name = "TIME", default_value = "30s", value_parser = values::ms)]
    pub settle_wait_ms: i64,
    /// Longest wait of operations and calls for a database that is away (PostgreSQL)
    #[arg(long = "store-wait", value_name = "TIME", default_value = "60s", value_parser = values::ms)]
    pub store_wait_ms: i64,
    /// Longest time that an upstream may take to begin its answer
    #[arg(long = "first-byte-timeout", value_name = "TIME", default_value = "10m", value_parser = values::ms)]
    pub first_byte_timeout_ms: i64,
    /// Longest time that an answer goes on without a part of it; pings do not count
    #[arg(long = "idle-timeout", value_name = "TIME", default_value = "5m", value_parser = values::ms)]
    pub idle_timeout_ms: i64,
    /// The largest request body
    #[arg(long = "max-body", value_name = "SIZE", default_value = "64MiB", value_parser = values::bytes)]
    pub max_body_bytes: u64,
    /// Let requests continue from stored responses of other runs (`previous_response_id`): the key can read every one of its account
    #[arg(long)]
    pub foreign_responses: bool,
    /// Event that a commit survives: a loss of power (full), or the death of every process
    #[arg(long, value_name = "WHAT", default_value = "full", value_parser = values::durability())]
    pub durability: Durability,
}

impl ProxyArgs {
    /// Returns the address that is typed for a provider.
    pub fn base_url(&self, upstream: Upstream) -> Option<&String> {
        match upstream {
            Upstream::OpenAi => self.openai_base_url.as_ref(),
            Upstream::Anthropic => self.anthropic_base_url.as_ref(),
            Upstream::Gemini => self.gemini_base_url.as_ref(),
        }
    }

    /// Returns the flags as they would be typed, for another `outlast` that this process starts.
    pub fn flags(&self) -> Vec<OsString> {
        let durability = match self.durability {
            Durability::Full => "full",
            Durability::Process => "process",
        };
        let mut flags: Vec<OsString> = [
            format!("--admit-wait={}ms", self.admit_wait_ms),
            format!("--upstream-retries={}", self.upstream_retries),
            format!("--outage-wait={}ms", self.outage_wait_ms),
            format!("--outage-pause={}ms", self.outage_pause_ms),
            format!("--settle-wait={}ms", self.settle_wait_ms),
            format!("--store-wait={}ms", self.store_wait_ms),
            format!("--first-byte-timeout={}ms", self.first_byte_timeout_ms),
            format!("--idle-timeout={}ms", self.idle_timeout_ms),
            format!("--max-body={}B", self.max_body_bytes),
            format!("--durability={durability}"),
        ]
        .map(OsString::from)
        .to_vec();
        for upstream in Upstream::ALL {
            let flag = |url| OsString::from(format!("--{}-base-url={url}", upstream.name()));
            flags.extend(self.base_url(upstream).map(flag));
        }
        flags.extend(self.foreign_responses.then(|| "--foreign-responses".into()));
        if let Some(prices) = &self.prices {
            flags.extend(["--prices".into(), prices.clone().into_os_string()]);
        }
        flags
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use clap::Parser as _;

    use super::*;

    #[test]
    fn colour_is_for_terminals_that_want_it() {
        let check = |color: Color, variables: &[(&str, &str)], is_terminal: bool, wanted: bool| {
            let globals = Globals { store: None, names_store: false, server: None, json: false, color };
            let around = Surroundings::new(variables, Path::new("/"));
            assert_eq!(globals.look(&around, is_terminal).color, wanted, "{color:?} {variables:?}");
        };
        check(Color::Auto, &[], true, true);
        check(Color::Auto, &[], false, false);
        check(Color::Auto, &[("NO_COLOR", "1")], true, false);
        check(Color::Auto, &[("NO_COLOR", "")], true, true);
        check(Color::Auto, &[("TERM", "dumb")], true, false);
        check(Color::Always, &[("NO_COLOR", "1")], false, true);
        check(Color::Never, &[], true, false);
    }

    #[test]
    fn flags_are_read_back_as_they_were() {
        #[derive(clap::Parser)]
        struct Line {
            #[command(flatten)]
            proxy: ProxyArgs,
        }
        let typed = ["x", "--prices", "a b.toml", "--openai-base-url", "http://h/v1", "--admit-wait", "1m"]
            .into_iter()
            .chain(["--max-body", "1KiB", "--durability", "process", "--foreign-responses"]);
        for typed in [typed.collect(), vec!["x"]] {
            let first = Line::parse_from(typed).proxy;
            let again = std::iter::once(OsString::from("x")).chain(first.flags());
            assert_eq!(Line::parse_from(again).proxy, first);
        }
    }

    #[test]
    fn five_dollars_are_put_in_unless_another_limit_in_usd_is_given() {
        let check = |args: LimitArgs, usd: Option<i64>, by_default: bool| {
            let chosen = args.choose();
            assert_eq!((chosen.limits[Unit::CostNanoUsd], chosen.by_default.is_some()), (usd, by_default));
        };
        let none = LimitArgs::default();
        check(none.clone(), Some(5_000_000_000), true);
        check(LimitArgs { usd: Some(Limit::None), ..none.clone() }, None, false);
        check(LimitArgs { calls: Some(Limit::At(20)), ..none.clone() }, Some(5_000_000_000), true);
        check(LimitArgs { usd: Some(Limit::At(1)), ..none }, Some(1), false);
    }

    #[test]
    fn a_policys_limit_in_usd_takes_the_place_of_the_default() {
        let check = |unit: Unit, limit: i64, usd: i64, by_default: bool| {
            let mut policy = Limits::default();
            policy[unit] = Some(limit);
            let chosen = LimitArgs::default().choose().under(&policy);
            assert_eq!(
                (chosen.limits[Unit::CostNanoUsd], chosen.by_default.is_some()),
                (Some(usd), by_default)
            );
            assert_eq!(chosen.limits[unit], Some(limit));
        };
        check(Unit::CostNanoUsd, 9_000_000_000, 9_000_000_000, false);
        check(Unit::WallMs, 1000, 5_000_000_000, true);
    }
}
