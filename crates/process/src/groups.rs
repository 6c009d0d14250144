//! Process groups below this process: whoever waits for a job of an agent's sees here when it is over.

use std::{
    collections::{BTreeSet, HashMap, HashSet},
    io,
};

use crate::proc_table::{self, Stat};

/// Returns the process groups in which a living descendant of this process is.
///
/// A shell gives each of its jobs a group, and so do CLI agents each of their tools; what a job starts stays in its group
/// unless it leaves it. Errors: `/proc` cannot be read.
pub fn below_self() -> io::Result<BTreeSet<u32>> {
    Ok(below(&proc_table::walk()?, proc_table::own_pid()))
}

fn below(table: &[Stat], root: u32) -> BTreeSet<u32> {
    let mut children: HashMap<u32, Vec<&Stat>> = HashMap::new();
    for stat in table {
        children.entry(stat.ppid).or_default().push(stat);
    }
    let (mut groups, mut next, mut seen) = (BTreeSet::new(), vec![root], HashSet::new());
    while let Some(pid) = next.pop() {
        // The table is no snapshot: a number may come twice, or above itself.
        if !seen.insert(pid) {
            continue;
        }
        for stat in children.get(&pid).into_iter().flatten() {
            if !stat.is_dead() {
                groups.insert(stat.group);
            }
            next.push(stat.pid);
        }
    }
    groups
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn groups_of_living_descendants_are_listed() {
        let stat = |pid: u32, ppid: u32, group: u32, state: char| {
            let line =
                format!("{pid} (a (b) c) {state} {ppid} {group} 1 0 -1 0 0 0 0 0 0 0 0 0 20 0 1 0 7 0 0");
            Stat::parse(line.as_bytes()).unwrap()
        };
        let table = [
            stat(1, 0, 1, 'S'),
            stat(10, 1, 10, 'S'),
            stat(11, 10, 10, 'S'),
            stat(12, 10, 12, 'Z'),
            stat(13, 12, 13, 'R'),
            stat(20, 1, 20, 'S'),
        ];
        assert_eq!(below(&table, 10), BTreeSet::from([10, 13]));
        assert_eq!(below(&table, 13), BTreeSet::new());
        // A table in which a parent's number was used again.
        assert_eq!(below(&[stat(5, 6, 5, 'S'), stat(6, 5, 6, 'S')], 5), BTreeSet::from([5, 6]));
    }
}
