//! The screen of `outlast watch`. It is drawn from what was read, and knows no store.

use outlast_core::reads::approvals::View;
use outlast_view::job;
use ratatui::{
    Frame,
    layout::{
        Constraint::{Fill, Length, Min},
        Layout, Rect,
    },
    style::{Color, Modifier, Style},
    text::{Line, Span, Text},
    widgets::{Cell, Paragraph, Row, Table, TableState, Wrap},
};

use super::{Look, Panel, Position, Watched};
use crate::{
    commands::{plan::Shown, prelude::*},
    render::{
        amount::beside,
        story::{asks, items, last_words, lives, newest, waited},
    },
};

const FAINT: Style = Style::new().fg(Color::DarkGray);
const STRONG: Style = Style::new().add_modifier(Modifier::BOLD);
const RED: Style = Style::new().fg(Color::Red);
const YELLOW: Style = Style::new().fg(Color::Yellow);
const BLUE: Style = Style::new().fg(Color::Blue);
const AT: Style = Style::new().add_modifier(Modifier::REVERSED);

/// Most attempts of a run that are shown.
const ATTEMPTS: usize = 5;

pub(super) fn draw(frame: &mut Frame, desk: &Position, seen: &Look, store: &str) {
    let [head, body, foot] = Layout::vertical([Length(1), Min(3), Length(1)]).areas(frame.area());
    frame.render_widget(heading(desk, seen, store, head.width), head);
    match (desk.place, &seen.run) {
        (Panel::Approvals, _) => approvals(frame, body, desk, seen),
        (Panel::Run(_), Some(watched)) => run(frame, body, watched, seen),
        (Panel::Run(_), None) => frame.render_widget(Line::styled("the run was removed", FAINT), body),
        (Panel::Runs, _) => runs(frame, body, desk, seen),
    }
    frame.render_widget(footing(desk), foot);
}

fn heading<'a>(desk: &Position, seen: &Look, store: &str, width: u16) -> Line<'a> {
    let waiting = seen.approvals.len();
    let title = match desk.place {
        Panel::Runs => format!("{} ", some(i64::try_from(seen.runs.len()).unwrap_or(0), "run")),
        Panel::Run(_) => "run ".into(),
        Panel::Approvals => "approvals ".into(),
    };
    let asks = match waiting {
        0 => Span::raw(""),
        n => Span::styled(format!(" {n} waiting for you (p) "), YELLOW.patch(STRONG)),
    };
    let room = usize::from(width).saturating_sub(title.len() + 40);
    Line::from(vec![
        Span::styled(" outlast ", AT),
        Span::styled(format!(" {title}"), STRONG),
        asks,
        Span::styled(format!(" {}", clean_line(store, room.max(10))), FAINT),
    ])
}

fn footing<'a>(desk: &Position) -> Line<'a> {
    if let Some(said) = &desk.said {
        return Line::styled(format!(" {}", clean_line(said, 200)), STRONG);
    }
    let keys = match desk.place {
        Panel::Runs => " ↑↓ choose   Enter opens   p approvals   q quits",
        Panel::Run(_) => " Esc back   p approvals   q quits",
        Panel::Approvals => " ↑↓ choose   a approves   d denies   Esc back   q quits",
    };
    Line::styled(keys, FAINT)
}

/// Returns a status as a sign and a word: a colour alone is not enough to tell it.
fn status<'a>(status: Status) -> Span<'a> {
    let (sign, colour) = match status {
        Status::Running => ("●", Color::Blue),
        Status::Waiting => ("◐", Color::Yellow),
        Status::Sleeping => ("☾", Color::DarkGray),
        Status::Interrupted => ("‖", Color::Yellow),
        Status::Halted => ("■", Color::Red),
        Status::Completed => ("✓", Color::Green),
        Status::Failed => ("✗", Color::Red),
        Status::Cancelled => ("–", Color::DarkGray),
    };
    Span::styled(format!("{sign} {}", status.name()), Style::new().fg(colour))
}

fn state<'a>(state: State) -> Span<'a> {
    let (sign, colour) = match state {
        State::Open => ("○", Color::Blue),
        State::Done => ("✓", Color::Green),
        State::Failed => ("✗", Color::Red),
        State::Void => ("–", Color::DarkGray),
        State::Unknown => ("?", Color::Yellow),
    };
    Span::styled(format!("{sign} {}", state.word()), Style::new().fg(colour))
}

