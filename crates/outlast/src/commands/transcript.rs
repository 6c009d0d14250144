//! `outlast export RUN --transcript`: a run's conversations as people read them, in Markdown or, with `--json`, in JSON.
//!
//! Conversations are read off the recorded requests and answers, whatever the agent was. A conversation is told once, as its last
//! call had it, with that call's answer.

use outlast_server::{
    api::read::exchange::{self, Exchange},
    dialect::{
        conversation::{Part, Turn},
        prompt::Prompt,
    },
};

use super::prelude::*;

/// Most newest calls among which conversations are looked for.
const CALLS: usize = 5000;

/// Conversation with an LLM, as its last call sent and received it.
struct Conversation {
    last: Entry,
    calls: usize,
    turns: Vec<Turn>,
}

/// Prints the conversations of a run, in the order in which they ended, as Markdown or JSON.
pub fn export(store: &dyn Store, run: &str, page: &mut Page) -> Result {
    let view = find::run(store, run)?;
    let found = conversations(store, entries::each_back(store, view.run.no, view.run.next_seq))?;
    if page.look.json {
        let told: Vec<Value> = found.iter().map(Conversation::object).collect();
        return Ok(page.json(&json!({ "run": view.run.id, "conversations": told }))?);
    }
    page.line(&format!("# {}", one_line(view.spec.name.as_deref().unwrap_or(view.run.id.as_str()))))?;
    if found.is_empty() {
        return Ok(page.line("\nNo request is kept.")?);
    }
    for one in &found {
        page.text(&one.markdown())?;
    }
    Ok(())
}

/// Finds the conversations of a run, newest calls first: what a call's request begins with, an earlier one has said.
fn conversations(
    store: &dyn Store,
    newest: impl Iterator<Item = Result<Entry, store::Error>>,
) -> Result<Vec<Conversation>> {
    let is_done = |e: &Entry| e.kind == Kind::Call && e.state == State::Done;
    let mut found: Vec<(Prompt, Conversation)> = Vec::new();
    for entry in newest.filter(|e| e.as_ref().map_or(true, is_done)).take(CALLS) {
        let exchange = Exchange::read(store, entry?)?;
        let Some(body) = exchange.body() else { continue };
        let prompt = Prompt::read(&body);
        let turns = exchange.turns();
        // A later request that still holds the turns of this one tells it too. A shorter one was begun anew.
        let known = found
            .iter_mut()
            .find(|(later, known)| later.continues(&prompt) && known.turns.len() >= turns.len());
        match known {
            Some((_, known)) => known.calls += 1,
            None => {
                let turns = turns.into_iter().chain(exchange.answered()).collect();
                found.push((prompt, Conversation { last: exchange.entry, calls: 1, turns }));
            }
        }
    }
    found.reverse();
    Ok(found.into_iter().map(|(_, conversation)| conversation).collect())
}

impl Conversation {
    fn model(&self) -> &str {
        self.last.call.as_ref().map_or("", |call| call.model.as_str())
    }

    fn object(&self) -> Value {
        json!({
            "model": self.model(),
            "calls": self.calls,
            "last": self.last.seq,
            "at": time::rfc3339(self.last.opened_at),
            "turns": self.turns.iter().map(exchange::turn).collect::<Vec<_>>(),
        })
    }

    fn markdown(&self) -> String {
        let (calls, at) = (some(self.calls as i64, "call"), time::rfc3339(self.last.opened_at));
        let mut out = format!("\n## {}, {calls}, the last at {at}\n", one_line(self.model()));
        self.turns.iter().for_each(|turn| out.push_str(&markdown(turn)));
        out
    }
}

fn markdown(turn: &Turn) -> String {
    let mut out = format!("\n### {}\n", one_line(&turn.role));
    for part in &turn.parts {
        let text = match part {
            Part::Text(text) => format!("\n{}\n", clean(text).trim_end()),
            Part::Thinking(text) => format!("\n*Thinking:*\n\n{}\n", fenced(text)),
            Part::Call(call) | Part::Served(call) => {
                format!("\n**{}**\n\n{}\n", one_line(&call.name), fenced(&call.input))
            }
            Part::Result(result) => format!("\n*Result:*\n\n{}\n", fenced(&result.text)),
            Part::Other { what, bytes } => format!("\n*{}, {bytes} bytes*\n", one_line(what)),
        };
        out.push_str(&text);
    }
    out
}

/// Sets a text between fences longer than any run of backticks in it, so that it cannot end its block.
fn fenced(text: &str) -> String {
    let text = clean(text);
    let longest = text.split(|c| c != '`').map(str::len).max().unwrap_or(0);
    let fence = "`".repeat(longest.max(2) + 1);
    format!("{fence}\n{}\n{fence}", text.trim_end())
}

fn one_line(text: &str) -> String {
    clean(text).replace('\n', " ")
}

#[cfg(test)]
mod tests {
    use outlast_server::dialect::conversation;

    use super::*;
    use crate::render::talk;

    /// Every kind of turn of every dialect, with the table that the reader of conversations is held to.
    #[test]
    fn every_kind_of_turn_is_shown_in_the_journal_and_in_the_transcript() {
        let kinds = include_str!("../../../server/src/dialect/conversation/kinds.json");
        let kinds: Vec<(String, String, Value, Vec<String>)> = serde_json::from_str(kinds).unwrap();
        for (dialect, side, body, _) in kinds {
            let turns = match side.as_str() {
                "request" => conversation::request(&body),
                _ => conversation::answer(body.to_string().as_bytes()),
            };
            for turn in turns {
                let (journal, transcript) = (talk::lines(&turn).join("\n"), markdown(&turn));
                for part in &turn.parts {
                    let wanted = match part {
                        Part::Text(text) | Part::Thinking(text) => vec![text.as_str()],
                        Part::Call(call) | Part::Served(call) => vec![call.name.as_str(), &call.input],
                        Part::Result(result) => result.text.lines().collect(),
                        Part::Other { what, .. } => vec![what.as_str()],
                    };
                    for text in wanted {
                        assert!(journal.contains(text), "{dialect}: {text:?} in {journal}");
                        assert!(transcript.contains(text), "{dialect}: {text:?} in {transcript}");
                    }
                }
            }
        }
    }

    #[test]
    fn a_text_with_fences_of_its_own_stays_one_block() {
        assert_eq!(fenced("a"), "```\na\n```");
        assert_eq!(fenced("```\nx\n````\n"), "`````\n```\nx\n````\n`````");
    }
}
