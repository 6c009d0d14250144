//! All of a run's story, for `outlast show -v`.

use super::{
    super::{budget, prelude::*},
    ENTRIES, Life, Story,
};
use crate::{
    agent::servers::ServerNames,
    render::{
        approval as shown_approval,
        quote::word,
        story::{lives, waited},
    },
};

/// Number of newest attempts that are shown to people; JSON has all.
const ATTEMPTS: usize = 12;

/// Most characters of the line about a tool call.
const TOOL: usize = 160;

/// Number of newest attempts that died whose end is described.
const DEATHS: usize = 3;

impl Story {
    pub fn full(&self, look: Look) -> String {
        let next = next_with(&self.view, &self.journal.did, true, &self.called);
        let sections = [
            self.header(look),
            titled(look, "budget", &budget::text(&self.view, self.now, look)),
            titled(look, "waits for a decision", &self.approvals_text(look)),
            titled(look, &lives(&self.attempts), &self.attempts_text(look)),
            titled(look, "waits", &lines(&self.waits())),
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
        if let Some(why) = run.why() {
            out.push_str(&format!("  {}{}\n", clean(&why).replace('\n', "\n  "), self.waits_since()));
        }
        let mut facts: Vec<(&str, String)> = vec![("created", self.moment(run.created_at))];
        facts.extend(run.ended_at.map(|ended| ("ended", self.moment(ended))));
        if let Some(command) = &spec.command {
            let argv: Vec<String> = command.argv.iter().map(|a| word(a)).collect();
            facts.push(("command", look::exact_line(&argv.join(" "), usize::MAX)));
            facts.push(("in", clean(&command.directory)));
        }
        facts.extend(self.looping().map(|l| ("loop", l)));
        if let Some(at) = run.wake_at {
            let at_what = if run.halt.is_some() { "a plan's ceiling" } else { "a usage limit" };
            facts.push(("sleeps", format!("until {}, at {at_what}", time::moment(at))));
        }
        if !spec.tags.is_empty() {
            let tags: Vec<String> = spec.tags.iter().map(|(k, v)| format!("{k}={v}")).collect();
            facts.push(("tags", clean(&tags.join(" "))));
        }
        if let Some((id, transcript)) = &self.session {
            let place = transcript.as_ref().map_or_else(String::new, |t| format!(", {}", t.display()));
            facts.push(("session", clean(&format!("{id}{place}"))));
        }
        facts.extend(self.servers.iter().filter_map(ServerNames::words).map(|s| ("tools of", clean(&s))));
        facts.extend(self.parent.clone().map(|p| ("child of", p.to_string())));
        facts.extend(self.forked().map(|forked| ("it is", clean(&forked))));
        facts.extend(spec.rules.as_ref().map(|r| ("policy", clean(&r.policy))));
        facts.extend(rules(run).map(|r| ("rules", r)));
        for (name, value) in facts {
            out.push_str(&format!("  {} {value}\n", look.paint(Paint::Faint, &format!("{name:<9}"))));
        }
        out
    }

    fn attempts_text(&self, look: Look) -> String {
        if self.attempts.is_empty() {
            return String::new();
        }
        let looping = self.view.run.turns.is_some();
        let offset = time::offset(self.now);
        let headed = |what: &str| format!("{what} ({offset})");
        let mut table = Table::new([
            "#",
            if looping { "iteration" } else { "label" },
            &headed("started"),
            &headed("ended"),
            ">up",
            ">calls",
            "how",
        ]);
        let lives = Life::fold(&self.attempts);
        let earlier = lives.len().saturating_sub(ATTEMPTS);
        for life in &lives[earlier..] {
            let a = life.last();
            table.row(vec![
                life.name().into(),
                // Attempts of a supervised run have no labels.
                match looping {
                    true => (a.iteration + 1).to_string().into(),
                    false => a.label.clone().unwrap_or_default().into(),
                },
                time::cell(life.first().started_at, &offset).into(),
                a.ended_at.map(|at| time::cell(at, &offset)).unwrap_or_default().into(),
                time::about(life.up_ms(&self.drivers, self.now)).into(),
                life.0.iter().map(|a| self.paid_calls_of(a)).sum::<i64>().to_string().into(),
                Cell::painted(self.how(a), if a.died() { Paint::Bad } else { Paint::Plain }),
            ]);
        }
        let mut out = table.render(look, 2);
        let earlier: usize = lives[..earlier].iter().map(|life| life.0.len()).sum();
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
            .map(|(a, e)| e.text(a, &self.how(a), self.paid_calls_of(a), self.lines))
            .collect();
        let all = self.attempts.iter().filter(|a| a.died()).count();
        if all > told.len() {
            told.push(format!("  {} before these\n", some((all - told.len()) as i64, "death")));
        }
        told.reverse();
        told.concat()
    }

    fn approvals_text(&self, look: Look) -> String {
        let told = self.approvals.iter().map(|v| shown_approval::text(v, self.now, look));
        told.flat_map(|text| text.lines().map(|line| format!("  {line}\n")).collect::<Vec<_>>()).collect()
    }

    /// Tells the newest waits.
    fn waits(&self) -> Vec<String> {
        let newest = self.waits[self.waits.len().saturating_sub(ATTEMPTS)..].iter();
        newest.map(|wait| clean(&waited(wait, self.now)).replace('\n', " ")).collect()
    }

    fn tools(&self) -> Vec<String> {
        self.tools.iter().map(|tool| look::clean_line(tool.line(), TOOL)).collect()
    }

    pub(super) fn divergences(&self) -> Vec<String> {
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
        match self.journal.count {
            n if n > ENTRIES => format!("last {ENTRIES} of {n} entries"),
            _ => "entries".into(),
        }
    }

    fn entries_text(&self, look: Look) -> String {
        // Copies of an agent's session may be all that there is.
        match self.journal.newest_work.is_empty() {
            true => String::new(),
            false => entry::table(&self.journal.newest_work).render(look, 2),
        }
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
