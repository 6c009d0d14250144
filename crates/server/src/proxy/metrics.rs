//! Prometheus counters of this server, in memory. They begin at zero with the process, and their cost does not depend
//! on the number of runs.
//!
//! The crate prometheus-client is not used: it writes OpenMetrics, whose names and content type differ from version
//! 0.0.4, which scrapers of this server read.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt::{Display, Write as _},
    time::Duration,
};

use outlast_core::words::Usage;
use parking_lot::Mutex;

/// Largest number of models counted apart. Callers choose the names, so further ones are counted as `(other)`.
const MOST_MODELS: usize = 200;

/// Upper bounds of the histogram buckets, in seconds.
const BOUNDS: [f64; 12] = [0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 1.0, 5.0, 15.0, 45.0];

/// Declares the counters: each with its name and its help text for Prometheus.
macro_rules! counters {
    ($($counter:ident $name:literal $help:literal;)*) => {
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
        enum Counter {
            $($counter,)*
        }

        const COUNTERS: &[(Counter, &str, &str)] = &[$((Counter::$counter, $name, $help),)*];
    };
}

counters! {
    Calls "outlast_calls_total" "Calls settled, by how they closed; unknown is in doubt.";
    Tokens "outlast_tokens_total" "Tokens billed.";
    CallerCalls "outlast_caller_calls_total" "Calls settled, by the API token's name.";
    Cost "outlast_cost_usd_total" "Dollars billed.";
    ListPrice "outlast_list_price_usd_total" "List price of what subscriptions cover, not billed.";
    CallerCost "outlast_caller_cost_usd_total" "Dollars billed, by the API token's name.";
    CallerListPrice "outlast_caller_list_price_usd_total"
        "List price of what subscriptions cover, not billed, by the API token's name.";
    InDoubt "outlast_in_doubt_total" "Calls that closed unknown, charged at their reservation.";
    Replays "outlast_replays_total" "Recorded answers given again.";
    Saved "outlast_saved_usd_total" "Dollars that those answers had cost.";
    Refusals "outlast_refusals_total" "Requests refused, by code.";
    BusyWaits "outlast_busy_waits_total" "Calls of agents that waited: they brought nothing new.";
    Held "outlast_held_calls_total" "Calls held because their agent waited.";
    ReboughtTokens "outlast_resume_tax_tokens_total" "Tokens that a cache had and restarts bought again.";
    ReboughtCost "outlast_resume_tax_usd_total" "Dollars for those tokens.";
    Retries "outlast_upstream_retries_total" "Calls sent again after a refusal that passes, by upstream.";
}

/// Counters without labels, which are told from the beginning.
const WHOLE: [Counter; 7] = [
    Counter::InDoubt,
    Counter::Replays,
    Counter::Saved,
    Counter::BusyWaits,
    Counter::Held,
    Counter::ReboughtTokens,
    Counter::ReboughtCost,
];

/// Counters of one server.
#[derive(Default)]
pub struct Metrics(Mutex<Counts>);

#[derive(Default)]
struct Counts {
    /// Sums by labels; of a counter of dollars, in nano-dollars.
    sums: BTreeMap<Counter, BTreeMap<String, i128>>,
    /// Upstreams and models that are counted apart.
    models: BTreeSet<(String, String)>,
    queue: Histogram,
    commit: Histogram,
}

impl Counts {
    fn add(&mut self, counter: Counter, labels: &[(&str, &str)], n: impl Into<i128>) {
        let labels = if labels.is_empty() { String::new() } else { self::labels(labels) };
        *self.sums.entry(counter).or_default().entry(labels).or_default() += n.into();
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
        // What somebody is billed, and the list price of what a subscription covers, are never one sum.
        let (billed, listed) = if call.is_listed { (0, call.cost_nano_usd) } else { (call.cost_nano_usd, 0) };
        if let Some(name) = call.caller {
            let by = [("caller", name)];
            counts.add(Counter::CallerCalls, &by, 1);
            counts.add(Counter::CallerCost, &by, billed);
            counts.add(Counter::CallerListPrice, &by, listed);
        }
        let named = (call.upstream.to_owned(), call.model.to_owned());
        let is_apart = counts.models.len() < MOST_MODELS || counts.models.contains(&named);
        let model = if is_apart { call.model } else { "(other)" };
        if is_apart {
            counts.models.insert(named);
        }
        let of = [("upstream", call.upstream), ("model", model)];
        let with = |name, value| [of[0], of[1], (name, value)];
        counts.add(Counter::Calls, &with("state", call.state), 1);
        counts.add(Counter::Tokens, &with("direction", "input"), call.usage.input_total());
        counts.add(Counter::Tokens, &with("direction", "output"), call.usage.output);
        counts.add(Counter::Cost, &of, billed);
        counts.add(Counter::ListPrice, &of, listed);
        counts.add(Counter::InDoubt, &[], u64::from(call.state == "unknown"));
    }

    /// Counts a replayed answer, and the cost that it saved.
    pub fn replayed(&self, saved_nano_usd: i64) {
        let mut counts = self.0.lock();
        counts.add(Counter::Replays, &[], 1);
        counts.add(Counter::Saved, &[], saved_nano_usd);
    }

    /// Counts a call that brings its agent nothing new.
    pub fn waited(&self) {
        self.0.lock().add(Counter::BusyWaits, &[], 1);
    }

    /// Counts a call that is held because its agent waits busily.
    pub fn held(&self) {
        self.0.lock().add(Counter::Held, &[], 1);
    }

    /// Counts what a restarted agent bought again.
    pub fn rebought(&self, tokens: u64, cost_nano_usd: i64) {
        let mut counts = self.0.lock();
        counts.add(Counter::ReboughtTokens, &[], tokens);
        counts.add(Counter::ReboughtCost, &[], cost_nano_usd);
    }

    /// Counts a refused request. `code` is the refusal's stable code.
    pub fn refused(&self, code: &str) {
        self.0.lock().add(Counter::Refusals, &[("code", code)], 1);
    }

    /// Counts a retry of a call to `upstream`.
    pub fn tried_again(&self, upstream: &str) {
        self.0.lock().add(Counter::Retries, &[("upstream", upstream)], 1);
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
        for (counter, name, help) in COUNTERS {
            family(&mut out, name, "counter", help);
            let none = WHOLE.contains(counter).then(|| (String::new(), 0)).into_iter().collect();
            for (labels, sum) in counts.sums.get(counter).unwrap_or(&none) {
                match name.contains("_usd_") {
                    true => line(&mut out, name, labels, dollars(*sum)),
                    false => line(&mut out, name, labels, sum),
                }
            }
        }
        counts.queue.write(&mut out, "outlast_queue_seconds", "From a call's arrival until it was sent.");
        counts.commit.write(&mut out, "outlast_commit_seconds", "Commits that a call waited for.");
        out
    }
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
        let text = metrics.text();
        let told = text.lines().filter(|line| line.starts_with("outlast_calls_total{"));
        assert_eq!(told.count(), MOST_MODELS + 1);
        let others = format!("{{upstream=\"openai\",model=\"(other)\",state=\"done\"}} {MOST_MODELS}\n");
        assert!(text.contains(&others), "{text}");
    }
}
