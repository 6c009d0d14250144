//! `outlast notify [ls | retry | test]`: the endpoints that are told what happens.

use outlast_core::{
    engine::PutDelivery,
    events::delivery::{Delivery, Letter},
};
use outlast_server::notify::Poster;

use super::prelude::*;
use crate::{
    notify::{
        self,
        endpoint::{Endpoint, Notify, ON_HALT, Shape, Way, load},
        message::Message,
    },
    program::server,
};

/// Show, test and retry notifications to webhooks, chats and commands
///
/// Endpoints are configured in ~/.config/outlast/outlast.toml, below [notify]. Running `outlast run` and `outlast serve`
/// deliver; what a killed one left is delivered by the next that starts. Without a subcommand: as `ls`.
#[derive(Args, Clone, Debug)]
#[command(
    after_help = "Examples:\n  outlast notify                 what was delivered, what waits, what was given up\n  outlast notify test phone      send a test message now\n  outlast notify retry phone     try again what failed"
)]
pub struct NotifyArgs {
    #[command(subcommand)]
    pub verb: Option<NotifyVerb>,
}

impl NotifyArgs {
    /// Whether it sends something, or has it sent.
    pub fn changes(&self) -> bool {
        !matches!(self.verb, None | Some(NotifyVerb::Ls))
    }
}

#[derive(Subcommand, Clone, Debug)]
pub enum NotifyVerb {
    /// List the endpoints
    #[command(after_help = "Example:\n  outlast notify ls --json | jq '.endpoints[].waiting'")]
    Ls,
    /// Try again at once what failed or was given up
    #[command(after_help = "Examples:\n  outlast notify retry\n  outlast notify retry phone")]
    Retry(EndpointArgs),
    /// Send a test message, and say whether it arrived
    #[command(after_help = "Examples:\n  outlast notify test\n  outlast notify test phone")]
    Test(EndpointArgs),
}

#[derive(Args, Clone, Debug)]
pub struct EndpointArgs {
    /// Only this endpoint, by its name in the settings
    pub name: Option<String>,
}

/// Number of times that a change is repeated because another process wrote first.
const AGAIN: usize = 100;

/// Runs `outlast notify` and returns the exit code. `test` needs no store.
pub fn notify(args: &NotifyArgs, context: &Context, page: &mut Page) -> Result<u8> {
    let told = load(&context.around)?;
    let store = || context.open(false, Default::default());
    match args.verb.as_ref().unwrap_or(&NotifyVerb::Ls) {
        NotifyVerb::Ls => list(&*store()?, &told, page)?,
        NotifyVerb::Retry(only) => retry(&*store()?, &told, only.name.as_deref(), page)?,
        NotifyVerb::Test(only) => return test(context, &told, only.name.as_deref(), page),
    }
    Ok(exit_code::OK)
}

fn list(store: &dyn Store, told: &Notify, page: &mut Page) -> Result {
    let mut standings = notify::standings(store, told)?;
    // Of runs that are over long since, only those whose program was not told are worth a line.
    standings.retain(|name, d| !name.starts_with(ON_HALT) || !d.waiting.is_empty() || !d.dead.is_empty());
    let way = |name: &str| told.endpoints.iter().find(|e| e.name == name).map(way);
    if page.look.json {
        let one = |d: &Delivery| {
            let letters = |all: &[Letter]| -> Value {
                let letter = |l: &Letter| json!({"event": l.mark.no, "tries": l.tries, "next_at": time::rfc3339(l.next_at), "why": l.why});
                all.iter().map(letter).collect()
            };
            json!({
                "endpoint": d.name, "way": way(&d.name), "delivered": d.delivered, "waiting": letters(&d.waiting),
                "dead": letters(&d.dead), "dropped": d.dropped,
            })
        };
        let all: Vec<Value> = standings.values().map(one).collect();
        return Ok(page.json(&json!({ "endpoints": all }))?);
    }
    if standings.is_empty() {
        return Ok(page.line("no endpoint is told what happens; see [notify] in docs/guides/notify.md")?);
    }
    let mut table = Table::new(["endpoint", "way", ">delivered", ">waiting", ">given up", "last failure"]);
    for d in standings.values() {
        let why = d.waiting.last().or(d.dead.last()).map(|letter| letter.why.clone()).unwrap_or_default();
        let given_up = i64::try_from(d.dead.len()).unwrap_or(i64::MAX).saturating_add(d.dropped);
        table.row(vec![
            Cell::whole(&d.name),
            way(&d.name).unwrap_or_else(|| "(not configured)".into()).into(),
            d.delivered.to_string().into(),
            d.waiting.len().to_string().into(),
            given_up.to_string().into(),
            Cell::painted(why, Paint::Faint),
        ]);
    }
    Ok(page.text(&table.render(page.look, 0))?)
}

