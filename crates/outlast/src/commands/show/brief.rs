//! A run's story on one screen of 80 columns and 24 lines, with room left for a line above it and the prompt.

use super::{
    super::{budget, plan::Shown, prelude::*},
    Life, ServerNames, Story,
};
use crate::render::{
    next::is_unmetered,
    quote::word,
    story::{asks, items, last_words, lives, newest, waited},
    text::{is_whole, wrapped},
};

const WIDTH: usize = 80;

const HEIGHT: usize = 22;

/// Largest number of attempts that the brief form shows, the newest ones. The same for approvals, last
/// printed lines and lines about money.
const ATTEMPTS: usize = 5;

const APPROVALS: usize = 2;

const PRINTED: usize = 4;

/// Most characters of a tool's name before the command about it.
const TOOL: usize = 30;

const MONEY: usize = 3;

/// Returns the largest number of lines of a reason: `on_screen` on a screen, and any number in a pipe.
fn most(on_screen: usize) -> usize {
    if is_whole() { usize::MAX } else { on_screen }
}

impl Story {
    pub fn brief(&self, look: Look) -> String {
        let (head, cost, next) = (self.head(look), self.cost(), self.what_next());
        let room = HEIGHT.saturating_sub(head.len() + cost.len() + next.len() + 3);
        let mut out = head;
        let happened = format!("what happened: {}", lives(&self.attempts));
        for (title, lines) in
            [(happened.as_str(), self.happened(look, room)), ("what it cost", cost), ("what is next", next)]
        {
            if !lines.is_empty() {
                out.push(look.paint(Paint::Strong, title));
                out.extend(lines);
            }
        }
        out.join("\n") + "\n"
    }

    fn head(&self, look: Look) -> Vec<String> {
        let (run, spec) = (&self.view.run, &self.view.spec);
        let status = look.paint(look::of_status(run.status), run.status.name());
        let name = clean_line(spec.name.as_deref().unwrap_or_default(), 20);
        let mut out = vec![match name.is_empty() {
            true => format!("{}  {status}", look.paint(Paint::Strong, &clean_line(&short(&self.view), 60))),
            false => {
                let id = clean_line(&short(&self.view), 44);
                format!("{}  {status}  {id}", look.paint(Paint::Strong, &name))
            }
        }];
        let why = run.why().map(|why| why + &self.waits_since());
        out.extend(
            why.iter().flat_map(|why| wrapped(why, WIDTH - 2)).take(most(2)).map(|line| format!("  {line}")),
        );
        if let Some(command) = &spec.command {
            let argv: Vec<String> = command.argv.iter().map(|a| word(a)).collect();
            out.push(format!("  {}", exact_line(&argv.join(" "), WIDTH - 2)));
        }
        out.extend(self.forked().map(|forked| format!("  {}", clean_line(&forked, WIDTH - 2))));
        let servers =
            self.servers.iter().filter(|servers| !servers.left.is_empty()).filter_map(ServerNames::words);
        out.extend(servers.map(|words| format!("  {}", clean_line(&words, WIDTH - 2))));
        let began = self.moment(run.began_at.unwrap_or(run.created_at));
        out.push(match (run.ended_at, self.still_since) {
            (Some(at), _) => format!("  began {began}; ended {} ago", time::age(self.now.ms_since(at))),
            (None, Some(at)) => {
                format!("  began {began}; idle for {}", time::age(self.now.ms_since(at)))
            }
            (None, None) => format!("  began {began}"),
        });
        out
    }

    /// Tells the newest attempts, how the last one died, and who is waited for, in at most `room` lines.
    fn happened(&self, look: Look, room: usize) -> Vec<String> {
        let line = |text: &str, width: usize| clean_line(&format!("  {text}"), width);
        let mut out: Vec<String> = self.looping().map(|looping| line(&looping, WIDTH)).into_iter().collect();
        out.extend(outlast_view::job(&self.view).map(|job| format!("  {}", items(&job))));
        let mut asked: Vec<String> = Vec::new();
        for view in self.approvals.iter().take(APPROVALS) {
            let what = asks(&view.detail.tool, &String::from_utf8_lossy(&view.arguments));
            asked.push(line(&what, WIDTH));
        }
        asked.extend(self.doubted_tools());
        let left = |out: &[String]| room.saturating_sub(out.len() + asked.len());
        out.extend(self.newest_attempts(look, left(&out)));
        let waits = newest(&self.waits).iter().rev().take(left(&out)).rev();
        out.extend(waits.map(|wait| line(&waited(wait, self.now), WIDTH)));
        out.extend(self.last_death(left(&out)));
        let words = self.last_words.as_ref().map(|words| line(&last_words(words), WIDTH));
        out.extend(words.filter(|_| left(&out) > 0));
        let files = self.files.as_ref().map(|files| line(files, usize::MAX));
        out.extend(files.filter(|_| left(&out) > 0));
        let diverged = self.divergences().pop().map(|diverged| line(&diverged, WIDTH));
        out.extend(diverged.filter(|_| left(&out) > 0));
        out.extend(asked);
        out.truncate(room);
        out
    }

    /// Returns the lines about the newest tool calls whose outcome is unknown, with the command that a person
    /// may type.
    fn doubted_tools(&self) -> Vec<String> {
        let (id, place) = (&self.called, &self.place);
        // A command that is cut would name another run or store.
        let line = |(tool, seq): &(String, Seq)| {
            format!("  in doubt: {} → outlast {place}resolve {id} {seq}", clean_line(tool, TOOL))
        };
        self.journal.doubted.iter().rev().take(APPROVALS).map(line).collect()
    }

