//! How the help is laid out: headings of `outlast --help`, below which its commands stand, and what `outlast run --help`
//! leaves to `--help-all`.

use clap::{Arg, ArgAction, Command};

/// Each heading with the first command that stands below it. The commands' order is that of `Command`.
pub const HEADINGS: [(&str, &str); 9] = [
    ("Run", "run"),
    ("Look", "ui"),
    ("Money", "budget"),
    ("Decide", "approvals"),
    ("Jobs", "jobs"),
    ("State", "state"),
    ("Files", "files"),
    ("Loops", "ctx"),
    ("Upkeep", "init"),
];

/// Width of the column of command names, in characters: the descriptions begin behind it.
const INDENT: usize = 15;

/// Returns the definition with its commands listed below headings. clap has headings for flags only.
pub fn with_headings(command: Command) -> Command {
    let mut listed = String::new();
    let mut list = |name: &str, about: &str| {
        if let Some((heading, _)) = HEADINGS.iter().find(|(_, first)| *first == name) {
            listed.push_str(&format!("\n{heading}:\n"));
        }
        listed.push_str(&format!("  {name:<width$}{about}\n", width = INDENT - 2));
    };
    for command in command.get_subcommands().filter(|command| !command.is_hide_set()) {
        let about = command.get_about().map(ToString::to_string).unwrap_or_default();
        list(command.get_name(), &about);
    }
    list("help", "Print this page, or the help of a command");
    listed.push_str("\nGlobal options:\n");
    for arg in command.get_arguments() {
        let help = arg.get_help().map(ToString::to_string).unwrap_or_default();
        let default = arg.get_default_values().first().map(|value| value.to_string_lossy());
        let default = default.filter(|value| value != "false");
        let default = default.map_or_else(String::new, |value| format!(" [default: {value}]"));
        let value = arg.get_value_names().filter(|_| arg.get_action().takes_values());
        let value = value.and_then(|names| names.first());
        let value = value.map_or_else(String::new, |name| format!(" <{name}>"));
        let flag = format!("--{}{value}", arg.get_long().unwrap_or_default());
        listed.push_str(&format!("      {flag:<19}{help}{default}\n"));
    }
    listed.push_str(&format!("  {:<23}Print help\n  {:<23}Print version\n", "-h, --help", "-V, --version"));
    command
        .help_template(format!("{{about-with-newline}}\n{{usage-heading}} {{usage}}\n{listed}{{after-help}}"))
}

/// Options of `outlast run` that most people need, by their long flags.
const OFTEN: &str = "\
    run new name tag env-file detach loop until stdin usd calls wall plan policy files intercept confine";

/// Returns the definition with a short help of `outlast run`, which has the options that most people need.
pub fn with_short_help(command: Command) -> Command {
    let of_help = |name: &'static str, action: ArgAction, about: &'static str| {
        Arg::new(name).long(name).action(action).help(about)
    };
    command.mut_subcommand("run", |run| {
        let count = run.get_arguments().filter(|arg| arg.get_long().is_some()).count();
        let often = |arg: &Arg| arg.get_long().is_none_or(|long| OFTEN.split(' ').any(|often| often == long));
        let examples = run.get_after_help().map(ToString::to_string).unwrap_or_default();
        run.mut_args(|arg| if often(&arg) { arg } else { arg.hide_short_help(true) })
            .disable_help_flag(true)
            .next_help_heading(None)
            .arg(
                of_help("help", ArgAction::HelpShort, "Print the help of the options that most people need")
                    .short('h'),
            )
            .arg(of_help("help-all", ArgAction::HelpLong, "Print the help of all options"))
            .after_help(format!("`outlast run --help-all` tells all {count} options.\n\n{examples}"))
            .after_long_help(examples)
    })
}
