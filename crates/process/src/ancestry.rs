//! Programs of processes as `/proc` shows them: that of any process, and those of this one and its ancestors.

use super::proc_table::{self, ProcId, Stat};

/// Longest line that is followed. `/proc` is no snapshot: pids reused meanwhile could close a circle.
const LONGEST: usize = 200;

/// Process with the arguments and environment that its program began with. What this user may not read is empty.
#[derive(Clone, Debug)]
pub struct Program {
    pub id: ProcId,
    /// Name of the process, at most 15 bytes.
    pub comm: String,
    environ: Vec<u8>,
    arguments: Vec<u8>,
    groups: String,
}

/// Returns this process and all its ancestors, nearest first. The list ends where `/proc` shows no parent.
pub fn line() -> Vec<Program> {
    let mut line = Vec::new();
    let mut next = proc_table::own_pid();
    while next != 0 && line.len() < LONGEST {
        let Ok(Some(stat)) = proc_table::read_stat(next) else { break };
        next = stat.ppid;
        line.push(Program::of(stat));
    }
    line
}

impl Program {
    /// Reads what the process of `stat` began with.
    pub fn of(stat: Stat) -> Program {
        let mut contents = Vec::new();
        let mut read = |name: &str| {
            proc_table::read_file(stat.pid, name, &mut contents);
            contents.clone()
        };
        let (environ, arguments) = (read("environ"), read("cmdline"));
        let groups = String::from_utf8_lossy(&read("cgroup")).into_owned();
        Program { id: stat.id(), comm: stat.comm, environ, arguments, groups }
    }

    /// Returns whether the variable was in the environment when the process's program began. Unsetting it later changes
    /// nothing here.
    pub fn began_with(&self, variable: &str) -> bool {
        self.value(variable).is_some()
    }

    /// Returns the value that the variable had when the process's program began; `None` if it was not set.
    pub fn variable(&self, name: &str) -> Option<String> {
        String::from_utf8(self.value(name)?.to_vec()).ok()
    }

    fn value(&self, name: &str) -> Option<&[u8]> {
        let mut entries = self.environ.split(|&b| b == 0);
        entries.find_map(|entry| entry.strip_prefix(name.as_bytes())?.strip_prefix(b"="))
    }

    /// Returns the arguments, joined by spaces.
    pub fn command(&self) -> String {
        String::from_utf8_lossy(&self.arguments).replace('\0', " ")
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

    fn ancestor(environ: &[u8], arguments: &[u8], groups: &str) -> Program {
        Program {
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
