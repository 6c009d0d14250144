//! Password files: lines of `host:port:database:user:password`, as PostgreSQL's own clients read them.

use std::{fs, os::unix::fs::MetadataExt as _, path::Path};

use tokio_postgres::{Config, config::Host};

/// Returns the password of the first line that matches the first host of `config`.
///
/// `None` if there is no such line or file, or if others than its owner can read it, which is logged.
pub fn look_up(file: &Path, config: &Config) -> Option<String> {
    let mode = fs::metadata(file).ok()?.mode();
    if mode & 0o077 != 0 {
        tracing::warn!("{} is not read, as others can read it; `chmod 600` it", file.display());
        return None;
    }
    let text = fs::read_to_string(file).ok()?;
    let host = match config.get_hosts().first() {
        Some(Host::Tcp(name)) => name.clone(),
        Some(Host::Unix(_)) => "localhost".into(),
        None => config.get_hostaddrs().first()?.to_string(),
    };
    let port = config.get_ports().first().copied().unwrap_or(5432).to_string();
    let user = config.get_user().unwrap_or_default();
    let asked = [host.as_str(), &port, config.get_dbname().unwrap_or(user), user];
    text.lines().filter(|line| !line.starts_with('#')).find_map(|line| password(line, asked))
}

/// Returns the password of a line that matches host, port, database and user.
fn password(line: &str, asked: [&str; 4]) -> Option<String> {
    let mut fields = fields(line).into_iter();
    let matches =
        asked.iter().all(|asked| fields.next().is_some_and(|field| field == "*" || field == *asked));
    fields.next().filter(|password| matches && !password.is_empty())
}

/// Splits a line at its colons; a backslash takes the next character as it is.
fn fields(line: &str) -> Vec<String> {
    let mut fields = vec![String::new()];
    let mut letters = line.chars();
    while let Some(letter) = letters.next() {
        let letter = match letter {
            ':' => {
                fields.push(String::new());
                continue;
            }
            '\\' => letters.next(),
            letter => Some(letter),
        };
        if let (Some(field), Some(letter)) = (fields.last_mut(), letter) {
            field.push(letter);
        }
    }
    fields
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    #[test]
    fn first_line_that_matches_gives_the_password() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("pgpass");
        let lines =
            "# db:5432:app:ann:comment\ndb:5432:other:ann:no\ndb:*:app:ann:a\\:b\\\\c\n*:*:*:bob:two\n";
        fs::write(&file, lines).unwrap();
        fs::set_permissions(&file, fs::Permissions::from_mode(0o600)).unwrap();
        let check = |url: &str, wanted: Option<&str>| {
            assert_eq!(look_up(&file, &url.parse().unwrap()).as_deref(), wanted, "{url}");
        };
        check("postgres://ann@db/app", Some("a:b\\c"));
        check("postgres://ann@db:6543/app", Some("a:b\\c"));
        check("postgres://ann@db:6543/other", None);
        check("postgres://bob@/x?host=/run/pg", Some("two"));
        check("postgres://eve@db/app", None);
        fs::set_permissions(&file, fs::Permissions::from_mode(0o640)).unwrap();
        check("postgres://ann@db/app", None);
        assert_eq!(look_up(&dir.path().join("none"), &"postgres://ann@db/app".parse().unwrap()), None);
    }
}
