//! `outlast show RUN`: tells the run's story: status and reason, budget, how its attempts ended, what was paid,
//! replayed and lost, and what is next.

use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
};

use outlast_core::{
    envelope::unit::Unit,
    journal::{
        Entry, Kind, State,
        approval::{self},
    },
    reads,
    run::{Run, attempt::Attempt, instance::Instance},
    store::{RunView, Store, filter::ApprovalFilter as Filter},
    words::id::{AttemptNo, Micros, RunId},
};
use serde_json::{Map, Value, json};

use super::{budget, evidence::Evidence, journal};
use crate::{
    agent::{self, session},
    cli::ShowArgs,
    loops::task_context::quote,
    program::{error::CliError, find, untaken::Untaken},
    render::{
        amount::{put_money, some, usd},
        approval as shown_approval, entry, exit,
        look::{self, Look, Page, Paint, clean},
        next::next,
        table::{Cell, Side, Table},
        time, tool,
    },
};

/// Numbers of newest attempts and entries that are shown to people; JSON has all attempts.
const ATTEMPTS: usize = 12;
const ENTRIES: usize = 6;

/// Most characters of a tool call's line.
const TOOL: usize = 160;

/// Number of dead attempts whose end is described.
const DEATHS: usize = 3;

/// Prints a run's story. `logs` returns the directory of a run's logs.
pub fn show(
    store: &dyn Store,
    logs: &dyn Fn(&RunId) -> Option<PathBuf>,
    args: &ShowArgs,
    page: &mut Page,
) -> Result<(), CliError> {
    let view = find::run(store, &args.run)?;
    let logs = logs(&view.run.id);
    let story = Story::gather(store, view, logs.as_deref(), args.lines)?;
    if page.look.json {
        return Ok(page.json(&story.object())?);
    }
    let look = page.look;
    Ok(page.text(&story.text(look))?)
}

/// Everything that the story of a run is told from.
struct Story {
    view: RunView,
    parent: Option<String>,
    attempts: Vec<Attempt>,
    /// Instance that drives each open attempt.
    drivers: BTreeMap<AttemptNo, Instance>,
    entries: Vec<Entry>,
    calls: Calls,
    /// Evidence for each attempt, in the order of `attempts`.
    evidence: Vec<Evidence>,
    /// Number of log lines that are shown to people.
    lines: usize,
    /// Recorded answers that the newest attempt has not asked for.
    untaken: Untaken,
    /// Session id of a CLI agent, and the path of its transcript.
    session: Option<(String, Option<PathBuf>)>,
    /// Approvals that wait for a decision.
    approvals: Vec<reads::approvals::View>,
    /// Newest tool calls.
    tools: Vec<tool::Told>,
    now: Micros,
}

/// Totals over the run's calls.
#[derive(Clone, Debug, Default)]
struct Calls {
    by_state: BTreeMap<State, i64>,
    by_attempt: BTreeMap<AttemptNo, i64>,
    doubt_count: i64,
    failed_nano_usd: i64,
    /// Failed calls that were lost and are charged as their retry.
    lost: i64,
    estimated: i64,
    /// Tries beyond the first of each call.
    tried_again: i64,
    overrun_nano_usd: i64,
    unbacked_nano_usd: i64,
}

impl Calls {
    fn of(entries: &[Entry]) -> Calls {
        let mut calls = Calls::default();
        for e in entries.iter().filter(|e| e.kind == Kind::Call) {
            *calls.by_state.entry(e.state).or_default() += 1;
            *calls.by_attempt.entry(e.attempt).or_default() += 1;
            calls.doubt_count += i64::from(e.is_lost());
            calls.unbacked_nano_usd = calls.unbacked_nano_usd.saturating_add(e.unbacked().cost());
            let Some(call) = &e.call else { continue };
            if e.state == State::Failed {
                calls.failed_nano_usd += e.spent.cost();
                calls.lost += i64::from(call.correction.is_some() && e.retried_by.is_some());
            }
            calls.estimated += i64::from(call.estimated);
            calls.tried_again += i64::try_from(call.tries.len()).unwrap_or(i64::MAX);
            calls.overrun_nano_usd += call.overrun_nano_usd;
        }
        calls
    }
}

