//! Journal entries as lines for people.

use outlast_core::{
    call::Broken,
    envelope::{Amounts, unit::MOST_PER_CALL},
    journal::{ApprovalId, CallDetail, Entry, Kind, State},
    words::Micros,
};
use outlast_process::attach::client::size;

use super::{
    amount::{bill, usd},
    look::{Look, Paint, clean_line},
    table::{Cell, Table},
    time,
};

/// Columns of a journal table after the number and the time.
const COLUMNS: [&str; 7] = ["kind", "state", "what", ">tokens", ">usd", ">attempt", ""];

/// Returns the entries as a table.
pub fn table(entries: &[Entry]) -> Table {
    let offset = entries.last().map(|e| time::offset(e.opened_at)).unwrap_or_default();
    let mut table = head(&offset);
    entries.iter().for_each(|entry| table.row(cells(entry, &offset)));
    table
}

/// Returns a table for entries without a row. `offset`: the time zone that its times are in, unless they name another.
pub fn head(offset: &str) -> Table {
    let time = format!("time ({offset})");
    Table::new([">entry", &time].into_iter().chain(COLUMNS))
}

/// Formats one entry in columns of fixed widths, as a journal with `-f` prints it.
pub fn line(entry: &Entry, look: Look) -> String {
    let e = entry;
    let pad = |text: String, width: usize| format!("{text:<width$}");
    let mut out = format!("{:>5}  {}  {}  ", e.seq.0, time::moment(e.opened_at), pad(kind(e).into(), 10));
    out.push_str(&look.paint(paint(e.state), &pad(e.state.word().into(), 8)));
    out.push_str(&format!(
        "  {}  {:>13}  {:>12}  {:>4}",
        pad(clean_line(&what(e), 28), 28),
        tokens(e),
        cost(e),
        attempt(e)
    ));
    let marks = marks(e);
    if !marks.is_empty() {
        out.push_str(&format!("  {}", clean_line(&marks.join(", "), 100)));
    }
    out
}

/// Widths of a told entry's line without what it tells, and the least width for that.
const TOLD_REST: usize = 33;
/// Part of that behind the text: the cost and the attempt.
const TOLD_BEHIND: usize = 16;
const TOLD_LEAST: usize = 40;

/// Returns the line above [`told_line`]s. `at`: time by whose offset from UTC the hours are told.
pub fn told_head(look: Look, at: Micros) -> String {
    let (room, hours) = (told_room().unwrap_or_default(), time::offset(at));
    look.paint(Paint::Faint, &format!("entry  {hours:<8}  {:<room$}  {:>9}    @", "what", "usd"))
}

/// Formats an entry of a CLI agent by its gist: what was said and done, in a line of the terminal's width. In a pipe
/// nothing is cut.
pub fn told_line(e: &Entry, gist: Option<&str>, look: Look) -> String {
    let room = told_room();
    let mut marks = marks(e);
    // The gist of a call says what came of it.
    let subject = match gist {
        // It says what came of a call.
        Some(gist) => gist.to_owned(),
        None if e.kind == Kind::Call || e.state == State::Unknown => {
            format!("{} {}", what(e), e.state.word())
        }
        None => format!("{} {}", kind(e), what(e)),
    };
    marks.insert(0, subject);
    let (text, behind) = fitted(&marks.join(", "), &cost(e), &attempt(e), room);
    let paint = if e.state == State::Done { Paint::Plain } else { paint(e.state) };
    let (no, hours) = (e.seq.0, time::time_of_day(e.opened_at));
    format!("{no:>5}  {hours}  {}{behind}", look.paint(paint, &text)).trim_end().to_owned()
}

/// Cuts a text to its room, and returns it with what stands behind it. A cost that is wider than its column takes the room
/// of the text.
fn fitted(text: &str, cost: &str, attempt: &str, room: Option<usize>) -> (String, String) {
    let behind = format!("  {cost:>9}  {attempt:>3}");
    let room = room.map(|room| (room + TOLD_BEHIND).saturating_sub(behind.chars().count()));
    let text = clean_line(text, room.unwrap_or(usize::MAX));
    let pad = " ".repeat(room.map_or(0, |room| room.saturating_sub(text.chars().count())));
    (text, pad + &behind)
}

