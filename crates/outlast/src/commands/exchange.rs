//! `outlast journal RUN ENTRY`: prints what an entry holds as a person reads it: a call's request and answer, as a
//! conversation; of any other entry its value. With `--grep`, the lines that hold a text, of one entry or of all.

use std::collections::HashSet;

use outlast_core::reads::called::called_now;
use outlast_server::{
    api::read::exchange::Exchange,
    dialect::conversation::{self, Turn},
};

use super::prelude::*;
use crate::{commands::journal::JournalArgs, render::talk};

/// Most characters of a line that `--grep` shows.
const WIDTH: usize = 200;

/// Prints the content of one entry. Errors: the run has no such entry.
pub fn one(store: &dyn Store, view: &RunView, args: &JournalArgs, seq: i64, page: &mut Page) -> Result {
    let run = view.run.no;
    let Some(found) = store.entry(run, Seq(seq))? else {
        let last = view.run.next_seq.0 - 1;
        return Err(CommandError::NoEntry { run: called(view), entry: seq, last }.into());
    };
    let exchange = Exchange::read(store, found)?;
    if args.raw {
        return print_raw(&exchange, page);
    }
    if page.look.json {
        let body = |body: &Option<Vec<u8>>| body.as_deref().map(json_or_text);
        let bodies = json!({ "request": body(&exchange.request), "answer": body(&exchange.answer) });
        return Ok(page.json(&with(view::Entry::new(&view.run.id, &exchange.entry), bodies))?);
    }
    let told = [gist::as_told(store, exchange.entry.clone())?];
    page.text(&entry::table(&told).render(page.look, 0))?;
    let before = args.diff.then(|| before(store, run, &exchange.entry)).transpose()?.flatten();
    let Some(before) = before else {
        if args.diff {
            page.line("no call before it has a request that is kept")?;
        }
        return print(&exchange, &asked(&exchange), page);
    };
    print(&exchange, &asked_since(&exchange, &before), page)
}

/// Prints the lines that hold `text`, ignoring case, each with its entry. `seq`: only in this entry. A request's line
/// that an earlier request has too is printed once.
pub fn grep(store: &dyn Store, view: &RunView, seq: Option<i64>, text: &str, page: &mut Page) -> Result {
    let id = &view.run.id;
    let lines = lines_with(store, view.run.no, seq, text).map(|line| Ok((id.clone(), line?)));
    print_lines(store, lines, Some(id), text, page)
}

/// Prints the lines that hold the text, of all runs, the newest run first.
pub fn grep_all(store: &dyn Store, text: &str, page: &mut Page) -> Result {
    let lines = runs::each(store, RunFilter::default()).flat_map(|view| {
        let (lines, error) = match view {
            Ok(view) => {
                let of_run = lines_with(store, view.run.no, None, text);
                (Some(of_run.map(move |line| Ok::<_, CliError>((view.run.id.clone(), line?)))), None)
            }
            Err(error) => (None, Some(Err(CliError::from(error)))),
        };
        lines.into_iter().flatten().chain(error)
    });
    print_lines(store, lines, None, text, page)
}

/// Prints lines that hold `text`: those of one run, or those of all runs, each below its run's name.
fn print_lines(
    store: &dyn Store,
    lines: impl Iterator<Item = Result<(RunId, Line)>>,
    of: Option<&RunId>,
    text: &str,
    page: &mut Page,
) -> Result {
    if page.look.json {
        let head = of.map(|run| ("run".to_owned(), run.as_str().into())).into_iter().collect();
        let lines = lines.map(|line| {
            let (run, line) = line?;
            let mut object = line.object();
            if of.is_none() {
                object["run"] = run.as_str().into();
            }
            Ok::<_, CliError>(object)
        });
        return page.json_list(head, "lines", lines, Map::new);
    }
    let mut last: Option<RunId> = None;
    for line in lines {
        let (run, line) = line?;
        if of.is_none() && last.as_ref() != Some(&run) {
            let name = called_now(store, &find::run(store, run.as_str())?)?;
            page.line(&page.look.paint(Paint::Strong, &name))?;
        }
        last = Some(run);
        line.print(page)?;
    }
    if last.is_none() {
        let which = if of.is_some() { "this" } else { "any" };
        page.line(&format!("nothing that is kept of {which} run holds {:?}", clean(text)))?;
    }
    Ok(())
}

/// Line of a request or an answer.
struct Line {
    seq: Seq,
    side: &'static str,
    text: String,
}

impl Line {
    fn object(&self) -> Value {
        json!({"seq": self.seq, "side": self.side, "line": self.text})
    }

    fn print(&self, page: &mut Page) -> Result {
        let place = page.look.paint(Paint::Faint, &format!("{:>5}  {:<7}", self.seq.0, self.side));
        Ok(page.line(&format!("{place}  {}", clean_line(&self.text, WIDTH)))?)
    }
}

