//! `outlast resume --all`: one supervisor process for each run, and what each of them says with the run in front.

use std::{
    io::{self, BufRead as _, BufReader, Read, Write},
    process::{Command, Stdio},
    thread::{self, JoinHandle},
};

use outlast_core::store::RunView;

use crate::{
    cli::shared::ProxyArgs,
    program::{context::Context, error::CliError, exit_code, say::say, told},
    render::{amount::some, short::short, text::clean_line},
};

/// Most characters of a label.
const LABEL: usize = 24;

/// Resumes each run, oldest first, with a supervisor of its own, waits for all, and returns the worst exit code.
pub fn resume(runs: &[RunView], context: &Context, proxy: &ProxyArgs) -> Result<u8, CliError> {
    say(&format!("{} to resume", some(runs.len() as i64, "run")));
    let me = crate::program()?;
    let mut children = Vec::new();
    for view in runs {
        let mut command = Command::new(&me);
        command.arg("resume").arg(view.run.id.as_str());
        // Passed in the environment, which other users cannot read: the address may hold a password.
        command.env(told::STORE, context.place.address()).args(proxy.flags()).stdin(Stdio::null());
        let alone = runs.len() == 1;
        if !alone {
            command.stdout(Stdio::piped()).stderr(Stdio::piped());
        }
        let mut child = command.spawn()?;
        let label = label(view);
        let readers = [
            child.stdout.take().map(|from| pass_on(label.clone(), from, io::stdout())),
            child.stderr.take().map(|from| pass_on(label.clone(), from, io::stderr())),
        ];
        children.push((label, child, readers));
    }
    let mut worst = exit_code::OK;
    for (label, mut child, readers) in children {
        let status = child.wait()?;
        // What a run printed stands before what is said of its end.
        readers.into_iter().flatten().for_each(|reader| drop(reader.join()));
        if !status.success() {
            say(&format!("{label}: {status}"));
            worst = worst.max(status.code().and_then(|c| u8::try_from(c).ok()).unwrap_or(exit_code::FAILED));
        }
    }
    Ok(worst)
}

/// Returns the run's name, or its short id if it has none.
fn label(view: &RunView) -> String {
    clean_line(view.spec.name.as_deref().unwrap_or(&short(view)), LABEL)
}

/// Writes each line of `from` with its label in front, until its end.
fn pass_on(
    label: String,
    from: impl Read + Send + 'static,
    mut to: impl Write + Send + 'static,
) -> JoinHandle<()> {
    thread::spawn(move || {
        let mut from = BufReader::new(from);
        let mut line = Vec::new();
        while matches!(from.read_until(b'\n', &mut line), Ok(n) if n > 0) {
            if !line.ends_with(b"\n") {
                line.push(b'\n');
            }
            let whole = [format!("{label} | ").as_bytes(), &line].concat();
            // Nobody reads on: the runs go on all the same.
            let _ = to.write_all(&whole).and_then(|()| to.flush());
            line.clear();
        }
    })
}