/// Returns the width for what an entry tells: what is left of the terminal's; `None` in a pipe.
fn told_room() -> Option<usize> {
    size().map(|size| usize::from(size.ws_col).saturating_sub(TOLD_REST).max(TOLD_LEAST))
}

/// Returns the row of an entry under [`head`].
pub fn cells(e: &Entry, offset: &str) -> Vec<Cell> {
    vec![
        e.seq.to_string().into(),
        time::cell(e.opened_at, offset).into(),
        kind(e).into(),
        Cell::painted(e.state.word(), paint(e.state)),
        what(e).into(),
        tokens(e).into(),
        cost(e).into(),
        attempt(e).into(),
        Cell::painted(marks(e).join(", "), Paint::Faint),
    ]
}

fn paint(state: State) -> Paint {
    match state {
        State::Open => Paint::Calm,
        State::Done => Paint::Good,
        State::Failed => Paint::Bad,
        State::Void => Paint::Faint,
        State::Unknown => Paint::Care,
    }
}

/// Returns the kind as people read it. An act is stored as a checkpoint.
fn kind(e: &Entry) -> &'static str {
    if e.act().is_some() { "act" } else { e.kind.name() }
}

/// Formats the number of the entry's attempt; empty for an act, which belongs to no attempt.
fn attempt(e: &Entry) -> String {
    if e.attempt.0 == 0 { String::new() } else { format!("@{}", e.attempt.0) }
}

/// Returns what the entry is about: a call's model, an approval's tool, else the key.
pub fn what(e: &Entry) -> String {
    if let Some((name, _)) = e.act() {
        // Limits are lowered by the same order, too.
        return if name == "raise" { "limits".into() } else { name.to_owned() };
    }
    match (&e.call, &e.approval) {
        (Some(call), _) => call.model.clone(),
        (_, Some(approval)) => approval.tool.clone(),
        _ => e.key.clone().unwrap_or_default(),
    }
}

/// Formats tokens as `1000+500` (input and output) if the usage is known, else the charged or held total.
fn tokens(e: &Entry) -> String {
    let Some(call) = &e.call else { return String::new() };
    match (&call.usage, e.held.tokens()) {
        (Some(usage), _) => format!("{}+{}", usage.input_total(), usage.output),
        (None, 0) => e.spent.tokens().to_string(),
        (None, held) => format!("≤{}", held + e.spent.tokens()),
    }
}

/// Formats the cost of a call. `≤` marks an amount that is still held because the cost is not known.
pub fn cost(e: &Entry) -> String {
    if e.kind != Kind::Call {
        return String::new();
    }
    let sign = if e.held.cost() > 0 { "≤" } else { "" };
    format!("{sign}{}", usd(e.held.cost() + e.spent.cost()))
}

