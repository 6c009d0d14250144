//! Prometheus counters of this server, in memory. They begin at zero with the process, and their cost does not depend
//! on the number of runs.
//!
//! The crate prometheus-client is not used: it writes OpenMetrics, whose names and content type differ from version
//! 0.0.4, which scrapers of this server read.

use std::{
    collections::BTreeMap,
    fmt::{Display, Write as _},
    time::Duration,
};

use outlast_core::words::Usage;
use parking_lot::Mutex;

/// Largest number of models counted apart. Callers choose the names, so further ones are counted as `(other)`.
const MOST_MODELS: usize = 200;

/// Upper bounds of the histogram buckets, in seconds.
const BOUNDS: [f64; 12] = [0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 1.0, 5.0, 15.0, 45.0];

/// Counters of one server.
#[derive(Default)]
pub struct Metrics(Mutex<Counts>);

#[derive(Default)]
struct Counts {
    /// Counts by upstream and model.
    models: BTreeMap<(String, String), Model>,
    /// Calls by the name of their API token, and their cost.
    callers: BTreeMap<String, (u64, Cost)>,
    replays: u64,
    saved_nano_usd: i128,
    /// Calls that brought their agent nothing new, and those of them that were held.
    waits: u64,
    held: u64,
    /// Tokens that restarted agents bought again although a cache had them, and their cost.
    rebought_tokens: u64,
    rebought_nano_usd: i128,
    refusals: BTreeMap<String, u64>,
    /// Retries by upstream.
    retries: BTreeMap<String, u64>,
    queue: Histogram,
    commit: Histogram,
}

#[derive(Default)]
struct Model {
    /// Number of calls by the state in which the entry closed.
    calls: BTreeMap<&'static str, u64>,
    input_tokens: u64,
    output_tokens: u64,
    cost: Cost,
}

/// Dollars of calls: what somebody is billed, and the list price of what a subscription covers. Never one sum.
#[derive(Default)]
struct Cost {
    billed_nano_usd: i128,
    listed_nano_usd: i128,
}

impl Cost {
    fn add(&mut self, call: &Counted<'_>) {
        let part = if call.is_listed { &mut self.listed_nano_usd } else { &mut self.billed_nano_usd };
        *part += i128::from(call.cost_nano_usd);
    }
}

/// Facts of a settled call that the counters need.
#[derive(Clone, Copy, Debug)]
pub struct Counted<'a> {
    pub upstream: &'a str,
    pub model: &'a str,
    /// State in which the entry closed: `done`, `failed`, `void`, `unknown`.
    pub state: &'static str,
    pub usage: Usage,
    pub cost_nano_usd: i64,
    /// Whether the cost is a list price: a login's subscription pays for the call.
    pub is_listed: bool,
    /// Name of the API token; `None` for other callers.
    pub caller: Option<&'a str>,
}

impl Metrics {
    pub fn settled(&self, call: Counted<'_>) {
        let mut counts = self.0.lock();
        if let Some(name) = call.caller {
            let (calls, cost) = counts.callers.entry(name.to_owned()).or_default();
            *calls += 1;
            cost.add(&call);
        }
        let named = (call.upstream.to_owned(), call.model.to_owned());
        let key = match counts.models.len() < MOST_MODELS || counts.models.contains_key(&named) {
            true => named,
            false => (named.0, "(other)".to_owned()),
        };
        let model = counts.models.entry(key).or_default();
        *model.calls.entry(call.state).or_default() += 1;
        model.input_tokens += call.usage.input_total();
        model.output_tokens += call.usage.output;
        model.cost.add(&call);
    }

    /// Counts a replayed answer, and the cost that it saved.
    pub fn replayed(&self, saved_nano_usd: i64) {
        let mut counts = self.0.lock();
        counts.replays += 1;
        counts.saved_nano_usd += i128::from(saved_nano_usd);
    }

    /// Counts a call that brings its agent nothing new.
    pub fn waited(&self) {
        self.0.lock().waits += 1;
    }

    /// Counts a call that is held because its agent waits busily.
    pub fn held(&self) {
        self.0.lock().held += 1;
    }

    /// Counts what a restarted agent bought again.
    pub fn rebought(&self, tokens: u64, cost_nano_usd: i64) {
        let mut counts = self.0.lock();
        counts.rebought_tokens += tokens;
        counts.rebought_nano_usd += i128::from(cost_nano_usd);
    }

    /// Counts a refused request. `code` is the refusal's stable code.
    pub fn refused(&self, code: &str) {
        *self.0.lock().refusals.entry(code.to_owned()).or_default() += 1;
    }

    /// Counts a retry of a call to `upstream`.
    pub fn tried_again(&self, upstream: &str) {
        *self.0.lock().retries.entry(upstream.to_owned()).or_default() += 1;
    }

    /// Adds the time from a call's arrival until it was sent to a histogram.
    pub fn queued(&self, time: Duration) {
        self.0.lock().queue.add(time);
    }