/// Returns the spend against a limit, as a bar of `width` cells and in words.
fn meter<'a>(view: &RunView, width: usize) -> Line<'a> {
    let e = &view.envelope;
    let (spent, held) = (e.spent.cost(), e.reserved[Unit::CostNanoUsd]);
    let own = format!("{}{}", usd(view.run.own.cost_nano_usd), beside(with_children(view)));
    let listed = if view.spec.login.is_some() { " list" } else { "" };
    let Some(limit) = e.limits[Unit::CostNanoUsd] else {
        let room = " ".repeat(width);
        return Line::from(vec![Span::raw(room), Span::raw(format!(" {own}{listed}"))]);
    };
    let cells = |amount: i64| -> usize {
        let share = if limit > 0 { amount.max(0) as f64 / limit as f64 } else { 1.0 };
        ((share * width as f64).ceil() as usize).min(width)
    };
    let (full, reserved) = (cells(spent), cells(spent.saturating_add(held)));
    let colour = match spent {
        s if s >= limit => RED,
        s if s >= limit / 10 * 8 => YELLOW,
        _ => BLUE,
    };
    Line::from(vec![
        Span::styled("█".repeat(full), colour),
        Span::styled("▒".repeat(reserved - full), colour),
        Span::styled("░".repeat(width - reserved), FAINT),
        Span::raw(format!(" {own} of {}{listed}", usd(limit))),
    ])
}

fn name(view: &RunView) -> String {
    let job = view.run.job.as_ref().map(|job| job.name.as_str());
    let named = view.spec.name.as_deref().or(job);
    named.map_or_else(|| short(view), |name| clean_line(name, 80))
}

fn runs(frame: &mut Frame, area: Rect, desk: &Position, seen: &Look) {
    if seen.runs.is_empty() {
        let text = "no runs yet: outlast run -- COMMAND begins one";
        return frame.render_widget(Line::styled(format!(" {text}"), FAINT), area);
    }
    let wide = area.width >= 120;
    let rows = seen.runs.iter().map(|view| {
        let run = &view.run;
        let began = run.began_at.unwrap_or(run.created_at);
        let asks = run.approvals.as_ref().filter(|_| !run.status.is_ended());
        let asks = asks.map_or(0, |asked| asked.pending(seen.now));
        let note = match asks {
            0 => run.why().unwrap_or_default(),
            n => format!("{} waiting", some(i64::try_from(n).unwrap_or(0), "approval")),
        };
        let mut cells = vec![
            Cell::from(Line::from(status(run.status))),
            Cell::from(Line::styled(name(view), STRONG)),
            Cell::from(meter(view, 8)),
            Cell::from(Line::from(view.run.own.paid_calls().to_string()).right_aligned()),
            Cell::from(Line::from(time::age(seen.now.ms_since(began))).right_aligned()),
        ];
        if wide {
            cells.push(Cell::from(Line::styled(clean_line(&note, 160), FAINT)));
        }
        Row::new(cells)
    });
    let mut columns = vec![Length(13), Min(16), Length(28), Length(6), Length(7)];
    let mut titles = vec!["status", "run", "spent, usd", " calls", "    age"];
    if wide {
        columns.push(Fill(2));
        titles.push("why");
    }
    let header = Row::new(titles).style(FAINT);
    let table = Table::new(rows, columns).header(header).row_highlight_style(AT).column_spacing(1);
    let at = seen.runs.iter().position(|view| Some(view.run.no) == desk.run);
    frame.render_stateful_widget(table, area, &mut TableState::default().with_selected(at));
}

fn run(frame: &mut Frame, area: Rect, watched: &Watched, seen: &Look) {
    let mut head = story(watched, seen, area.width);
    let tall = u16::try_from(head.len()).unwrap_or(u16::MAX).min(area.height.saturating_sub(4));
    head.truncate(usize::from(tall));
    let [top, bottom] = Layout::vertical([Length(tall), Min(1)]).areas(area);
    frame.render_widget(Paragraph::new(Text::from(head)), top);
    journal(frame, bottom, watched);
}

