//! Report of a crash test: as text, JSON, JUnit's XML and Markdown.

use std::fmt::Write as _;

use crate::{
    cli::crashtest::{Boundary, Death, Kind},
    commands::prelude::*,
};

/// Report of a crash test.
#[derive(Debug, Default, Serialize)]
pub struct Report {
    pub sound: bool,
    /// Calls of the recording.
    pub calls: usize,
    pub boundaries: Vec<Row>,
    /// Deaths that there are at these boundaries, and that were to be tried.
    pub possible: usize,
    pub planned: usize,
    pub deaths: Vec<Tried>,
    /// Findings of the clean runs, before anything was killed.
    pub clean: Vec<Finding>,
    /// Remarks on what the report does not cover.
    pub notes: Vec<String>,
    pub bare: Option<Bare>,
    /// Words of the command line, as a shell reads them, without deaths.
    #[serde(skip)]
    pub typed: String,
}

/// Boundary, with where it is in words.
#[derive(Debug, Serialize)]
pub struct Row {
    pub at: Boundary,
    #[serde(rename = "where")]
    pub place: String,
}

/// Death that was tried.
#[derive(Debug, Serialize)]
pub struct Tried {
    pub at: Boundary,
    pub kind: Kind,
    /// Whether the life came to the boundary. One whose calls run at once may take another way.
    pub reached: bool,
    /// Whether the next life was told that a step or tool call is in doubt, and did not do it again by itself.
    pub told: bool,
    /// Whether a call told the model of a CLI agent of the death. It is paid for, whatever was recorded.
    pub noted: bool,
    /// Number of calls that were bought again although their answers were recorded.
    pub bought_again: u32,
    pub findings: Vec<Finding>,
}

/// Fault that a death brought to light.
#[derive(Clone, Debug, Serialize)]
pub struct Finding {
    /// Name of the fault, the same for all deaths that bring the same fault to light: a path, for example.
    #[serde(skip)]
    pub fault: String,
    pub what: String,
    pub why: String,
}

/// The same deaths without Outlast.
#[derive(Debug, Default, Serialize)]
pub struct Bare {
    pub deaths: usize,
    /// Deaths after which anything was wrong.
    pub wrong: usize,
    pub bought_again: u32,
}

impl Finding {
    pub fn new(fault: &str, what: impl Into<String>, why: impl Into<String>) -> Finding {
        Finding { fault: fault.to_owned(), what: what.into(), why: why.into() }
    }
}

impl Report {
    /// Prints the report.
    pub fn print(&self, page: &mut Page) -> Result {
        if page.look.json {
            return Ok(page.json(self)?);
        }
        let look = page.look;
        page.line(&self.head())?;
        for note in &self.notes {
            page.line(&look.paint(Paint::Faint, &format!("note: {note}")))?;
        }
        self.clean.iter().try_for_each(|found| {
            page.line(&look.paint(Paint::Bad, &format!("without a death: {}", found.what)))?;
            page.line(&format!("  why: {}", found.why))
        })?;
        if !self.deaths.is_empty() {
            page.text(&self.table().render(look, 2))?;
        }
        for (tried, found, more) in self.faults() {
            page.line(&look.paint(Paint::Bad, &format!("{}: {}", deaths(tried, more), found.what)))?;
            page.line(&format!("  why: {}", found.why))?;
            page.line(&format!("  again: {}", self.again(tried)))?;
        }
        if let Some(bare) = &self.bare {
            page.line(&bare.words())?;
        }
        Ok(())
    }