    fn newest_attempts(&self, look: Look, room: usize) -> Vec<String> {
        // The header, and the line about earlier ones.
        let lives = Life::fold(&self.attempts);
        let shown = lives.len().min(ATTEMPTS).min(room.saturating_sub(2));
        if shown == 0 {
            return Vec::new();
        }
        let offset = time::offset(self.now);
        let headed = format!("started ({offset})");
        let mut table = Table::new(["#", &headed, "up", ">calls", "how it ended"]);
        let (earlier, newest) = lives.split_at(lives.len() - shown);
        for life in newest {
            let a = life.last();
            let how = match &a.exit {
                Some(exit) if exit.lost => self.how(a),
                Some(exit) => exit.outage.as_ref().map_or_else(|| self.how(a), ToString::to_string),
                None => "it is up".into(),
            };
            table.row(vec![
                life.name().into(),
                time::cell(life.first().started_at, &offset).into(),
                time::about(life.up_ms(&self.drivers, self.now)).into(),
                life.0.iter().map(|a| self.paid_calls_of(a)).sum::<i64>().to_string().into(),
                Cell::painted(clean_line(&how, 30), if a.died() { Paint::Bad } else { Paint::Plain }),
            ]);
        }
        let mut out: Vec<String> = table.render(look, 2).lines().map(str::to_owned).collect();
        let earlier: Vec<_> = earlier.iter().flat_map(|life| life.0).collect();
        if !earlier.is_empty() {
            out.push(format!("  {} before these", some(earlier.len() as i64, "attempt")));
        }
        out
    }

    /// Returns the lines about what was open when the newest attempt died, and what it printed last; empty if
    /// it did not die.
    fn last_death(&self, room: usize) -> Vec<String> {
        let (Some(a), Some(evidence)) = (self.attempts.last(), self.evidence.last()) else {
            return Vec::new();
        };
        if !a.died() {
            return Vec::new();
        }
        let mut out = Vec::new();
        for e in evidence.open.iter().take(room.min(2)) {
            let (seq, kind, what) = (e.seq, e.kind.name(), clean_line(&entry::what(e), 40));
            out.push(format!("  in flight at its death: entry {seq}, {kind} {what}, {}", e.state.word()));
        }
        let refusal = self.journal.refusal.as_ref().filter(|_| room > out.len());
        out.extend(refusal.map(|said| clean_line(&format!("  {said}"), WIDTH)));
        let lines = evidence.lines.as_deref().unwrap_or_default();
        let count = self.lines.min(PRINTED).min(room.saturating_sub(out.len() + 1)).min(lines.len());
        if count > 0 {
            out.push("  it printed last:".into());
            let newest = &lines[lines.len() - count..];
            out.extend(newest.iter().map(|line| format!("    {}", clean_line(line, WIDTH - 4))));
        }
        out
    }

    fn cost(&self) -> Vec<String> {
        let e = &self.view.envelope;
        let of =
            e.limits[Unit::CostNanoUsd].map_or_else(String::new, |limit| format!(" of {} usd", usd(limit)));
        let paid = match e.spent[Unit::Calls] {
            0 => self.no_call(&of),
            _ => self.price(&of),
        };
        let mut out = wrapped(&paid, WIDTH - 2);
        out.extend(budget::left(&self.view, self.now));
        out.extend(self.plans.iter().flat_map(Shown::lines));
        let told = "unmetered|unpriced|estimated|replayed|re-bought|waited|in doubt|in flight|overrun|unread|unbacked";
        let told = self.money().into_iter().filter(|line| told.split('|').any(|word| line.starts_with(word)));
        out.extend(told.take(MONEY));
        out.iter().map(|line| format!("  {}", clean_line(line, WIDTH - 2))).collect()
    }

    /// Tells that no model was called, and what the run did instead.
    fn no_call(&self, of: &str) -> String {
        let so_far = if self.view.run.status.is_ended() { "" } else { " so far" };
        if let Some(why) = &self.journal.did.refused {
            return format!("no call was let through{so_far}; 0 usd{of}: {why}");
        }
        if self.journal.did.has_called {
            return format!("no call was answered{so_far}; 0 usd{of}");
        }
        match (is_unmetered(&self.view), self.journal.did.words()) {
            (true, None) => "NOTHING METERED: no call came through the proxy, and none was limited".into(),
            (true, Some(did)) => {
                format!("NOTHING METERED: no model's call came through the proxy; {did} recorded")
            }
            (false, None) => format!("no call{so_far}; 0 usd{of}"),
            (false, Some(did)) => format!("{did}{so_far}, and no model's call; 0 usd{of}"),
        }
    }

    fn what_next(&self) -> Vec<String> {
        let next = next_with(&self.view, &self.journal.did, true, &self.called);
        let mut out: Vec<String> = wrapped(&clean(&next.text), WIDTH - 2)
            .into_iter()
            .take(most(2))
            .map(|line| format!("  {line}"))
            .collect();
        out.extend(next.commands.iter().map(|c| format!("  → {c}")));
        out.push(format!("  → outlast show {} -v   tells all of it", self.called));
        out
    }
}