/// Returns the lines that stand above a run's journal.
fn story<'a>(watched: &Watched, seen: &Look, width: u16) -> Vec<Line<'a>> {
    let (view, run) = (&watched.view, &watched.view.run);
    let room = usize::from(width.saturating_sub(3)).max(20);
    let mut lines = vec![Line::from(vec![
        Span::raw(" "),
        Span::styled(clean_line(&name(view), 40), STRONG),
        Span::raw("  "),
        status(run.status),
        Span::styled(format!("  {}", short(view)), FAINT),
    ])];
    let line = |text: &str, style: Style| Line::styled(format!(" {}", clean_line(text, room)), style);
    lines.extend(run.why().map(|why| line(&why, RED)));
    let is_limited = view.envelope.limits[Unit::CostNanoUsd].is_some();
    let mut money = meter(view, if is_limited { 20 } else { 0 }).spans;
    money.insert(0, Span::raw(if is_limited { " " } else { "" }));
    let unit = if view.spec.login.is_some() { " price in usd, not billed" } else { " usd" };
    let own = view.run.own;
    let calls = format!("{unit}   {}{}", some(own.paid_calls(), "call"), unpaid(own.unpaid_calls));
    money.push(Span::raw(calls));
    if run.replayed > 0 {
        let saved = match run.saved_nano_usd {
            0 => String::new(),
            saved => format!(", {} usd saved", usd(saved)),
        };
        lines.push(Line::raw(format!(" {} replayed{saved}", some(run.replayed, "answer"))));
    }
    lines.push(Line::from(money));
    lines.extend(job(view).map(|job| Line::raw(format!(" {}", items(&job)))));
    lines.push(Line::raw(format!(" {}", lives(&watched.attempts))));
    let earlier = watched.attempts.len().saturating_sub(ATTEMPTS);
    for a in watched.attempts.iter().skip(earlier) {
        let up = watched.drivers.up_ms(a, seen.now);
        let (how, style) = match &a.exit {
            _ if a.is_open() => ("up".to_owned(), BLUE),
            Some(exit) => {
                let end = end_words(exit, watched.drivers.loss(view, &watched.attempts, a));
                if a.died() { (format!("✗ {end}"), RED) } else { (end, Style::new()) }
            }
            None => ("ended".to_owned(), Style::new()),
        };
        lines.push(Line::from(vec![
            Span::styled(format!(" attempt {:<3}", a.no.0), STRONG),
            Span::raw(format!("{}  {:>8}  ", time::moment(a.started_at), time::about(up))),
            Span::styled(clean_line(&how, room.saturating_sub(44).max(10)), style),
        ]));
    }
    lines.extend(newest(&watched.waits).iter().map(|wait| line(&waited(wait, seen.now), YELLOW)));
    lines.extend(watched.last_words.iter().map(|words| line(&last_words(words), Style::new())));
    for asked in seen.approvals.iter().filter(|asked| asked.run == run.id) {
        let text = asks(&asked.detail.tool, &String::from_utf8_lossy(&asked.arguments));
        lines.push(line(&text, YELLOW));
    }
    if run.status != Status::Running {
        let next = next(view, &called(view));
        lines.push(line(&next.text, FAINT));
        lines.extend(next.commands.iter().take(2).map(|c| Line::raw(format!(" → {}", clean_line(c, room)))));
    }
    lines.extend(watched.plans.iter().flat_map(Shown::lines).map(|told| line(&told, FAINT)));
    lines.push(Line::raw(""));
    lines
}

/// Draws the newest entries, as many as fit.
fn journal(frame: &mut Frame, area: Rect, watched: &Watched) {
    let room = usize::from(area.height.saturating_sub(1));
    let newest = &watched.entries[watched.entries.len().saturating_sub(room)..];
    let rows = newest.iter().map(|e| {
        Row::new(vec![
            Cell::from(Line::from(e.seq.to_string()).right_aligned()),
            Cell::from(Line::styled(time::time_of_day(e.opened_at), FAINT)),
            Cell::from(e.kind.name()),
            Cell::from(Line::from(state(e.state))),
            Cell::from(clean_line(watched.gists.get(&e.seq).unwrap_or(&entry::what(e)), 200)),
            Cell::from(Line::from(took(e)).right_aligned()),
            Cell::from(Line::from(entry::cost(e)).right_aligned()),
            Cell::from(Line::from(format!("@{}", e.attempt.0)).right_aligned()),
        ])
    });
    let columns = [Length(6), Length(8), Length(10), Length(10), Fill(1), Length(8), Length(12), Length(4)];
    let titles = [" entry", "time", "kind", "state", "what", "    took", "         usd", "   @"];
    let table = Table::new(rows, columns).header(Row::new(titles).style(FAINT)).column_spacing(1);
    frame.render_widget(table, area);
}

fn took(e: &Entry) -> String {
    let so_far = if e.state == State::Open { "…" } else { "" };
    e.closed_at.map_or_else(|| so_far.to_owned(), |at| time::span(at.ms_since(e.opened_at)))
}