    /// Returns the report as JUnit's XML: a test case for each death.
    pub fn junit(&self) -> String {
        let mut out = String::from("<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n");
        let failed = self.deaths.iter().filter(|tried| !tried.findings.is_empty()).count();
        let skipped = self.deaths.iter().filter(|tried| !tried.reached).count();
        let (clean, tests) = (usize::from(!self.clean.is_empty()), self.deaths.len() + 1);
        let failures = failed + clean;
        // Writing to a text does not fail.
        let _ = writeln!(
            out,
            r#"<testsuite name="outlast crashtest" tests="{tests}" failures="{failures}" skipped="{skipped}">"#
        );
        let mut case = |name: &str, findings: &[Finding], reached: bool, again: &str| {
            let _ = writeln!(out, r#"  <testcase classname="crashtest" name="{}">"#, escaped(name));
            for found in findings {
                let text = format!("{}\n{again}", found.why);
                let _ = writeln!(
                    out,
                    r#"    <failure message="{}">{}</failure>"#,
                    escaped(&found.what),
                    escaped(&text)
                );
            }
            if !reached {
                out.push_str("    <skipped message=\"this boundary was not reached\"/>\n");
            }
            out.push_str("  </testcase>\n");
        };
        case("without a death", &self.clean, true, &self.typed);
        for tried in &self.deaths {
            case(&tried.death().to_string(), &tried.findings, tried.reached, &self.again(tried));
        }
        out + "</testsuite>\n"
    }

    /// Returns the report as Markdown.
    pub fn markdown(&self) -> String {
        let mut out = format!("## outlast crashtest\n\n{}\n\n", self.head());
        self.notes.iter().for_each(|note| out.push_str(&format!("- {note}\n")));
        let mut found = |head: &str, found: &Finding, again: &str| {
            out.push_str(&format!("- **{head}**: {}  \n  {}  \n  `{again}`\n", found.what, found.why));
        };
        self.clean.iter().for_each(|one| found("without a death", one, &self.typed));
        for (tried, one, more) in self.faults() {
            found(&deaths(tried, more), one, &self.again(tried));
        }
        if !self.deaths.is_empty() {
            let table = self.table().render(Look::default(), 0);
            out.push_str(&format!("\n```text\n{table}```\n"));
        }
        if let Some(bare) = &self.bare {
            out.push_str(&format!("\n{}\n", bare.words()));
        }
        out
    }

    /// Returns the result as a badge: an image of one line, in green where nothing was found.
    pub fn badge(&self) -> String {
        let said = format!("{}, {}", some(self.deaths.len() as i64, "death"), self.findings());
        let (color, width) = (if self.sound { "#2b7a3f" } else { "#b3261e" }, 82 + 7 * said.len());
        format!(
            r##"<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="20" role="img" aria-label="crashtest: {said}">
<rect width="{width}" height="20" rx="3" fill="{color}"/><rect width="72" height="20" rx="3" fill="#444"/>
<g fill="#fff" font-family="sans-serif" font-size="12"><text x="8" y="14">crashtest</text><text x="78" y="14">{said}</text></g>
</svg>
"##
        )
    }

    fn findings(&self) -> String {
        match self.clean.len() + self.faults().len() {
            0 => "no findings".to_owned(),
            count => some(count as i64, "finding"),
        }
    }

    fn head(&self) -> String {
        let findings = self.findings();
        let (deaths, boundaries) = (some(self.deaths.len() as i64, "death"), self.boundaries.len());
        let boundaries = some(boundaries as i64, "boundary");
        format!("{deaths} at {boundaries} of {}: {findings}", some(self.calls as i64, "call"))
    }

    /// Returns each fault once: the first death that brought it to light, the finding, and the number of further deaths.
    fn faults(&self) -> Vec<(&Tried, &Finding, usize)> {
        let mut faults: Vec<(&Tried, &Finding, usize)> = Vec::new();
        for (tried, found) in
            self.deaths.iter().flat_map(|tried| tried.findings.iter().map(move |one| (tried, one)))
        {
            match faults.iter_mut().find(|(_, known, _)| known.fault == found.fault) {
                Some((_, _, more)) => *more += 1,
                None => faults.push((tried, found, 0)),
            }
        }
        faults
    }

    /// Returns the command that tries one death again.
    fn again(&self, tried: &Tried) -> String {
        self.typed.replacen(" crashtest ", &format!(" crashtest --only {} ", tried.death()), 1)
    }

    /// Returns the table of boundaries and kinds: `ok`, `wrong`, `told` where a call was left in doubt,
    /// `-` where the boundary was not reached; empty: not tried.
    fn table(&self) -> Table {
        let kinds = Kind::ALL.map(Kind::name);
        let columns: Vec<_> = ["BOUNDARY"].into_iter().chain(kinds).chain([""]).collect();
        let mut table = Table::new(columns);
        for row in &self.boundaries {
            let cell = |kind| match self.deaths.iter().find(|tried| tried.at == row.at && tried.kind == kind)
            {
                None => Cell::default(),
                Some(tried) if !tried.findings.is_empty() => Cell::painted("wrong", Paint::Bad),
                Some(tried) if !tried.reached => Cell::painted("-", Paint::Faint),
                Some(tried) if tried.told => Cell::painted("told", Paint::Care),
                Some(_) => Cell::painted("ok", Paint::Good),
            };
            let mut cells = vec![Cell::whole(row.at.to_string())];
            cells.extend(Kind::ALL.map(cell));
            cells.push(Cell::painted(&row.place, Paint::Faint));
            table.row(cells);
        }
        table
    }
}

impl Tried {
    pub fn death(&self) -> Death {
        Death { at: self.at, kind: self.kind }
    }
}

impl Bare {
    fn words(&self) -> String {
        let (deaths, calls) = (some(self.deaths as i64, "death"), some(i64::from(self.bought_again), "call"));
        format!("without Outlast: {deaths}, {} wrong, {calls} bought again", self.wrong)
    }
}

/// Returns the name of a death, and the number of those like it.
fn deaths(first: &Tried, more: usize) -> String {
    let more = if more == 0 { String::new() } else { format!(" and {}", some(more as i64, "more death")) };
    format!("{}{more}", first.death())
}

fn escaped(text: &str) -> String {
    let text: String = text.chars().filter(|c| !c.is_control() || *c == '\n').collect();
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}