/// Reads the run's pending approvals.
fn pending(store: &dyn Store, run: &Run) -> Result<Vec<reads::approvals::View>, CliError> {
    if run.approvals.as_ref().is_none_or(|a| a.is_empty()) {
        return Ok(Vec::new());
    }
    let filter = Filter { run: Some(run.no), open: true, limit: approval::MOST_PENDING };
    Ok(reads::approvals::list(store, &filter, Some(approval::Status::Pending))?)
}

impl Story {
    fn gather(
        store: &dyn Store,
        view: RunView,
        logs: Option<&Path>,
        lines: usize,
    ) -> Result<Story, CliError> {
        let no = view.run.no;
        let attempts = store.attempts(no)?;
        let mut drivers = BTreeMap::new();
        for a in attempts.iter().filter(|a| a.is_open()) {
            if let Some(instance) = a.instance.map(|i| store.instance(i)).transpose()?.flatten() {
                drivers.insert(a.no, instance);
            }
        }
        let parent = view.run.parent.map(|p| store.run(p)).transpose()?.flatten();
        let entries = journal::all(store, no)?;
        let evidence = attempts.iter().map(|a| Evidence::of(a, &entries, logs));
        Ok(Story {
            evidence: evidence.collect::<Result<_, _>>()?,
            lines,
            parent: parent.map(|p| p.run.id.to_string()),
            drivers,
            session: session::find(store, no, &session::key(None, view.run.iteration))?
                .map(|s| (s.id.clone(), agent::transcript_of(&s.id))),
            approvals: pending(store, &view.run)?,
            tools: tool::newest(store, no, &entries, ENTRIES)?,
            untaken: attempts.last().map(|a| Untaken::of(a, &entries)).unwrap_or_default(),
            calls: Calls::of(&entries),
            attempts,
            entries,
            now: store.now()?,
            view,
        })
    }

    fn text(&self, look: Look) -> String {
        let next = next(&self.view);
        let sections = [
            self.header(look),
            titled(look, "budget", &budget::text(&self.view, self.now, look)),
            titled(look, "waits for a decision", &self.approvals_text(look)),
            titled(look, "attempts", &self.attempts_text(look)),
            titled(look, "deaths", &self.deaths()),
            titled(look, "money", &lines(&self.money())),
            titled(look, "tools", &lines(&self.tools())),
            titled(look, "divergence", &lines(&self.divergences())),
            titled(look, &self.entries_title(), &self.entries_text(look)),
            titled(look, "next", &format!("  {}\n{}", clean(&next.text), budget::commands(&next))),
        ];
        let told: Vec<String> = sections.into_iter().filter(|s| !s.is_empty()).collect();
        told.join("\n")
    }

