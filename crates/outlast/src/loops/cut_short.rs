//! Detects that a signal ended a bash in the middle of a command. bash then runs its EXIT trap as at any end, with the
//! exit code of the *previous* command and no signal; but a command in the foreground is still running.

use std::{fs, path::PathBuf};

use outlast_process::proc_table;

/// State of a loop's shell in bash's EXIT trap: its running jobs, and the command that it was at.
#[derive(Clone, Copy, Debug)]
pub struct AtExit<'a> {
    /// Output of `jobs -lr`, which lists the running jobs.
    pub jobs: &'a str,
    /// Value of `$BASH_COMMAND`: the last command that the shell began.
    pub command: &'a str,
    /// Process ids of the shell's living children whose standard output the shell reads.
    pub read_from: &'a [u32],
}

impl AtExit<'_> {
    /// Returns whether a signal cut the shell short.
    ///
    /// A script that ends by itself waits for nobody: children that then run are background jobs, or process
    /// substitutions, which are no jobs (a `>(tee log)` reads from the shell; a `<(…)` may be read to the end). A `wait`
    /// without arguments ends when no job runs. A shell in a `read`, or in a `wait` for some of its jobs, is not
    /// detected.
    pub fn is_cut_short(&self) -> bool {
        let jobs = Jobs::read(self.jobs);
        let waits = self.command == "wait" && !jobs.pids.is_empty();
        let substitutes = self.command.contains("$(") || self.command.contains('`');
        jobs.foreground || waits || substitutes && self.read_from.iter().any(|pid| !jobs.pids.contains(pid))
    }
}

/// Returns the process ids of a shell's living children whose standard output it reads; none if `/proc` cannot be read.
pub fn read_from(shell: u32) -> Vec<u32> {
    let Ok(processes) = proc_table::walk() else { return Vec::new() };
    let children = processes.into_iter().filter(|stat| stat.ppid == shell && !stat.is_dead());
    let ends = read_ends(shell);
    let prints_to_it = |pid: &u32| pipe(*pid, "1").is_some_and(|pipe| ends.contains(&pipe));
    children.map(|stat| stat.pid).filter(prints_to_it).collect()
}

/// Lists the pipes that a process has open for reading, as `/proc` names them.
fn read_ends(pid: u32) -> Vec<PathBuf> {
    let open = fs::read_dir(format!("/proc/{pid}/fd")).into_iter().flatten().flatten();
    let names = open.map(|entry| entry.file_name().to_string_lossy().into_owned());
    names.filter(|fd| is_to_read(pid, fd)).filter_map(|fd| pipe(pid, &fd)).collect()
}

fn pipe(pid: u32, fd: &str) -> Option<PathBuf> {
    fs::read_link(format!("/proc/{pid}/fd/{fd}")).ok().filter(|to| to.to_string_lossy().starts_with("pipe:"))
}

/// Returns whether a descriptor is open read-only, by its octal `flags` in `/proc` (O_RDONLY is 0).
fn is_to_read(pid: u32, fd: &str) -> bool {
    let info = fs::read_to_string(format!("/proc/{pid}/fdinfo/{fd}")).unwrap_or_default();
    let flags = info.lines().find_map(|line| line.strip_prefix("flags:"));
    flags.and_then(|flags| i64::from_str_radix(flags.trim(), 8).ok()).is_some_and(|flags| flags & 3 == 0)
}

#[derive(Default)]
struct Jobs {
    pids: Vec<u32>,
    /// Whether a job runs in the foreground: its line does not end in `&`.
    foreground: bool,
}

impl Jobs {
    /// Parses lines like `[1]+  4711 Running    sleep 9 &`. Further processes of a pipeline have lines of their own,
    /// and commands may hold any text.
    fn read(text: &str) -> Jobs {
        let mut jobs = Jobs::default();
        let mut last: Option<String> = None;
        for line in text.lines() {
            let of_job = line.strip_prefix('[').and_then(|rest| rest.split_once(']'));
            let begins = of_job.filter(|(number, _)| number.parse::<u32>().is_ok());
            let rest = begins.map_or(line, |(_, rest)| rest.trim_start_matches(['+', '-']));
            jobs.pids.extend(rest.split_whitespace().next().and_then(|word| word.parse::<u32>().ok()));
            if begins.is_some() {
                jobs.foreground |= last.take().is_some_and(|job| !is_behind(&job));
            }
            last = Some(line.to_owned());
        }
        jobs.foreground |= last.is_some_and(|job| !is_behind(&job));
        jobs
    }
}

/// Returns whether a job is in the background, by its last line. The directory of a job begun elsewhere follows `&`.
fn is_behind(line: &str) -> bool {
    let command = line.rsplit_once("  (wd: ").map_or(line, |(command, _)| command);
    command.trim_end().ends_with(" &")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn command_in_the_foreground_or_in_a_substitution_was_cut_short() {
        let check = |jobs: &str, command: &str, read_from: &[u32], wanted: bool| {
            let at_exit = AtExit { jobs, command, read_from };
            assert_eq!(at_exit.is_cut_short(), wanted, "{jobs:?} {command:?} {read_from:?}");
        };
        check("", "exit 0", &[], false);
        check("[1]    845 Running                 sleep 3", "sleep 3", &[845], true);
        check("[1]+   864 Running                 sleep 2 &", "exit 0", &[864], false);
        check("[1]+   864 Running      sleep 2 &\n[2]    865 Running      sleep 3", "sleep 3", &[], true);
        check("[1]-   864 Running      sleep 2 &\n[2]+   865 Running      sleep 3 &", "true", &[], false);
        check("[1]   1035 Running       sleep 3\n      1036            | cat", "cat", &[], true);
        check("[1]+  1035 Running       sleep 3\n      1036            | cat &", "cat", &[1035, 1036], false);
        check("[1]+  1035 Running       sleep 3 &  (wd: /a (b) & c)", "true", &[], false);
        check("[1]+  1035 Running       cat <<E\na & b\nE &", "true", &[], false);
        check("[1]+   864 Running                 sleep 2 &", "wait", &[], true);
        check("[1]+   864 Running                 sleep 2 &", "wait 863", &[], false);
        check("", "wait", &[], false);
        check("", "x=$(sleep 3)", &[77], true);
        check("", "x=`sleep 3`", &[77], true);
        // A background job and a process substitution may still run at a normal end.
        check("[1]+    77 Running       sleep 9 &", "x=$(true)", &[77], false);
        check("", "echo done", &[78], false);
        check("", "x=$(true)", &[], false);
    }
}
