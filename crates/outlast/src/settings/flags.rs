//! Long flags, each with the places besides the command line that may set it.
//!
//! A flag that is not in the table is typed or not given. A test walks all commands: each flag has one row.

use self::SetBy::{Anyone, Owner, Typing};

/// Places that may set a flag.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SetBy {
    /// The command line alone: what acts, and what names one thing to act on.
    Typing,
    /// Also variables, the user's own file, and a directory's file that the user trusts as it is.
    Owner,
    /// Also a directory's file that anybody wrote, an agent for one: how output looks.
    Anyone,
}

/// All long flags. `COMMAND.FLAG` is a flag whose name means something else in other commands.
const FLAGS: [(SetBy, &str); 3] = [
    (
        Typing,
        "accept-shorter add-active add-calls add-loops add-restarts add-tokens add-usd add-wall approve.by as at \
         attempt bundle cd deny digest dir dry-run failed force fork.name fork.usd from-snapshot hand-over header header-env help \
         help-all hide id into key kill-at loop ls.name ls.tag net no-limit older-than only open pid reason repair \
         rerun result resume resume.all resume.files resume.stay reuse-answers rm.tag set-active set-calls set-loops \
         set-restarts set-tokens set-usd set-wall sign state-file take-back to until-eof url verify withdraw",
    ),
    (
        Owner,
        "active admission admit-wait agent all allow-host allow-net anthropic-base-url api-token-file \
         attempts badge bare by cache cached calls confine confine-net cpu default-loops default-usd default-wall detach \
         diff divergence drain durability effects encoding env env-file fail files files-exclude files-ignored \
         files-max first-byte-timeout follow \
         foreign-responses gaps gemini-base-url grace grep grpc grpc-conflicts hide-env idempotent idle-end idle-timeout ignore in-doubt \
         input intercept junit keep kind latency limit lines listen live log loops markdown max max-body max-iterations max-lives mcp \
         memory memory-by minutes mock name new no-logs no-progress on-divergence on-halt openai-base-url orphans outage \
         outage-pause outage-wait output pause-wall plan plan-window policy prices print pty rate-limit raw read-only \
         reads reasoning record recording restarts resume-tax run seed server settle-wait since status stdin \
         stdout stop-at-limit store store-wait tag tier tokens transcript trust unpriced until upstream \
         upstream-concurrency upstream-rate upstream-retries usage usd wait wall warm-resume",
    ),
    (Anyone, "color json plain verbose wide"),
];

/// Returns the places that may set the flag `long` of `command`.
pub fn set_by(command: &str, long: &str) -> SetBy {
    rows(command, long).map(|(by, _)| by).next().unwrap_or(Typing)
}

/// Returns the rows for the flag `long` of `command`, the one that names the command first.
fn rows(command: &str, long: &str) -> impl Iterator<Item = (SetBy, &'static str)> {
    let all = || FLAGS.into_iter().flat_map(|(by, names)| names.split(' ').map(move |name| (by, name)));
    let (of_command, of_any) = (format!("{command}.{long}"), long.to_owned());
    all().filter(move |row| row.1 == of_command).chain(all().filter(move |row| row.1 == of_any))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_flag_has_one_row_and_each_row_a_flag() {
        let command = crate::commands::command();
        let mut seen = std::collections::BTreeSet::new();
        for sub in command.get_subcommands() {
            for long in command.get_arguments().chain(sub.get_arguments()).filter_map(|arg| arg.get_long()) {
                let found: Vec<_> = rows(sub.get_name(), long).collect();
                let of_command = found.iter().filter(|row| row.1 != long).count();
                let of_any = found.len() - of_command;
                assert!(of_command <= 1 && of_any <= 1, "{} --{long}: {found:?}", sub.get_name());
                let row = found.first().unwrap_or_else(|| panic!("{} --{long} has no row", sub.get_name()));
                seen.insert(row.1);
            }
        }
        for (_, names) in FLAGS {
            assert!(names.split(' ').is_sorted(), "{names}");
            assert_eq!(names.split(' ').find(|name| !seen.contains(name)), None, "no such flag");
        }
    }
}