/// Returns the lines of a run's requests and answers that hold the text, in small or capital letters. A line of a request
/// that an earlier one had, too, is not returned again.
fn lines_with<'s>(
    store: &'s dyn Store,
    run: RunNo,
    seq: Option<i64>,
    text: &str,
) -> impl Iterator<Item = Result<Line>> + use<'s> {
    let wanted = text.to_lowercase();
    let mut said: HashSet<String> = HashSet::new();
    let entries = entries::each(store, run)
        .filter(move |e| e.as_ref().map_or(true, |e| seq.is_none_or(|seq| e.seq.0 == seq)));
    let mut lines_of = move |entry: Result<Entry, store::Error>| -> Result<Vec<Line>> {
        let exchange = Exchange::read(store, entry?)?;
        let seq = exchange.entry.seq;
        let holds = |line: &String| line.to_lowercase().contains(&wanted);
        let asked = asked(&exchange).into_iter().filter(|line| holds(line) && said.insert(line.clone()));
        let (request, answer) = sides_of(&exchange);
        let sides = asked.map(|line| (request, line));
        let sides = sides.chain(answered(&exchange).into_iter().filter(holds).map(|line| (answer, line)));
        Ok(sides.map(|(side, line)| Line { seq, side, text: line.trim().to_owned() }).collect())
    };
    // One error stands for the lines of its entry.
    entries.flat_map(move |entry| match lines_of(entry) {
        Ok(lines) => lines.into_iter().map(Ok).collect(),
        Err(error) => vec![Err(error)],
    })
}

/// Returns the lines of the request, or the lines that describe the entry.
fn asked(exchange: &Exchange) -> Vec<String> {
    conversation_lines(&exchange.turns(), exchange.request.as_deref())
}

/// Returns the lines of the answer, or of the entry's value.
fn answered(exchange: &Exchange) -> Vec<String> {
    conversation_lines(&exchange.answered(), exchange.answer.as_deref())
}

/// Returns the lines of a conversation's turns; of what has none, those of its bytes.
fn conversation_lines(turns: &[Turn], bytes: Option<&[u8]>) -> Vec<String> {
    match turns {
        [] => bytes.map(whole).unwrap_or_default(),
        turns => turns.iter().flat_map(talk::lines).collect(),
    }
}

/// Returns the lines of those parts of the request that the request of `before` does not contain.
fn asked_since(exchange: &Exchange, before: &Exchange) -> Vec<String> {
    let (old, new) = (before.turns(), exchange.turns());
    let same = old.iter().zip(&new).take_while(|(a, b)| a == b).count();
    let mut lines = vec![format!("  {same} turns as in entry {}", before.entry.seq)];
    for (sign, turns) in [("-", &old[same..]), ("+", &new[same..])] {
        lines.extend(turns.iter().flat_map(talk::lines).map(|line| format!("{sign} {line}")));
    }
    lines
}

/// Returns the words for what an entry was asked with, and for what it holds.
fn sides_of(exchange: &Exchange) -> (&'static str, &'static str) {
    if exchange.is_call() { ("request", "answer") } else { ("about", "value") }
}

/// Prints an exchange, with the lines `asked` for its request.
fn print(exchange: &Exchange, asked: &[String], page: &mut Page) -> Result {
    let is_call = exchange.is_call();
    let (request, answer) = sides_of(exchange);
    match &exchange.request {
        Some(_) => {
            let title = format!("{request}{}", settings(exchange));
            page.line(&page.look.paint(Paint::Strong, &title))?;
        }
        None if is_call => page.line("the request is not kept (the run's `record` is not `all`)")?,
        None => {}
    }
    asked.iter().try_for_each(|line| page.line(line))?;
    match &exchange.answer {
        Some(_) => page.line(&page.look.paint(Paint::Strong, answer))?,
        None if is_call => page.line("there is no answer that is kept")?,
        None => {}
    }
    Ok(answered(exchange).iter().try_for_each(|line| page.line(line))?)
}

/// Returns the request's settings that are short, and the names of its tools, as text.
fn settings(exchange: &Exchange) -> String {
    let Some(body) = exchange.body() else { return String::new() };
    let short = |(key, value): (&String, &Value)| {
        (value.is_number() || value.is_boolean()).then(|| format!("{key} {value}"))
    };
    let mut words: Vec<String> = body.as_object().into_iter().flatten().filter_map(short).collect();
    let tools = conversation::tools(&body);
    words.extend((!tools.is_empty()).then(|| format!("tools: {}", tools.join(" "))));
    if words.is_empty() { String::new() } else { format!("  {}", clean_line(&words.join(", "), WIDTH)) }
}

/// Prints the stored bytes unchanged: the request's, then the answer's.
fn print_raw(exchange: &Exchange, page: &mut Page) -> Result {
    for bytes in [&exchange.request, &exchange.answer].into_iter().flatten() {
        page.bytes(bytes)?;
        if !bytes.ends_with(b"\n") {
            page.bytes(b"\n")?;
        }
    }
    Ok(())
}

/// Reads the newest call before `entry` whose request is kept, of the same attempt where there is one.
fn before(store: &dyn Store, run: RunNo, entry: &Entry) -> Result<Option<Exchange>> {
    let is_call = |e: &Result<Entry, store::Error>| e.as_ref().map_or(true, |e| e.kind == Kind::Call);
    let earlier = || entries::each_back(store, run, entry.seq).filter(is_call);
    let is_its = |e: &Result<Entry, store::Error>| e.as_ref().map_or(true, |e| e.attempt == entry.attempt);
    for call in earlier().filter(is_its).chain(earlier()) {
        let found = Exchange::read(store, call?)?;
        if found.request.is_some() {
            return Ok(Some(found));
        }
    }
    Ok(None)
}

/// Returns the lines of a body that is no conversation: of JSON its indented lines, of text its lines, of
/// anything else its size.
fn whole(bytes: &[u8]) -> Vec<String> {
    let text = match (serde_json::from_slice::<Value>(bytes), std::str::from_utf8(bytes)) {
        (Ok(value), _) => serde_json::to_string_pretty(&value).unwrap_or_default(),
        (_, Ok(text)) => text.to_owned(),
        _ => format!("[{}]", talk::size(bytes.len())),
    };
    clean(&text).lines().map(|line| format!("  {line}")).collect()
}