    fn header(&self, look: Look) -> String {
        let (run, spec) = (&self.view.run, &self.view.spec);
        let mut out = look.paint(Paint::Strong, run.id.as_str());
        if let Some(name) = &spec.name {
            out.push_str(&format!("  {}", clean(name).replace('\n', " ")));
        }
        out.push_str(&format!("  {}\n", look.paint(look::of_status(run.status), run.status.name())));
        if let Some(halt) = &run.halt {
            let since = run.awaited_outage().map(|(_, at)| format!(" since {}", self.moment(at)));
            out.push_str(&format!("  {}{}\n", halt.message(), since.unwrap_or_default()));
        }
        if let Some(error) = &run.error {
            out.push_str(&format!("  {}\n", clean(error).replace('\n', "\n  ")));
        }
        let mut facts: Vec<(&str, String)> = vec![("created", self.moment(run.created_at))];
        if let Some(ended) = run.ended_at {
            facts.push(("ended", self.moment(ended)));
        }
        if let Some(command) = &spec.command {
            let argv: Vec<String> = command.argv.iter().map(|a| as_typed(a)).collect();
            facts.push(("command", look::exact_line(&argv.join(" "), usize::MAX)));
            facts.push(("in", clean(&command.directory)));
        }
        facts.extend(self.looping().map(|l| ("loop", l)));
        if let Some(at) = run.wake_at {
            facts.push(("sleeps", format!("until {} UTC, at a usage limit", time::utc(at))));
        }
        if !spec.tags.is_empty() {
            let tags: Vec<String> = spec.tags.iter().map(|(k, v)| format!("{k}={v}")).collect();
            facts.push(("tags", clean(&tags.join(" "))));
        }
        if let Some((id, transcript)) = &self.session {
            let place = transcript.as_ref().map_or_else(String::new, |t| format!(", {}", t.display()));
            facts.push(("session", clean(&format!("{id}{place}"))));
        }
        facts.extend(self.parent.clone().map(|p| ("child of", p)));
        facts.extend(spec.rules.as_ref().map(|r| ("policy", clean(&r.policy))));
        facts.extend(rules(run).map(|r| ("rules", r)));
        for (name, value) in facts {
            out.push_str(&format!("  {} {value}\n", look.paint(Paint::Faint, &format!("{name:<9}"))));
        }
        out
    }

    /// Formats how many iterations are finished and what ends the loop; `None` if the run is no loop.
    fn looping(&self) -> Option<String> {
        let (looping, turns) = (self.view.spec.looping()?, self.view.run.turns.as_deref()?);
        let finished = some(turns.finished, "iteration");
        let mut parts = vec![match looping.max_iterations {
            Some(max) => format!("{finished} of at most {max} finished"),
            None => format!("{finished} finished"),
        }];
        parts.extend(looping.until.as_ref().map(|until| format!("until {}", as_typed(until))));
        parts.extend(looping.input.as_ref().map(|input| format!("each reads {}", as_typed(input))));
        if turns.unchanged > 0 {
            parts.push(format!("the last {} changed nothing", turns.unchanged));
        }
        Some(clean(&parts.join(", ")).replace('\n', "\u{fffd}"))
    }

    fn moment(&self, at: Micros) -> String {
        format!("{} UTC, {} ago", time::utc(at), time::age(self.now.ms_since(at)))
    }

    fn attempts_text(&self, look: Look) -> String {
        if self.attempts.is_empty() {
            return String::new();
        }
        let looping = self.view.run.turns.is_some();
        let mut table = Table::new(&[
            ("#", Side::Left),
            (if looping { "iteration" } else { "label" }, Side::Left),
            ("started (UTC)", Side::Left),
            ("ended (UTC)", Side::Left),
            ("up", Side::Right),
            ("calls", Side::Right),
            ("how", Side::Left),
        ]);
        let earlier = self.attempts.len().saturating_sub(ATTEMPTS);
        for a in &self.attempts[earlier..] {
            table.row(vec![
                format!("@{}", a.no.0).into(),
                // Attempts of a supervised run have no labels.
                match looping {
                    true => (a.iteration + 1).to_string().into(),
                    false => a.label.clone().unwrap_or_default().into(),
                },
                time::utc(a.started_at).into(),
                a.ended_at.map(time::utc).unwrap_or_default().into(),
                time::span(a.ended_at.unwrap_or(self.now).ms_since(a.started_at) / 1000 * 1000).into(),
                self.calls_of(a).to_string().into(),
                Cell::painted(self.how(a), if a.died() { Paint::Bad } else { Paint::Plain }),
            ]);
        }
        let mut out = table.render(look, 2);
        if earlier > 0 {
            out.push_str(&format!("  {} before these\n", some(earlier as i64, "attempt")));
        }
        out
    }