fn approvals(frame: &mut Frame, area: Rect, desk: &Position, seen: &Look) {
    let Some(at) = seen.approvals.iter().position(|view| Some(view.id) == desk.approval) else {
        return frame.render_widget(Line::styled(" nobody waits for you", FAINT), area);
    };
    let rows = u16::try_from(seen.approvals.len()).unwrap_or(u16::MAX).min(area.height / 3) + 1;
    let [list, one] = Layout::vertical([Length(rows), Min(1)]).areas(area);
    let listed = seen.approvals.iter().map(|view| {
        Row::new(vec![
            Cell::from(Line::styled(clean_line(&view.detail.tool, 40), STRONG)),
            Cell::from(clean_line(view.name.as_deref().unwrap_or(view.run.as_str()), 60)),
            Cell::from(Line::from(time::age(seen.now.ms_since(view.asked_at))).right_aligned()),
        ])
    });
    let columns = [Length(24), Fill(1), Length(6)];
    let header = Row::new(["tool", "run", " asked"]).style(FAINT);
    let table = Table::new(listed, columns).header(header).row_highlight_style(AT);
    frame.render_stateful_widget(table, list, &mut TableState::default().with_selected(Some(at)));
    frame.render_widget(asked(&seen.approvals[at], seen.now), one);
}

/// Returns one approval with its arguments, on which the person decides.
fn asked<'a>(view: &View, now: Micros) -> Paragraph<'a> {
    let left = view.detail.expires_at.ms_since(now).max(0);
    let effect = view.detail.side_effect.as_deref().map_or_else(String::new, |e| format!(" ({e})"));
    let tool = clean_line(&view.detail.tool, 60);
    let mut lines = vec![
        Line::raw(""),
        Line::from(vec![
            Span::styled(format!(" {tool}{}", clean_line(&effect, 30)), STRONG),
            Span::styled(format!("  {}, {} left, run {}", view.id, time::about(left), view.run), FAINT),
        ]),
    ];
    let text = String::from_utf8_lossy(&view.arguments);
    let pretty = serde_json::from_str::<Box<serde_json::value::RawValue>>(&text).map(|raw| raw.to_string());
    let shown = clean(pretty.as_deref().unwrap_or(&text));
    lines.extend(shown.lines().map(|line| Line::raw(format!(" {line}"))));
    Paragraph::new(lines).wrap(Wrap { trim: false })
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use outlast_core::{
        engine::{AwaitProvider, Claim, Register, Start},
        memory::MemoryStore,
        run::Identity,
        store::{Ask as _, Durability},
        words::{Cause, ManualClock, Outage, RunId, Slot},
    };
    use ratatui::{Terminal, backend::TestBackend};

    use super::*;

    fn drawn(desk: &Position, seen: &Look, width: u16, height: u16) -> String {
        let mut terminal = Terminal::new(TestBackend::new(width, height)).unwrap();
        terminal.draw(|frame| draw(frame, desk, seen, "/home/ann/outlast.db")).unwrap();
        terminal.backend().to_string()
    }

    fn desk(place: Panel) -> Position {
        Position { place, before: Panel::Runs, run: None, approval: None, said: None }
    }

    #[test]
    fn a_screen_of_any_size_is_drawn() {
        let seen = Look::default();
        for (width, height) in [(1, 1), (10, 3), (80, 24), (200, 50), (400, 2)] {
            for place in [Panel::Runs, Panel::Run(outlast_core::words::id::RunNo(1)), Panel::Approvals] {
                drawn(&desk(place), &seen, width, height);
            }
        }
        let told = drawn(&desk(Panel::Runs), &seen, 80, 24);
        assert!(told.contains("no runs yet") && told.contains("q quits"), "{told}");
    }

    // Bug: `watch RUN` said `0.00 usd usd`.
    #[test]
    fn a_run_is_drawn_with_its_money_and_what_it_waits_for() {
        let store = MemoryStore::new(Arc::new(ManualClock::new(Micros(1_700_000_000_000_000))));
        let instance =
            store.run_verb(Register { identity: Identity::default() }, Durability::Synced).unwrap();
        let run = store.run_verb(Start::new(RunId::new("r").unwrap()), Durability::Synced).unwrap().run;
        let claim = Claim { run, slot: Slot::DRIVER, instance, label: None, fresh: false, restart: false };
        store.run_verb(claim, Durability::Synced).unwrap();
        let outage = Outage { upstream: "anthropic".into(), cause: Cause::Failing(529) };
        store.run_verb(AwaitProvider { run, outage }, Durability::Synced).unwrap();
        let seen = Look::at(&store, Panel::Run(run)).unwrap();
        let told = drawn(&desk(Panel::Run(run)), &seen, 100, 24);
        assert!(told.contains(" 0.00 usd   0 calls") && !told.contains("usd usd"), "{told}");
        assert!(
            told.contains("waits for its provider since 22:13:20, for 0 s so far: anthropic fails with 529"),
            "{told}"
        );
    }
}
