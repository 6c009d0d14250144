//! Ratios of each measured commit in a CSV file, and what has become slower since the commit before.

use std::{collections::HashMap, fmt::Write as _, fs, io::ErrorKind, path::Path};

use outlast::program::host::SystemClock;
use outlast_core::words::{calendar, clock::Clock as _};

/// Part of a ratio whose loss is told.
const TOLD: f64 = 0.05;

const HEAD: &str = "commit,date,machine,row,ratio\n";

/// One line: a row's ratio as a commit had it on a machine. Names hold no quotes.
struct Line<'a> {
    commit: &'a str,
    date: &'a str,
    machine: &'a str,
    row: &'a str,
    ratio: f64,
}

impl<'a> Line<'a> {
    fn parse(line: &'a str) -> Option<Line<'a>> {
        let mut parts = line.split('"');
        let (commit, date) = parts.next()?.strip_suffix(',')?.split_once(',')?;
        let machine = parts.next()?;
        let row = parts.nth(1)?;
        let ratio = parts.next()?.strip_prefix(',')?.parse().ok()?;
        Some(Line { commit, date, machine, row, ratio })
    }
}

/// Adds the rows of a commit, in place of those that it had on such a machine; of a tree with changes (`COMMIT+`) nothing is
/// kept. Returns what is slower than the commit before was on such a machine, in words. Errors: those of the file.
pub fn add<'a>(
    path: &Path,
    commit: &str,
    machine: &str,
    measured: impl Iterator<Item = (&'a str, f64)>,
) -> std::io::Result<String> {
    let text = match fs::read_to_string(path) {
        Err(e) if e.kind() == ErrorKind::NotFound => String::from(HEAD),
        read => read?,
    };
    let measured: Vec<(&str, f64)> = measured.collect();
    let told = slower(&text, commit, machine, &measured);
    if !commit.ends_with('+') {
        let is_replaced =
            |line: &&str| Line::parse(line).is_some_and(|l| l.commit == commit && l.machine == machine);
        let mut kept: String =
            text.lines().filter(|line| !is_replaced(line)).map(|line| format!("{line}\n")).collect();
        let date = calendar::day(SystemClock::new().now());
        for (row, ratio) in measured {
            let _ = writeln!(kept, "{commit},{date},\"{machine}\",\"{row}\",{ratio:.4}");
        }
        fs::write(path, kept)?;
    }
    Ok(told)
}

/// Tells the rows that lost more than [`TOLD`] since the last other commit that was measured on such a machine.
fn slower(text: &str, commit: &str, machine: &str, measured: &[(&str, f64)]) -> String {
    let lines =
        || text.lines().filter_map(Line::parse).filter(|l| l.machine == machine && l.commit != commit);
    let Some(last) = lines().next_back() else {
        return format!("nothing to compare with: no other commit was measured on {machine}");
    };
    let before: HashMap<&str, f64> =
        lines().filter(|l| l.commit == last.commit).map(|l| (l.row, l.ratio)).collect();
    let lost = |(row, ratio): &(&str, f64)| {
        let had = before.get(row).filter(|had| *ratio < *had * (1.0 - TOLD))?;
        let percent = (1.0 - ratio / had) * 100.0;
        Some(format!("\n  {row}: {had:.3} x the limit, now {ratio:.3} x: {percent:.0} % less"))
    };
    let lost: String = measured.iter().filter_map(lost).collect();
    let since = format!("since {} of {}", last.commit, last.date);
    match lost.is_empty() {
        true => format!("nothing has lost more than 5 % {since}"),
        false => format!("slower {since}:{lost}"),
    }
}