    /// Describes the newest attempts that died, with their evidence.
    fn deaths(&self) -> String {
        let died = self.attempts.iter().zip(&self.evidence).filter(|(a, _)| a.died());
        let mut told: Vec<String> = died
            .rev()
            .take(DEATHS)
            .map(|(a, e)| e.text(a, &self.how(a), self.calls_of(a), self.lines))
            .collect();
        let all = self.attempts.iter().filter(|a| a.died()).count();
        if all > told.len() {
            told.push(format!("  {} before these\n", some((all - told.len()) as i64, "death")));
        }
        told.reverse();
        told.concat()
    }

    fn calls_of(&self, a: &Attempt) -> i64 {
        self.calls.by_attempt.get(&a.no).copied().unwrap_or(0)
    }

    fn how(&self, a: &Attempt) -> String {
        match (&a.exit, self.drivers.get(&a.no)) {
            (Some(e), _) if e.lost && crate::loops::is_loop(&self.view) => "its shell was killed".into(),
            (Some(e), _) => exit::words(e),
            (None, Some(i)) => format!("open, driven by pid {} on {}", i.identity.pid, i.identity.host),
            (None, None) => "open".into(),
        }
    }

    /// Returns the lines about money; a line without an amount or count is left out.
    fn money(&self) -> Vec<String> {
        let (run, e) = (&self.view.run, &self.view.envelope);
        let mut out = Vec::new();
        let state = |s: State| self.calls.by_state.get(&s).copied().unwrap_or(0);
        if e.spent[Unit::Calls] > 0 {
            let (paid, tokens) = (usd(e.spent.cost()), some(e.spent.tokens(), "token"));
            out.push(format!("paid      {paid} usd for {}, {tokens}", some(e.spent[Unit::Calls], "call")));
        }
        if state(State::Failed) > 0 {
            let lost = match self.calls.lost {
                0 => String::new(),
                1 => ", 1 of them lost and charged as its retry".into(),
                n => format!(", {n} of them lost and charged as their retries"),
            };
            let (count, cost) = (some(state(State::Failed), "call"), usd(self.calls.failed_nano_usd));
            out.push(format!("failed    {cost} usd for {count}{lost}"));
        }
        if run.replayed > 0 {
            let saved = usd(run.saved_nano_usd);
            out.push(format!("replayed  {}: {saved} usd not paid again", some(run.replayed, "answer")));
        }
        if self.untaken.answers > 0 {
            out.push(format!("untaken   {}, not asked for again so far", self.untaken));
        }
        if self.calls.doubt_count > 0 || e.doubt.cost() > 0 {
            let count = some(self.calls.doubt_count, "call");
            out.push(format!("in doubt  {} usd held for {count} of unknown outcome", usd(e.doubt.cost())));
        }
        let live = e.live(Unit::CostNanoUsd);
        if state(State::Open) > 0 {
            out.push(format!(
                "in flight {} usd reserved for {}",
                usd(live),
                some(state(State::Open), "call")
            ));
        }
        if self.calls.estimated > 0 {
            let count = some(self.calls.estimated, "call");
            out.push(format!("estimated {count} without usage, charged at the reservation"));
        }
        if self.calls.tried_again > 0 {
            let count = some(self.calls.tried_again, "time");
            out.push(format!("retried   {count}: the upstream refused for the moment, or was not reached"));
        }
        if self.calls.overrun_nano_usd > 0 {
            let over = usd(self.calls.overrun_nano_usd);
            out.push(format!("overrun   {over} usd: billed beyond the bound, recorded in full"));
        }
        if self.calls.unbacked_nano_usd > 0 {
            let unbacked = usd(self.calls.unbacked_nano_usd);
            out.push(format!(
                "unbacked  {unbacked} usd: may be billed for lost tries, and no budget holds it"
            ));
        }
        out
    }

