//! Endpoints that are commands: the message as JSON on standard input, no shell, no keys in the environment.

use std::{
    io::Write as _,
    process::{Command, Stdio},
    time::Duration,
};

use outlast_process::helper::Helper;

/// Time in which a notification command has to end.
const LONGEST: Duration = Duration::from_secs(30);

/// Variables that a notification command is given: those that desktop programs or a mailer need.
const KEPT: [&str; 13] = [
    "PATH",
    "HOME",
    "USER",
    "LOGNAME",
    "LANG",
    "LC_ALL",
    "TZ",
    "TMPDIR",
    "DISPLAY",
    "WAYLAND_DISPLAY",
    "XDG_RUNTIME_DIR",
    "XDG_CONFIG_HOME",
    "DBUS_SESSION_BUS_ADDRESS",
];

/// Runs a command with `message` on its standard input, without a shell. Errors: it cannot be started, fails, or does
/// not end in time.
pub async fn run(argv: Vec<String>, message: String) -> Result<(), String> {
    let ran = tokio::task::spawn_blocking(move || run_here(&argv, &message)).await;
    ran.unwrap_or_else(|e| Err(e.to_string()))
}

fn run_here(argv: &[String], message: &str) -> Result<(), String> {
    let Some((program, arguments)) = argv.split_first() else { return Err("there is no command".into()) };
    let kept = KEPT.iter().filter_map(|name| Some((name, std::env::var_os(name)?)));
    let mut command = Command::new(program);
    command.args(arguments).env_clear().envs(kept);
    command.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::null());
    let mut child = Helper::start(&mut command).map_err(|e| format!("{program}: {e}"))?;
    if let Some(mut stdin) = child.stdin() {
        // A command that reads nothing is no failure.
        let _ = stdin.write_all(message.as_bytes()).and_then(|()| stdin.write_all(b"\n"));
    }
    match child.ends_within(LONGEST) {
        Ok(Some(status)) if status.success() => Ok(()),
        Ok(Some(status)) => Err(format!("{program} ended with {status}")),
        Ok(None) => Err(format!("{program} did not end within {} s", LONGEST.as_secs())),
        Err(e) => Err(format!("{program}: {e}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_command_gets_the_message_and_no_key_and_its_failure_is_told() {
        let directory = tempfile::tempdir().unwrap();
        let to = directory.path().join("got");
        let script = format!("cat > {0}; env >> {0}", to.display());
        let argv = |script: &str| vec!["sh".to_owned(), "-c".into(), script.into()];
        run_here(&argv(&script), "{\"a\": 1}").unwrap();
        let got = std::fs::read_to_string(&to).unwrap();
        assert!(got.starts_with("{\"a\": 1}\n"), "{got}");
        // Of what cargo sets for every test, nothing is passed on.
        assert!(
            std::env::var_os("CARGO_MANIFEST_DIR").is_some() && !got.contains("CARGO_MANIFEST_DIR"),
            "{got}"
        );
        assert!(run_here(&argv("exit 3"), "").unwrap_err().contains("exit status: 3"));
        assert!(run_here(&["/no/such/program".into()], "").unwrap_err().contains("/no/such/program"));
    }
}