/// Describes how an endpoint is reached, without parts that may be secret.
fn way(endpoint: &Endpoint) -> String {
    match &endpoint.way {
        Way::Command(argv) => format!("command {}", argv.first().map_or("", String::as_str)),
        Way::Post { to, shape, secret } => {
            let shape = match (shape, secret) {
                (Shape::Webhook, Some(_)) => "signed webhook",
                (Shape::Webhook, None) => "webhook",
                (Shape::Ntfy, _) => "ntfy",
                (Shape::Slack, _) => "slack",
                (Shape::Discord, _) => "discord",
            };
            format!("{shape} {}", to.shown())
        }
    }
}

fn retry(store: &dyn Store, told: &Notify, only: Option<&str>, page: &mut Page) -> Result {
    let standings = notify::standings(store, told)?;
    named(only, standings.keys().map(String::as_str))?;
    for name in standings.keys().filter(|name| only.is_none_or(|only| only == *name)) {
        let mut letters = 0;
        // A deliverer may write at the same time: then its change is read, and this one made on it.
        for _ in 0..AGAIN {
            let Some(mut delivery) = store.deliveries()?.into_iter().find(|d| d.name == *name) else { break };
            letters = delivery.retry(store.now()?);
            if letters == 0 || store.ask(PutDelivery { delivery }, Durability::Synced).wait()? {
                break;
            }
        }
        page.line(&format!("{name}: {letters} to be tried again by the process that delivers"))?;
    }
    Ok(())
}

fn test(context: &Context, told: &Notify, only: Option<&str>, page: &mut Page) -> Result<u8> {
    named(only, told.endpoints.iter().map(|e| e.name.as_str()))?;
    if told.endpoints.is_empty() {
        let hint = "name one in [notify] of ~/.config/outlast/outlast.toml: see docs/guides/notify.md";
        return Err(CliError::usage("no endpoint is configured that could be told", Some(hint)));
    }
    let runtime =
        tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(MachineError::Runtime)?;
    let mut code = exit_code::OK;
    let poster = Poster::new(&server::network(&context.around)?);
    let now = context.clock.now();
    let mut all = Vec::new();
    for endpoint in told.endpoints.iter().filter(|e| only.is_none_or(|only| only == e.name)) {
        let message = Message::test(&endpoint.name, now);
        let sent = runtime.block_on(notify::send(&poster, endpoint, &message, now));
        if sent.is_err() {
            code = exit_code::REFUSED;
        }
        let said = match &sent {
            Ok(()) => "delivered".to_owned(),
            Err(why) => format!("not delivered: {why}"),
        };
        match page.look.json {
            true => {
                all.push(json!({ "endpoint": endpoint.name, "delivered": sent.is_ok(), "why": sent.err() }))
            }
            false => page.line(&format!("{}: {said}", endpoint.name))?,
        }
    }
    if page.look.json {
        page.json(&json!({ "endpoints": all }))?;
    }
    Ok(code)
}

/// Checks that `only`, the name that was typed, is a known endpoint's. Errors: no endpoint has this name.
fn named<'a>(only: Option<&str>, known: impl Iterator<Item = &'a str>) -> Result {
    let known: Vec<&str> = known.collect();
    match only.filter(|only| !known.contains(only)) {
        None => Ok(()),
        Some(only) => Err(CliError::usage(
            format!("no endpoint is named {only:?}"),
            Some(&format!("there is: {}", if known.is_empty() { "none".into() } else { known.join(", ") })),
        )),
    }
}