    fn approvals_text(&self, look: Look) -> String {
        let told = self.approvals.iter().map(|v| shown_approval::text(v, self.now, look));
        told.flat_map(|text| text.lines().map(|line| format!("  {line}\n")).collect::<Vec<_>>()).collect()
    }

    fn tools(&self) -> Vec<String> {
        self.tools.iter().map(|tool| look::clean_line(&tool.line(), TOOL)).collect()
    }

    fn divergences(&self) -> Vec<String> {
        // An agent that keeps its own conversation always asks something new when it is started again.
        if self.session.is_some() {
            return Vec::new();
        }
        let told = |a: &Attempt| {
            let seq = a.diverged?;
            let untaken = some(a.diverged_untaken, "recorded answer");
            Some(format!("attempt @{} asked something new at entry {seq} while {untaken} were left", a.no))
        };
        self.attempts.iter().filter_map(told).collect()
    }

    fn entries_title(&self) -> String {
        match self.entries.len() {
            n if n > ENTRIES => format!("last {ENTRIES} of {n} entries"),
            _ => "entries".into(),
        }
    }

    fn entries_text(&self, look: Look) -> String {
        if self.entries.is_empty() {
            return String::new();
        }
        let from = self.entries.len().saturating_sub(ENTRIES);
        entry::table(&self.entries[from..]).render(look, 2)
    }

    fn object(&self) -> Value {
        let (run, spec, e) = (&self.view.run, &self.view.spec, &self.view.envelope);
        let id = run.id.as_str();
        let by_state: Map<String, Value> = State::ALL
            .into_iter()
            .map(|s| (s.name().into(), self.calls.by_state.get(&s).copied().unwrap_or(0).into()))
            .collect();
        let mut money = Map::new();
        put_money(&mut money, "paid", Some(e.spent.cost()));
        money.insert("replayed_answers".into(), run.replayed.into());
        put_money(&mut money, "saved", Some(run.saved_nano_usd));
        put_money(&mut money, "failed", Some(self.calls.failed_nano_usd));
        money.insert("lost_calls".into(), self.calls.lost.into());
        money.insert("untaken_answers".into(), self.untaken.answers.into());
        put_money(&mut money, "untaken", Some(self.untaken.cost_nano_usd));
        money.insert("in_doubt_calls".into(), self.calls.doubt_count.into());
        put_money(&mut money, "in_doubt", Some(e.doubt.cost()));
        put_money(&mut money, "in_flight", Some(e.live(Unit::CostNanoUsd)));
        money.insert("upstream_retries".into(), self.calls.tried_again.into());
        money.insert("estimated_calls".into(), self.calls.estimated.into());
        put_money(&mut money, "overrun", Some(self.calls.overrun_nano_usd));
        put_money(&mut money, "unbacked", Some(self.calls.unbacked_nano_usd));
        let from = self.entries.len().saturating_sub(ENTRIES);
        let mut object = json!({
            "run": id,
            "name": spec.name,
            "status": run.status.name(),
            "halt": run.halt.as_ref().map(|h| json!({
                "code": h.code,
                "unit": h.unit.map(Unit::name),
                "needs": h.needs,
                "free": h.free,
                "limit": h.limit,
                "in_doubt": h.doubt,
                "at": time::rfc3339(h.at),
                "message": h.message(),
            })),
            "error": run.error,
            "wake_at": run.wake_at.map(time::rfc3339),
            "loop": self.view.spec.looping().map(|l| json!({
                "max_iterations": l.max_iterations,
                "until": l.until,
                "stdin": l.input,
                "finished": run.turns.as_ref().map_or(0, |t| t.finished),
                "unchanged": run.turns.as_ref().map_or(0, |t| t.unchanged),
            })),
            "stop_requested": run.stop_requested,
            "tags": spec.tags,
            "command": spec.command.as_ref().map(|c| json!({"argv": c.argv, "directory": c.directory})),
            "parent": self.parent,
            "policy": run.policy,
            "rules": spec.rules,
            "created_at": time::rfc3339(run.created_at),
            "began_at": run.began_at.map(time::rfc3339),
            "ended_at": run.ended_at.map(time::rfc3339),
            "budget": budget::objects(&self.view, self.now),
            "attempts": self.attempts.iter().zip(&self.evidence).map(|(a, e)| self.attempt_object(a, e)).collect::<Vec<_>>(),
            "calls": by_state,
            "money": money,
            "pending_approvals": self.approvals.iter().map(shown_approval::json).collect::<Vec<_>>(),
            "entries": self.entries.len(),
            "last_entries": self.entries[from..].iter().map(|x| entry::json(id, x)).collect::<Vec<_>>(),
            "next": next(&self.view),
        });
        if let Some((id, transcript)) = &self.session {
            object["session"] = json!({"id": id, "transcript": transcript});
        }
        if !self.tools.is_empty() {
            object["tools"] = self.tools.iter().map(tool::Told::json).collect();
        }
        object
    }