    /// Adds the time that a call waited for a commit to a histogram.
    pub fn committed(&self, time: Duration) {
        self.0.lock().commit.add(time);
    }

    /// Returns all metrics in the Prometheus text format, version 0.0.4.
    pub fn text(&self) -> String {
        let counts = self.0.lock();
        let mut out = String::new();
        let models: Vec<_> = counts
            .models
            .iter()
            .map(|((upstream, model), m)| ([("upstream", upstream.as_str()), ("model", model.as_str())], m))
            .collect();
        let calls = models.iter().flat_map(|([upstream, model], m)| {
            m.calls.iter().map(|(state, n)| (labels(&[*upstream, *model, ("state", state)]), *n))
        });
        counter(
            &mut out,
            "outlast_calls_total",
            "Calls settled, by how they closed; unknown is in doubt.",
            calls,
        );
        let tokens = models.iter().flat_map(|([upstream, model], m)| {
            let each = [("input", m.input_tokens), ("output", m.output_tokens)];
            each.map(|(direction, n)| (labels(&[*upstream, *model, ("direction", direction)]), n))
        });
        counter(&mut out, "outlast_tokens_total", "Tokens billed.", tokens);
        let by = |label, name: &str| labels(&[(label, name)]);
        let models_cost: Vec<_> = models.iter().map(|(of, m)| (labels(of), &m.cost)).collect();
        let callers = counts.callers.iter().map(|(name, (_, cost))| (by("caller", name), cost));
        let callers_cost: Vec<_> = callers.collect();
        let calls = counts.callers.iter().map(|(name, (calls, _))| (by("caller", name), *calls));
        counter(&mut out, "outlast_caller_calls_total", "Calls settled, by the API token's name.", calls);
        let of_models = ["outlast_cost_usd_total", "outlast_list_price_usd_total"];
        let of_callers = ["outlast_caller_cost_usd_total", "outlast_caller_list_price_usd_total"];
        for ([cost_name, list_price_name], costs, whose) in
            [(of_models, models_cost, ""), (of_callers, callers_cost, ", by the API token's name")]
        {
            let each = |part: fn(&Cost) -> i128| {
                costs.iter().map(move |(labels, cost)| (labels.clone(), dollars(part(cost))))
            };
            let help = format!("Dollars billed{whose}.");
            let billed = each(|cost| cost.billed_nano_usd);
            counter(&mut out, cost_name, &help, billed);
            let help = format!("List price of what subscriptions cover, not billed{whose}.");
            let listed = each(|cost| cost.listed_nano_usd);
            counter(&mut out, list_price_name, &help, listed);
        }
        let in_doubt: u64 = models.iter().filter_map(|(_, m)| m.calls.get("unknown")).sum();
        for (name, help, n) in [
            (
                "outlast_in_doubt_total",
                "Calls that closed unknown, charged at their reservation.",
                in_doubt.to_string(),
            ),
            ("outlast_replays_total", "Recorded answers given again.", counts.replays.to_string()),
            (
                "outlast_saved_usd_total",
                "Dollars that those answers had cost.",
                dollars(counts.saved_nano_usd),
            ),
        ] {
            counter(&mut out, name, help, [(String::new(), n)]);
        }
        let refusals = counts.refusals.iter().map(|(code, n)| (by("code", code), *n));
        counter(&mut out, "outlast_refusals_total", "Requests refused, by code.", refusals);
        let rebought = counts.rebought_tokens.to_string();
        for (name, help, n) in [
            (
                "outlast_busy_waits_total",
                "Calls of agents that waited: they brought nothing new.",
                counts.waits.to_string(),
            ),
            ("outlast_held_calls_total", "Calls held because their agent waited.", counts.held.to_string()),
            (
                "outlast_resume_tax_tokens_total",
                "Tokens that a cache had and restarts bought again.",
                rebought,
            ),
            ("outlast_resume_tax_usd_total", "Dollars for those tokens.", dollars(counts.rebought_nano_usd)),
        ] {
            counter(&mut out, name, help, [(String::new(), n)]);
        }
        let retries = counts.retries.iter().map(|(upstream, n)| (by("upstream", upstream), *n));
        let help = "Calls sent again after a refusal that passes, by upstream.";
        counter(&mut out, "outlast_upstream_retries_total", help, retries);
        counts.queue.write(&mut out, "outlast_queue_seconds", "From a call's arrival until it was sent.");
        counts.commit.write(&mut out, "outlast_commit_seconds", "Commits that a call waited for.");
        out
    }
}

/// Writes a counter: a line for each of `rows`, with its labels.
fn counter<N: Display>(
    out: &mut String,
    name: &str,
    help: &str,
    rows: impl IntoIterator<Item = (String, N)>,
) {
    family(out, name, "counter", help);
    rows.into_iter().for_each(|(labels, n)| line(out, name, &labels, n));
}

#[derive(Default)]
struct Histogram {
    /// Counts for each bound, and one for values above the last.
    buckets: [u64; BOUNDS.len() + 1],
    sum: Duration,
}

