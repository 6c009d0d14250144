//! `outlast logs RUN [-f]`: prints the output of an attempt.

use super::prelude::*;
use crate::{
    logs::{self, Follower},
    render::look::Unwritten,
};

/// Print what a run's agent printed
///
/// Each attempt has a log of its own; the newest attempt's is printed. On a terminal, control sequences other than
/// colours are left out; elsewhere the bytes are printed unchanged. At least the last 10 MiB of each attempt are kept,
/// and the last 20 attempts of a run.
#[derive(Args, Clone, Debug)]
#[command(
    after_help = "Examples:\n  outlast logs nightly\n  outlast logs nightly -f\n  outlast logs nightly --attempt 2 --lines 50"
)]
pub struct LogsArgs {
    /// The run: its id, its name, or the start of its id; the last run of this directory
    pub run: Option<String>,
    /// Go on printing what comes, of later attempts too, until the run has ended
    #[arg(long, short)]
    pub follow: bool,
    /// The attempt, by its number
    #[arg(long, value_name = "N", value_parser = values::count)]
    pub attempt: Option<i64>,
    /// Only the last N lines
    #[arg(long, short = 'n', visible_alias = "tail", value_name = "N")]
    pub lines: Option<usize>,
}

/// Prints the log of an attempt. With `-f`, `wait` is called between two looks at the log.
pub fn logs(args: &LogsArgs, Desk { store, context, page, wait, .. }: Desk) -> Result {
    let view = find::run_or_last(store, args.run.as_deref(), context.around.directory(), Verb::Look)?;
    let directory = RunDirectory::of(&context.place, &view.run.id, &context.around)?.logs();
    let kept = logs::attempts(&directory)?;
    let attempts = store.attempts(view.run.no)?;
    let mut no = match args.attempt {
        Some(no) => AttemptNo(no),
        None => match attempts.last().map(|a| a.no).or(kept.last().copied()) {
            Some(no) => no,
            None => return Err(CommandError::NoAttempt { run: called(&view) }.into()),
        },
    };
    // With `--follow`, an attempt that has not begun yet is waited for.
    let may_come = args.follow && no >= newest(&attempts) && goes_on(store, &view.run)?;
    if !kept.contains(&no) && !may_come {
        let newest = kept.last().map(|no| no.0);
        let kept = match kept.as_slice() {
            [] => format!("nothing is kept in {}", directory.display()),
            [first, .., last] => format!("those of attempts {} to {} are kept", first.0, last.0),
            [one] => format!("that of attempt {} is kept", one.0),
        };
        let run = called(&view);
        return Err(CommandError::NoLog { run, attempt: no.0, kept, newest }.into());
    }
    let mut printer = Printer { attempt: no, unfinished: Vec::new(), raw: !context.is_on_terminal };
    let mut follower = Follower::new(&directory, no);
    if let Some(count) = args.lines {
        for line in logs::last_lines(&directory, no, count)? {
            printer.line(&line, page)?;
        }
        if !args.follow {
            return Ok(());
        }
        while !follower.more()?.is_empty() {}
    }
    loop {
        // The attempts are read before the log, so that the last output of an ended attempt is not missed.
        let now = store.attempts(view.run.no)?;
        let is_over = now.iter().any(|a| a.no == no && !a.is_open());
        let ends = !args.follow || (is_over || now.is_empty()) && !goes_on(store, &view.run)?;
        loop {
            let bytes = follower.more()?;
            if bytes.is_empty() {
                break;
            }
            printer.print(&bytes, page)?;
        }
        let next = now.iter().map(|a| a.no).filter(|n| *n > no).min();
        if let (true, true, None, Some(next)) = (args.follow, is_over, args.attempt, next) {
            printer.end(page)?;
            page.flush()?;
            say(&format!("attempt {}", next.0));
            no = next;
            follower = Follower::new(&directory, no);
            printer.attempt = no;
            continue;
        }
        if ends || (args.attempt.is_some() && is_over) {
            return Ok(printer.end(page)?);
        }
        page.flush()?;
        wait(FOLLOW);
    }
}

fn newest(attempts: &[Attempt]) -> AttemptNo {
    attempts.last().map_or(AttemptNo(1), |a| a.no)
}

/// Returns whether another attempt of the run may begin without a person's command.
fn goes_on(store: &dyn Store, run: &Run) -> Result<bool> {
    let status = store.run(run.no)?.map_or(run.status, |view| view.run.status);
    Ok(matches!(status, Status::Running | Status::Waiting | Status::Sleeping))
}

/// Writes a log to the page: raw bytes, plain lines or JSON lines.
struct Printer {
    attempt: AttemptNo,
    /// Beginning of a line whose end has not come yet, if whole lines are printed.
    unfinished: Vec<u8>,
    /// Whether bytes are passed on unchanged, for a file or a program.
    raw: bool,
}

impl Printer {
    fn print(&mut self, bytes: &[u8], page: &mut Page) -> Result<(), Unwritten> {
        self.unfinished.extend(bytes);
        let raw = self.raw && !page.look.json;
        while let Some(end) = self.unfinished.iter().position(|b| *b == b'\n' || raw && *b == b'\r') {
            let line: Vec<u8> = self.unfinished.drain(..=end).collect();
            let line = if raw { &line[..] } else { &line[..end] };
            self.whole(line, page)?;
        }
        Ok(())
    }

    fn whole(&self, line: &[u8], page: &mut Page) -> Result<(), Unwritten> {
        if self.raw && !page.look.json {
            return page.bytes(&logs::masked(line));
        }
        if page.look.json || !page.look.color {
            return self.line(&logs::text(line), page);
        }
        page.text(&logs::colours(line))?;
        page.bytes(b"\x1b[0m\n")
    }

    fn line(&self, text: &str, page: &mut Page) -> Result<(), Unwritten> {
        match page.look.json {
            true => page.json_line(&json!({ "attempt": self.attempt, "line": text })),
            false => page.line(text),
        }
    }

    /// Prints a last line that has no line end.
    fn end(&mut self, page: &mut Page) -> Result<(), Unwritten> {
        if self.unfinished.is_empty() {
            return Ok(());
        }
        let line = std::mem::take(&mut self.unfinished);
        self.whole(&line, page)
    }
}