    fn attempt_object(&self, a: &Attempt, evidence: &Evidence) -> Value {
        json!({
            "attempt": a.no,
            "slot": a.slot,
            "label": a.label,
            "iteration": a.iteration,
            "started_at": time::rfc3339(a.started_at),
            "ended_at": a.ended_at.map(time::rfc3339),
            "active_ms": a.active_ms,
            "calls": self.calls_of(a),
            "died": a.died(),
            "exit_code": a.exit.as_ref().and_then(|e| e.code),
            "signal": a.exit.as_ref().and_then(|e| e.signal),
            "for_provider": a.exit.as_ref().is_some_and(|e| e.for_provider),
            "at_limit": a.exit.as_ref().is_some_and(|e| e.at_limit),
            "oom": a.exit.as_ref().is_some_and(|e| e.oom),
            "lost": a.exit.as_ref().is_some_and(|e| e.lost),
            "how": self.how(a),
            "driver": self.drivers.get(&a.no).map(|i| json!({"pid": i.identity.pid, "host": i.identity.host})),
            "diverged_at": a.diverged,
            "diverged_untaken": a.diverged.map(|_| a.diverged_untaken),
            "cost_nano_usd": evidence.cost_nano_usd,
            "cost_usd": usd(evidence.cost_nano_usd),
            "wall_ms": a.ended_at.unwrap_or(self.now).ms_since(a.started_at),
            "open_at_end": evidence.open.iter().map(|e| e.seq).collect::<Vec<_>>(),
            "last_lines": evidence.lines,
        })
    }
}

/// Lists the fields of the run's policy that differ from the default; `None` if there are none.
fn rules(run: &Run) -> Option<String> {
    let usual = json!(outlast_core::run::Policy::default());
    let own = json!(run.policy);
    let differing: Vec<String> = own
        .as_object()?
        .iter()
        .filter(|(key, value)| usual.get(key.as_str()) != Some(value))
        .map(|(key, value)| {
            format!("{key}={}", value.as_str().map_or_else(|| value.to_string(), str::to_owned))
        })
        .collect();
    (!differing.is_empty()).then(|| differing.join(" "))
}

fn lines(lines: &[String]) -> String {
    lines.iter().map(|l| format!("  {l}\n")).collect()
}

fn titled(look: Look, title: &str, body: &str) -> String {
    if body.is_empty() { String::new() } else { format!("{}\n{body}", look.paint(Paint::Strong, title)) }
}

/// Quotes an argument for a shell if it needs quotes.
fn as_typed(argument: &str) -> String {
    let plain = |b: u8| b.is_ascii_alphanumeric() || b"-_=+./:,@%".contains(&b);
    if !argument.is_empty() && argument.bytes().all(plain) {
        return argument.to_owned();
    }
    quote::quoted(argument)
}
