//! `outlast service install|remove|status`: manages the systemd user unit that resumes interrupted runs.

use std::{ffi::OsStr, os::unix::ffi::OsStrExt as _, process::Command};

use clap::ValueEnum;

use super::prelude::*;
use crate::{disk, settings::env_file};

/// Have interrupted runs go on by themselves, by a unit of your systemd
///
/// The unit runs `outlast resume --all --stay` from now on, and whenever you log in: a run whose supervisor died goes on
/// within seconds, and after a reboot. `loginctl enable-linger` starts your systemd at boot,
/// and keeps it when you log out: without it a run in the background may end with your session.
#[derive(Args, Clone, Debug)]
#[command(
    after_help = "Examples:\n  outlast service install\n  outlast service install --print\n  outlast service status"
)]
pub struct ServiceArgs {
    /// install, remove or status
    #[arg(value_name = "VERB", value_enum)]
    pub verb: ServiceVerb,
    /// With install: print the unit, and change nothing
    #[arg(long)]
    pub print: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum ServiceVerb {
    Install,
    #[value(alias = "uninstall")]
    Remove,
    Status,
}

impl ServiceArgs {
    /// Whether it changes what systemd does.
    pub fn changes(&self) -> bool {
        self.verb != ServiceVerb::Status && !self.print
    }
}

const UNIT: &str = "outlast.service";

/// Advice for a machine on which runs are to go on while nobody is logged in.
const LINGER: &str = "to have it at boot, before you log in, and after you log out: loginctl enable-linger";

pub fn service(args: &ServiceArgs, context: &Context, page: &mut Page) -> Result {
    let path = unit_path(&context.around)?;
    match args.verb {
        ServiceVerb::Install => {
            let wanted = wanted(context)?;
            let text = unit(&crate::program()?, &context.place, &context.around, &wanted)?;
            // Without systemd nothing is known to be there.
            let there = systemctl(&["show-environment"]).unwrap_or_default();
            let is_there = |name: &String| there.lines().any(|l| l.split('=').next() == Some(name.as_str()));
            let missing: Vec<&str> =
                wanted.iter().filter(|name| !is_there(name)).map(String::as_str).collect();
            if !missing.is_empty() {
                say(&format!(
                    "unfinished runs were begun with variables that the unit lacks: {} (put them into \
                     ~/.config/environment.d/, or begin runs with --env-file)",
                    missing.join(", ")
                ));
            }
            if args.print {
                // Printed to stderr: standard output has to be a valid unit file.
                say(LINGER);
                return Ok(page.text(&text)?);
            }
            // Checked first: if systemd cannot be reached, nothing is left behind.
            systemctl(&["daemon-reload"])?;
            disk::write(&path, text.as_bytes())?;
            systemctl(&["daemon-reload"])?;
            systemctl(&["enable", "--now", UNIT])?;
            page.line(&format!("installed {}", path.display()))?;
            page.line("it resumes what a death interrupts, from now on and when you log in: `outlast resume --all --stay`")?;
            Ok(page.line(LINGER)?)
        }
        ServiceVerb::Remove => {
            if !path.exists() {
                return Err(CommandError::NotInstalled { unit: path }.into());
            }
            // The unit file is removed even if systemd fails to disable it; the error is reported afterwards.
            let disabled = systemctl(&["disable", UNIT]);
            fs::remove_file(&path)?;
            disabled?;
            systemctl(&["daemon-reload"])?;
            page.line(&format!("removed {}", path.display()))?;
            Ok(page.line("what it has resumed goes on; `systemctl --user stop outlast` interrupts that")?)
        }
        ServiceVerb::Status => {
            let installed = path.exists();
            let asked = |what: &str| systemctl(&[what, UNIT]).unwrap_or_else(|_| "unknown".into());
            let (enabled, active) = (asked("is-enabled"), asked("is-active"));
            if page.look.json {
                let unit = path.to_string_lossy();
                let status =
                    json!({"unit": unit, "installed": installed, "enabled": enabled, "active": active});
                return Ok(page.json(&status)?);
            }
            match installed {
                true => page.line(&format!("{}: {enabled}, {active}", path.display()))?,
                false => page.line(&format!("not installed: there is no {}", path.display()))?,
            }
            Ok(())
        }
    }
}

/// Returns the names of the variables that unfinished runs were begun with, and that a start by systemd would lack: no
/// run stores them, and no file of variables supplies them.
fn wanted(context: &Context) -> Result<Vec<String>> {
    if context.has_no_file() {
        return Ok(Vec::new());
    }
    let store = context.open(false, Default::default())?;
    let mut wanted = BTreeSet::new();
    for view in runs::each(&*store, RunFilter::default()) {
        let view = view?;
        if let Some(command) = view.spec.command.filter(|_| !view.run.status.is_ended()) {
            let file = command
                .env_file
                .as_deref()
                .map(|file| env_file::read(Path::new(file)).map_err(InputError::from))
                .transpose()?;
            let given = Surroundings::default().with(file.unwrap_or_default());
            wanted.extend(env_file::missing(&command.variables, &command.env, &given));
        }
    }
    Ok(wanted.into_iter().collect())
}

/// Returns the unit's path: `$XDG_CONFIG_HOME/systemd/user/outlast.service`.
fn unit_path(around: &Surroundings) -> Result<PathBuf> {
    let config = around.config_directory().ok_or(CommandError::NoHome)?;
    // The systemd directory is a sibling of Outlast's own.
    Ok(config.with_file_name("systemd").join("user").join(UNIT))
}

/// Returns the text of the unit. `outlast resume --all --stay` is stopped gently: each of its runs is then interrupted,
/// and goes on at the next start. The names in `wanted` stand in a comment: no value is in a unit.
///
/// Errors: the store's address holds a password, which must not be in a unit.
fn unit(program: &Path, place: &StoreAddress, around: &Surroundings, wanted: &[String]) -> Result<String> {
    let store = match place {
        StoreAddress::File(path) => path.as_os_str().to_owned(),
        StoreAddress::Postgres(_) => match place.without_secret() {
            Some(address) => address.into(),
            None => {
                return Err(CommandError::SecretInUnit { place: place.to_string() }.into());
            }
        },
    };
    let path = around.var("PATH").unwrap_or(OsStr::new("/usr/local/bin:/usr/bin:/bin"));
    let environment = |name: &str, value: &OsStr| -> Result<String> {
        let mut word = name.as_bytes().to_vec();
        word.push(b'=');
        word.extend(value.as_bytes());
        // systemd expands no variables in `Environment`.
        Ok(format!("Environment={}\n", quoted(&word, false)?))
    };
    let wanted = match wanted {
        [] => String::new(),
        names => format!("# Unfinished runs were begun with: {}\n", names.join(" ")),
    };
    Ok(format!(
        "# Written by `outlast service install`; `outlast service remove` removes it.\n\
         [Unit]\n\
         Description=Outlast: interrupted runs go on\n\
         \n\
         [Service]\n\
         Type=exec\n\
         ExecStart={} resume --all --stay\n\
         Restart=on-failure\n\
         RestartSec=10\n\
         {}{}{wanted}\
         Delegate=yes\n\
         TimeoutStopSec=90\n\
         \n\
         [Install]\n\
         WantedBy=default.target\n",
        quoted(program.as_os_str().as_bytes(), true)?,
        environment("PATH", path)?,
        environment("OUTLAST_STORE", &store)?,
    ))
}

/// Quotes one word of a unit file. `expands` says whether systemd expands variables in that place.
///
/// Errors: the word is not UTF-8, or has a byte that a unit cannot hold.
fn quoted(word: &[u8], expands: bool) -> Result<String> {
    let text = std::str::from_utf8(word).ok().filter(|text| !text.contains(['\0', '\n', '\r']));
    let Some(text) = text else {
        return Err(CommandError::BadUnit { word: String::from_utf8_lossy(word).into_owned() }.into());
    };
    let mut out = String::from("\"");
    for c in text.chars() {
        match c {
            '"' | '\\' => out.extend(['\\', c]),
            '%' => out.push_str("%%"),
            '$' if expands => out.push_str("$$"),
            c => out.push(c),
        }
    }
    out.push('"');
    Ok(out)
}

/// Runs `systemctl --user` and returns its output. Errors: systemctl is missing, or failed.
fn systemctl(args: &[&str]) -> Result<String> {
    let failed = |why: String| CommandError::Systemctl { verb: args.join(" "), why };
    let done = Command::new("systemctl")
        .arg("--user")
        .args(args)
        .output()
        .map_err(|e| failed(format!("cannot run systemctl: {e}")))?;
    let said = |bytes: &[u8]| String::from_utf8_lossy(bytes).trim().to_owned();
    // `is-…` verbs report a negative answer by their exit code: that is no failure.
    if done.status.success() || args.first().is_some_and(|verb| verb.starts_with("is-")) {
        return Ok(said(&done.stdout));
    }
    Err(failed(said(&done.stderr)).into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_of_a_unit_are_themselves_whatever_is_in_them() {
        for (word, expands, wanted) in [
            ("/usr/bin/outlast", true, r#""/usr/bin/outlast""#),
            ("/a b/\"c\"\\d", true, r#""/a b/\"c\"\\d""#),
            ("/100%/$HOME", true, r#""/100%%/$$HOME""#),
            ("A=/100%/$HOME", false, r#""A=/100%%/$HOME""#),
        ] {
            assert_eq!(quoted(word.as_bytes(), expands).unwrap(), wanted);
        }
        assert!(quoted(b"/a\nExecStart=/bin/evil", true).is_err());
        assert!(quoted(b"/\xff", true).is_err());
    }

    #[test]
    fn unit_names_program_and_store() {
        let around = Surroundings::new(&[("PATH", "/bin"), ("HOME", "/home/ann")], Path::new("/"));
        let text = unit(
            Path::new("/opt/out last"),
            &StoreAddress::File("/var/r.db".into()),
            &around,
            &["DB_URL".into()],
        )
        .unwrap();
        for line in [
            "ExecStart=\"/opt/out last\" resume --all --stay",
            "Environment=\"OUTLAST_STORE=/var/r.db\"",
            "# Unfinished runs were begun with: DB_URL",
        ] {
            assert!(text.lines().any(|l| l == line), "{text}");
        }
        let path = unit_path(&around).unwrap();
        assert_eq!(path, Path::new("/home/ann/.config/systemd/user/outlast.service"));
        let secret = StoreAddress::Postgres("postgres://ann:secret@h/d".into());
        let refused = unit(Path::new("/o"), &secret, &around, &[]).unwrap_err();
        assert!(!refused.text().contains(":secret"), "{}", refused.text());
    }
}
