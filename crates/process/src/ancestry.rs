//! The line of processes above this one, as `/proc` shows it.

use std::{fs::File, io::Read as _};

use super::proc_table::{self, ProcId};

/// Longest line that is followed. `/proc` is no snapshot: pids reused meanwhile could close a circle.
const LONGEST: usize = 200;

/// Process among this one and its ancestors, with the arguments and environment that its program began with.
#[derive(Clone, Debug)]
pub struct Ancestor {
    pub id: ProcId,
    /// Name of the process, at most 15 bytes.
    pub comm: String,
    environ: Vec<u8>,
    arguments: Vec<u8>,
    groups: String,
}

/// Returns this process and all its ancestors, nearest first. Facts that this user may not read are empty; the list
/// ends where `/proc` shows no parent.
pub fn line() -> Vec<Ancestor> {
    let mut line = Vec::new();
    let mut room = vec![0; 64 << 10];
    let mut next = proc_table::own_pid();
    while next != 0 && line.len() < LONGEST {
        let Ok(Some(stat)) = proc_table::read_stat(next) else { break };
        let mut read = |name: &str| contents(&format!("/proc/{next}/{name}"), &mut room);
        line.push(Ancestor {
            id: stat.id(),
            environ: read("environ"),
            arguments: read("cmdline"),
            groups: String::from_utf8_lossy(&read("cgroup")).into_owned(),
            comm: stat.comm,
        });
        next = stat.ppid;
    }
    line
}

/// Returns what a file of `/proc` holds, read through `room`; empty if this user may not read it. `/proc` tells no
/// sizes, and `fs::read` would ask for a few bytes at a time.
fn contents(path: &str, room: &mut [u8]) -> Vec<u8> {
    let mut found = Vec::new();
    let Ok(mut file) = File::open(path) else { return found };
    while let Ok(read @ 1..) = file.read(room) {
        found.extend(&room[..read]);
    }
    found
}

impl Ancestor {
    /// Returns whether the variable was in the environment when the process's program began. Unsetting it later changes
    /// nothing here.
    pub fn began_with(&self, variable: &str) -> bool {
        let set = |entry: &[u8]| entry.strip_prefix(variable.as_bytes()).is_some_and(|e| e.starts_with(b"="));
        self.environ.split(|&b| b == 0).any(set)
    }

    /// Returns the value that the variable had when the process's program began; `None` if it was not set.
    pub fn variable(&self, name: &str) -> Option<String> {
        let value = |entry: &[u8]| {
            let value = entry.strip_prefix(name.as_bytes())?.strip_prefix(b"=")?;
            String::from_utf8(value.to_vec()).ok()
        };
        self.environ.split(|&b| b == 0).find_map(value)
    }

    /// Returns whether one of the process's arguments is `word`.
    pub fn has_argument(&self, word: &str) -> bool {
        self.arguments.split(|&b| b == 0).any(|argument| argument == word.as_bytes())
    }

    /// Returns the name of the control group around the process whose name begins with `prefix`; `None` if there is
    /// none.
    pub fn group(&self, prefix: &str) -> Option<&str> {
        let names = self.groups.lines().filter_map(|line| line.splitn(3, ':').nth(2));
        names.flat_map(|path| path.split('/')).find(|name| name.starts_with(prefix))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ancestor(environ: &[u8], arguments: &[u8], groups: &str) -> Ancestor {
        Ancestor {
            id: ProcId { pid: 1, start_time: 1 },
            comm: "sh".into(),
            environ: environ.into(),
            arguments: arguments.into(),
            groups: groups.into(),
        }
    }

    #[test]
    fn variables_arguments_and_groups_are_compared_as_whole_words() {
        let found = ancestor(b"A_B=1\0C=\0", b"outlast\0run\0", "0::/user.slice/outlast-run-f0-2/below\n");
        assert_eq!(
            ["A_B", "C", "A", "B", "1"].map(|v| found.began_with(v)),
            [true, true, false, false, false]
        );
        assert_eq!(
            ["A_B", "C", "B"].map(|v| found.variable(v)),
            [Some("1".into()), Some(String::new()), None]
        );
        assert_eq!(["run", "ru", "outlast run"].map(|w| found.has_argument(w)), [true, false, false]);
        assert_eq!(found.group("outlast-run-"), Some("outlast-run-f0-2"));
        assert_eq!((found.group("below-"), ancestor(b"", b"", "").group("x")), (None, None));
    }

    #[test]
    fn the_line_begins_here_and_ends_at_the_first_process() {
        let line = line();
        assert_eq!(line[0].id, ProcId::of_self().unwrap());
        assert!(line.len() > 1 && line[0].began_with("PATH"));
        assert_eq!(proc_table::read_stat(line[line.len() - 1].id.pid).unwrap().unwrap().ppid, 0);
    }
}