/// Lists what is unusual about the entry, such as a replay.
fn marks(e: &Entry) -> Vec<String> {
    let mut marks = Vec::new();
    let call = e.call.as_deref();
    marks.extend(call.and_then(|c| c.retry_of).map(|of| format!("retry of {of}")));
    marks.extend(e.retried_by.map(|by| format!("retried by {by}")));
    marks.extend(e.replayed_to().map(|to| format!("replayed to @{to}")));
    if let Some((_, act)) = e.act() {
        marks.push(format!("by {}", act.by));
        marks.extend(act.about.clone());
    }
    let reset_by = e.item.as_ref().and_then(|item| item.reset_by.as_ref());
    marks.extend(reset_by.map(|by| format!("reset by {by}")));
    match e.step.as_deref() {
        Some(step) if step.resolved => marks.push("said by a person".into()),
        Some(step) if step.at_most_once && e.state == State::Open => marks.push("at most once".into()),
        _ => {}
    }
    if let Some(tool) = &e.tool {
        match e.state {
            State::Open if !tool.is_sent() => marks.push("not sent yet".into()),
            _ if tool.resolved => marks.push("said by a person".into()),
            _ => {}
        }
        marks.extend((tool.sends > 1).then(|| format!("sent {} times", tool.sends)));
    }
    if let Some(approval) = &e.approval {
        marks.push(ApprovalId { run: e.run, seq: e.seq }.to_string());
        marks.extend(match &approval.decision {
            Some(said) => {
                let (did, by) = (if said.approve { "approved" } else { "denied" }, &said.by);
                let way = said.way.as_ref().map_or_else(String::new, |way| format!(" ({way})"));
                Some(format!("{did} by {by}{way}"))
            }
            None if approval.blocked => Some("blocked".into()),
            None if e.state == State::Failed => Some("timeout".into()),
            None => None,
        });
    }
    let Some(call) = call else { return marks };
    let (overrun, unbacked) = (call.overrun(), e.unbacked());
    marks.extend(tries(call));
    marks.extend(call.clamped_to.map(|cap| format!("output limited to {cap} tokens")));
    marks.extend((call.waits > 0).then(|| format!("nothing new, {} in a row", call.waits)));
    marks.extend(call.estimated.then(|| "estimated".to_owned()));
    marks.extend(call.unpriced.as_ref().map(|what| format!("no known price: {what}")));
    for (what, amounts) in [("overrun", overrun), ("unbacked", unbacked)] {
        // A line has room for one of them: tokens of a model without a price.
        let told = if amounts.cost() > 0 { Amounts::of(amounts.cost(), 0) } else { amounts };
        marks.extend((!told.is_zero()).then(|| format!("{what} {}", bill(told))));
    }
    let is_capped = e.spent.cost().max(e.spent.tokens()) >= MOST_PER_CALL;
    marks.extend(is_capped.then(|| "bill beyond reason, capped".to_owned()));
    marks.extend(call.http_status.filter(|s| *s >= 400).map(|status| format!("http {status}")));
    marks.extend(call.error.as_ref().map(|error| match error == Broken::NoAnswer.code() {
        true => "sent, no answer: may be paid".to_owned(),
        false => error.clone(),
    }));
    marks
}

/// Describes earlier tries, as in `try 3, after 429, not reached`; `None` if there were none.
fn tries(call: &CallDetail) -> Option<String> {
    let each = |status: &Option<u16>| status.map_or_else(|| "not reached".to_owned(), |s| s.to_string());
    let before: Vec<String> = call.tries.iter().map(each).collect();
    let next = before.len() + 1;
    let waits = if call.resting { " to come" } else { "" };
    (!before.is_empty()).then(|| format!("try {next}{waits}, after {}", before.join(", ")))
}

#[cfg(test)]
mod tests {
    use super::*;

    // Bug: a line with a cost of ten characters was wrapped by a terminal. Cause: the room of a text was what nine leave.
    #[test]
    fn a_wide_cost_takes_the_room_of_the_text() {
        for (text, cost) in
            [("short", "0.01"), ("short", "0.02132425"), (&*"long ".repeat(20), "10.123456789")]
        {
            let (text, behind) = fitted(text, cost, "@1", Some(47));
            assert_eq!((text + &behind).chars().count(), 47 + TOLD_BEHIND, "{cost}");
        }
        assert_eq!(fitted("short", "1", "@1", None), ("short".into(), "          1   @1".into()));
    }

    #[test]
    fn tries_are_told_with_what_came_of_those_before() {
        let check = |statuses: &[Option<u16>], resting, wanted: Option<&str>| {
            let call = CallDetail { tries: statuses.to_vec(), resting, ..CallDetail::default() };
            assert_eq!(tries(&call).as_deref(), wanted);
        };
        check(&[], false, None);
        check(&[Some(429)], false, Some("try 2, after 429"));
        check(&[Some(503), None], true, Some("try 3 to come, after 503, not reached"));
    }
}
