//! The end of a loop's shell as bash's EXIT trap tells it: whether a signal cut it short.
//!
//! When a signal ends a bash in the middle of a command, it runs its EXIT trap as at any end, with the exit code of the
//! *previous* command and no signal; but a command in the foreground is still running.

use std::{fs, path::PathBuf};

use outlast_process::proc_table;

use super::words::EndArgs;

impl EndArgs {
    /// Returns whether a signal cut the shell short. `read_from`: process ids of its living children whose standard output it
    /// reads.
    ///
    /// A script that ends by itself waits for nobody: children that then run are background jobs, or process
    /// substitutions, which are no jobs (a `>(tee log)` reads from the shell; a `<(…)` may be read to the end). A `wait`
    /// without arguments ends when no job runs. A shell that ends by itself has left its functions, unless it was told to `exit`
    /// there, or a command failed. Outside of a function, a shell between two commands, in a `read`, or in a `wait` for some
    /// of its jobs, is not detected: bash tells nothing of it.
    pub fn is_cut_short(&self, read_from: &[u32]) -> bool {
        let jobs = Jobs::read(&self.jobs);
        let waits = self.command == "wait" && !jobs.pids.is_empty();
        let substitutes = self.command.contains("$(") || self.command.contains('`');
        jobs.foreground
            || waits
            || substitutes && read_from.iter().any(|pid| !jobs.pids.contains(pid))
            || self.is_in_a_function()
    }

    /// Returns whether the shell was in a function that it did not end in by itself. A trap of the script's own, or a file that
    /// it reads, may have ended it there with an `exit` that bash does not tell.
    fn is_in_a_function(&self) -> bool {
        let innermost = self.within.split(' ').next().unwrap_or_default();
        let exits = self.command.split(|c: char| !c.is_alphanumeric()).any(|word| word == "exit");
        let mut traps = self.traps.lines().filter(|line| line.starts_with("trap -- "));
        self.code == 0
            && !matches!(innermost, "" | "source")
            && !exits
            && traps.all(|line| line.contains("__outlast_signal"))
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
            let said = EndArgs { jobs: jobs.into(), command: command.into(), ..EndArgs::default() };
            assert_eq!(said.is_cut_short(read_from), wanted, "{jobs:?} {command:?} {read_from:?}");
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

    #[test]
    fn shell_that_is_in_a_function_without_an_exit_was_cut_short() {
        let ours = "trap -- '__outlast_signal INT 2' SIGINT\ntrap -- '__outlast_signal QUIT 3' SIGQUIT";
        let of = |within: &str, command: &str, code, traps: &str| EndArgs {
            code,
            within: within.into(),
            command: command.into(),
            traps: traps.into(),
            ..EndArgs::default()
        };
        assert!(of("main main", "sleep 1", 0, ours).is_cut_short(&[]));
        for by_itself in [
            of("", "sleep 1", 0, ours),
            of("source work main", "sleep 1", 0, ours),
            of("main main", "exit 0", 0, ours),
            of("main main", "eval 'exit 0'", 0, ours),
            of("main main", "false", 1, ours),
            of("main main", "sleep 1", 0, "trap -- 'exit 0' SIGUSR1"),
        ] {
            assert!(!by_itself.is_cut_short(&[]), "{by_itself:?}");
        }
    }
}