impl Histogram {
    fn add(&mut self, time: Duration) {
        let at = BOUNDS.iter().position(|b| time.as_secs_f64() <= *b).unwrap_or(BOUNDS.len());
        self.buckets[at] += 1;
        self.sum += time;
    }

    fn write(&self, out: &mut String, name: &str, help: &str) {
        family(out, name, "histogram", help);
        let mut upto = 0;
        for (n, bound) in self.buckets.iter().zip(BOUNDS.iter().map(f64::to_string).chain(["+Inf".into()])) {
            upto += n;
            line(out, &format!("{name}_bucket"), &labels(&[("le", &bound)]), upto);
        }
        line(out, &format!("{name}_sum"), "", self.sum.as_secs_f64());
        line(out, &format!("{name}_count"), "", upto);
    }
}

pub fn family(out: &mut String, name: &str, kind: &str, help: &str) {
    // Writing to a string does not fail.
    let _ = writeln!(out, "# HELP {name} {help}\n# TYPE {name} {kind}");
}

/// Writes a metric that has one value and no labels.
pub fn single(out: &mut String, name: &str, kind: &str, help: &str, value: impl Display) {
    family(out, name, kind, help);
    line(out, name, "", value);
}

pub fn line(out: &mut String, name: &str, labels: &str, value: impl Display) {
    let _ = writeln!(out, "{name}{labels} {value}");
}

pub fn labels(all: &[(&str, &str)]) -> String {
    let escaped = |v: &str| v.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n");
    let all: Vec<String> = all.iter().map(|(name, v)| format!("{name}=\"{}\"", escaped(v))).collect();
    format!("{{{}}}", all.join(","))
}

/// Formats nano-USD as decimal dollars, exactly.
pub fn dollars(nano: i128) -> String {
    let per = 1_000_000_000;
    format!("{}.{:09}", nano / per, (nano % per).abs())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn call(model: &str) -> Counted<'_> {
        let usage = Usage { output: 5, ..Usage::default() };
        Counted {
            upstream: "openai",
            model,
            state: "done",
            usage,
            cost_nano_usd: 1_500_000_001,
            is_listed: false,
            caller: Some("ann"),
        }
    }

    #[test]
    fn what_was_counted_is_told_in_the_exposition_format() {
        let metrics = Metrics::default();
        metrics.settled(call("gpt-\"x\"\n"));
        metrics.settled(Counted { state: "unknown", ..call("gpt-\"x\"\n") });
        metrics.settled(Counted { is_listed: true, ..call("claude") });
        metrics.replayed(2_000_000_000);
        metrics.refused("draining");
        metrics.queued(Duration::from_millis(3));
        metrics.queued(Duration::from_secs(60));
        let text = metrics.text();
        for wanted in [
            "# TYPE outlast_calls_total counter\n",
            "outlast_calls_total{upstream=\"openai\",model=\"gpt-\\\"x\\\"\\n\",state=\"done\"} 1\n",
            "outlast_tokens_total{upstream=\"openai\",model=\"gpt-\\\"x\\\"\\n\",direction=\"output\"} 10\n",
            "outlast_cost_usd_total{upstream=\"openai\",model=\"gpt-\\\"x\\\"\\n\"} 3.000000002\n",
            "outlast_list_price_usd_total{upstream=\"openai\",model=\"gpt-\\\"x\\\"\\n\"} 0.000000000\n",
            "outlast_cost_usd_total{upstream=\"openai\",model=\"claude\"} 0.000000000\n",
            "outlast_list_price_usd_total{upstream=\"openai\",model=\"claude\"} 1.500000001\n",
            "outlast_caller_cost_usd_total{caller=\"ann\"} 3.000000002\n",
            "outlast_caller_list_price_usd_total{caller=\"ann\"} 1.500000001\n",
            "outlast_in_doubt_total 1\n",
            "outlast_replays_total 1\n",
            "outlast_saved_usd_total 2.000000000\n",
            "outlast_refusals_total{code=\"draining\"} 1\n",
            "outlast_queue_seconds_bucket{le=\"0.0025\"} 0\n",
            "outlast_queue_seconds_bucket{le=\"0.005\"} 1\n",
            "outlast_queue_seconds_bucket{le=\"45\"} 1\n",
            "outlast_queue_seconds_bucket{le=\"+Inf\"} 2\n",
            "outlast_queue_seconds_sum 60.003\n",
            "outlast_queue_seconds_count 2\n",
        ] {
            assert!(text.contains(wanted), "{wanted} in\n{text}");
        }
    }

    #[test]
    fn callers_cannot_fill_the_memory_with_names_of_models() {
        let metrics = Metrics::default();
        (0..2 * MOST_MODELS).for_each(|i| metrics.settled(call(&format!("m{i}"))));
        let counts = metrics.0.lock();
        assert_eq!(counts.models.len(), MOST_MODELS + 1);
        let other = &counts.models[&("openai".to_owned(), "(other)".to_owned())];
        assert_eq!(other.calls["done"], MOST_MODELS as u64);
    }
}
