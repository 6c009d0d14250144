//! Address of a database: the URL, completed by the variables and files that other clients of PostgreSQL read too. A
//! password file has lines of `host:port:database:user:password`.

use std::{
    collections::BTreeMap,
    fmt::Write as _,
    fs,
    os::unix::fs::MetadataExt as _,
    path::{Path, PathBuf},
    time::Duration,
};

use outlast_core::store::Error;
use percent_encoding::percent_decode_str;
use tokio_postgres::{
    Config,
    config::{Host, SslMode},
};
use tokio_postgres_rustls::MakeRustlsConnect;

use super::{
    schema::SchemaName,
    statement::chain,
    tls::{Files, Mode, connector},
};

/// Connection timeout for each host, unless the URL sets one.
pub const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);

/// Time after which a silently lost TCP peer is noticed, unless the URL sets one.
const SILENCE: Duration = Duration::from_secs(30);

/// Default keepalive of tokio-postgres, which here means that the URL sets none.
const UNSET_KEEPALIVE: Duration = Duration::from_secs(2 * 60 * 60);

/// Options of the URL that the driver does not know, each with the variable that says the same.
const OWN: [(&str, &str); 5] = [
    ("sslmode", "PGSSLMODE"),
    ("sslrootcert", "PGSSLROOTCERT"),
    ("sslcert", "PGSSLCERT"),
    ("sslkey", "PGSSLKEY"),
    ("passfile", "PGPASSFILE"),
];

/// Option that names the schema of the store's tables. No other program knows it, and no variable sets it.
const SCHEMA: &str = "schema";

/// Address of a store in a database.
#[derive(Clone)]
pub struct Address {
    pub config: Config,
    pub tls: MakeRustlsConnect,
    pub schema: SchemaName,
    place: String,
}

impl Address {
    /// Parses a `postgres://` or `postgresql://` URL in libpq's form: a socket's directory is given as the host,
    /// percent-encoded, or as `?host=/directory`.
    ///
    /// `variable` looks an environment variable up. As in libpq, what the URL leaves open is taken from `PGHOST`,
    /// `PGHOSTADDR`, `PGPORT`, `PGUSER`, `PGPASSWORD`, `PGDATABASE`, `PGAPPNAME`, `PGCONNECT_TIMEOUT`, `PGSSLMODE`,
    /// `PGSSLROOTCERT`, `PGSSLCERT` and `PGSSLKEY`; a password also from the password file (`passfile`, `PGPASSFILE`,
    /// else `~/.pgpass`); certificates also from `~/.postgresql`.
    ///
    /// Errors: `Open`, whose text never repeats the URL, as it may hold a password.
    pub fn parse(url: &str, variable: &dyn Fn(&str) -> Option<String>) -> Result<Address, Error> {
        let refused = |place: &str, why: String| Error::Open { place: place.into(), why };
        let variable = |name: &str| variable(name).filter(|value| !value.is_empty());
        let (url, mut own) = taken_apart(url);
        for (option, name) in OWN {
            if let Some(value) = variable(name) {
                own.entry(option.into()).or_insert(value);
            }
        }
        let mut config: Config = url.parse().map_err(|e| refused("postgres://…", chain(&e)))?;
        complete(&mut config, &variable).map_err(|why| refused("postgres://…", why))?;
        let schema = own.get(SCHEMA).map(|name| SchemaName::parse(name)).transpose();
        let schema = schema.map_err(|why| refused(&place_of(&config), why))?.unwrap_or_default();
        let mut place = place_of(&config);
        if !schema.is_usual() {
            let and = if place.contains('?') { '&' } else { '?' };
            let _ = write!(place, "{and}{SCHEMA}={}", schema.as_str());
        }
        if config.get_hosts().is_empty() && config.get_hostaddrs().is_empty() {
            return Err(refused(
                &place,
                "the URL names no host and no socket's directory, and PGHOST is not set".into(),
            ));
        }
        if place.matches('@').count() > 1 {
            // The text after the first @ was parsed as the host, but may be the rest of a password.
            let why = "a part of the URL holds an @ that is not percent-encoded (%40)";
            return Err(refused("postgres://…", why.into()));
        }
        let home = variable("HOME").map(PathBuf::from);
        if config.get_password().is_none() {
            let named = own.get("passfile").map(PathBuf::from);
            let file = named.or_else(|| Some(home.as_ref()?.join(".pgpass")));
            if let Some(password) = file.and_then(|file| look_up(&file, &config)) {
                config.password(password);
            }
        }
        let tls = encrypt(&mut config, &own, home.as_deref()).map_err(|why| refused(&place, why))?;
        Ok(Address { config, tls, schema, place })
    }

    /// Returns the URL without its password and options, but for the schema.
    pub fn place(&self) -> &str {
        &self.place
    }

    /// Maps the reason of a failed connection attempt to an operation's error. That error is not `Io`, so that the
    /// store works again once the database does.
    pub fn unreachable(&self, why: &str) -> Error {
        Error::Unavailable { why: format!("the database {} cannot be reached: {why}", self.place) }
    }
}

/// Splits off the options of [`OWN`], and the schema. Returns the URL without them, and their decoded values.
fn taken_apart(url: &str) -> (String, BTreeMap<String, String>) {
    let (base, query) = url.split_once('?').unwrap_or((url, ""));
    let mut own = BTreeMap::new();
    let mut rest = Vec::new();
    for option in query.split('&').filter(|option| !option.is_empty()) {
        match option.split_once('=') {
            Some((name, value)) if name == SCHEMA || OWN.iter().any(|(own, _)| *own == name) => {
                own.insert(name.to_owned(), percent_decode_str(value).decode_utf8_lossy().into_owned());
            }
            _ => rest.push(option),
        }
    }
    let query = if rest.is_empty() { String::new() } else { format!("?{}", rest.join("&")) };
    (format!("{base}{query}"), own)
}

/// Sets the options that the URL leaves open. Errors: the reason as text, which contains no secret.
fn complete(config: &mut Config, variable: &dyn Fn(&str) -> Option<String>) -> Result<(), String> {
    if config.get_hosts().is_empty() && config.get_hostaddrs().is_empty() {
        let hosts = variable("PGHOST").unwrap_or_default();
        hosts.split(',').filter(|host| !host.is_empty()).for_each(|host| {
            config.host(host);
        });
        let addresses = variable("PGHOSTADDR").unwrap_or_default();
        for address in addresses.split(',').filter(|address| !address.is_empty()) {
            let address = address.parse().map_err(|_| "PGHOSTADDR holds no IP address".to_owned())?;
            config.hostaddr(address);
        }
    }
    if config.get_ports().is_empty()
        && let Some(ports) = variable("PGPORT")
    {
        for port in ports.split(',') {
            config.port(port.trim().parse().map_err(|_| "PGPORT holds no port".to_owned())?);
        }
    }
    if config.get_user().is_none()
        && let Some(user) = variable("PGUSER")
    {
        config.user(user);
    }
    if config.get_password().is_none()
        && let Some(password) = variable("PGPASSWORD")
    {
        config.password(password);
    }
    if config.get_dbname().is_none()
        && let Some(database) = variable("PGDATABASE")
    {
        config.dbname(database);
    }
    if config.get_application_name().is_none() {
        config.application_name(variable("PGAPPNAME").unwrap_or_else(|| "outlast".into()));
    }
    if config.get_connect_timeout().is_none() {
        let asked = variable("PGCONNECT_TIMEOUT").map(|text| text.trim().parse().map(Duration::from_secs));
        let asked =
            asked.transpose().map_err(|_| "PGCONNECT_TIMEOUT holds no number of seconds".to_owned())?;
        config.connect_timeout(asked.filter(|time| !time.is_zero()).unwrap_or(CONNECT_TIMEOUT));
    }
    if config.get_tcp_user_timeout().is_none() {
        config.tcp_user_timeout(SILENCE);
    }
    if config.get_keepalives_idle() == UNSET_KEEPALIVE {
        config.keepalives_idle(SILENCE);
    }
    Ok(())
}

/// Decides how the connection is encrypted. Errors: the reason as text.
fn encrypt(
    config: &mut Config,
    own: &BTreeMap<String, String>,
    home: Option<&Path>,
) -> Result<MakeRustlsConnect, String> {
    let asked = own.get("sslmode").map_or("prefer", String::as_str);
    let mode = Mode::parse(asked).ok_or_else(|| {
        format!("wanted sslmode disable, prefer, require, verify-ca or verify-full, had {asked:?}")
    })?;
    let at_home = |name: &str| Some(home?.join(".postgresql").join(name)).filter(|file| file.exists());
    let file = |option: &str, name: &str| own.get(option).map(PathBuf::from).or_else(|| at_home(name));
    let files = Files {
        roots: file("sslrootcert", "root.crt"),
        certificate: file("sslcert", "postgresql.crt"),
        key: file("sslkey", "postgresql.key"),
    };
    // As in libpq, a socket of this machine is never encrypted.
    let is_local = config.get_hosts().iter().all(|host| matches!(host, Host::Unix(_)))
        && config.get_hostaddrs().is_empty();
    let mode = if is_local { Mode::Disable } else { mode };
    config.ssl_mode(match mode {
        Mode::Disable => SslMode::Disable,
        Mode::Prefer => SslMode::Prefer,
        Mode::Require | Mode::VerifyCa | Mode::VerifyFull => SslMode::Require,
    });
    connector(mode, &files)
}

/// Returns `postgres://user@host:port/database`, built from the parsed URL.
fn place_of(config: &Config) -> String {
    let mut place = "postgres://".to_owned();
    if let Some(user) = config.get_user() {
        let _ = write!(place, "{user}@");
    }
    let ports = config.get_ports();
    let mut sockets = Vec::new();
    let mut hosts = Vec::new();
    for (i, host) in config.get_hosts().iter().enumerate() {
        let port = ports.get(i).or(ports.first()).copied().unwrap_or(5432);
        match host {
            Host::Unix(path) => sockets.push(path.display().to_string()),
            Host::Tcp(name) if port == 5432 => hosts.push(name.clone()),
            Host::Tcp(name) => hosts.push(format!("{name}:{port}")),
        }
    }
    if hosts.is_empty() {
        hosts.extend(config.get_hostaddrs().iter().map(ToString::to_string));
    }
    let _ = write!(place, "{}/{}", hosts.join(","), config.get_dbname().unwrap_or_default());
    if !sockets.is_empty() {
        let _ = write!(place, "?host={}", sockets.join(","));
    }
    place
}

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

    fn parse(url: &str, variables: &[(&str, &str)]) -> Result<Address, Error> {
        let look_up = |name: &str| variables.iter().find(|(n, _)| *n == name).map(|(_, v)| (*v).to_owned());
        Address::parse(url, &look_up)
    }

    #[test]
    fn a_place_names_the_database_and_never_its_password() {
        let check = |url: &str, place: &str| assert_eq!(parse(url, &[]).unwrap().place(), place);
        check("postgres://u:secret@db.example/app", "postgres://u@db.example/app");
        check("postgresql://u:se%3Fcret@db.example:6543/app", "postgres://u@db.example:6543/app");
        check("postgres://db/app?password=secret&user=u", "postgres://u@db/app");
        check("postgres://db/app?sslmode=require&user=u", "postgres://u@db/app");
        check("postgres://u:secret@a,b:6543/app", "postgres://u@a,b:6543/app");
        check("postgres://u:secret@%2Frun%2Fpg/app", "postgres://u@/app?host=/run/pg");
        check("postgres:///app?host=/run/pg", "postgres:///app?host=/run/pg");
        check("postgres:///app?host=%2Frun%2Fpg", "postgres:///app?host=/run/pg");
        check("postgres://u:secret@db/app?schema=team_a", "postgres://u@db/app?schema=team_a");
        check("postgres:///app?schema=team_a&host=/run/pg", "postgres:///app?host=/run/pg&schema=team_a");
        check("postgres://u@db/app?schema=outlast", "postgres://u@db/app");
    }

    #[test]
    fn a_url_that_cannot_be_used_is_refused_by_name_and_without_its_password() {
        let check = |url: &str, variables: &[(&str, &str)], wanted: &str| {
            let error = parse(url, variables).map(|_| ()).unwrap_err();
            let text = format!("{error} {error:?}");
            assert!(text.contains(wanted), "{text}");
            assert!(!text.contains("secret"), "{text}");
            assert_eq!(error.code(), "store_open");
        };
        check("postgres://u:secret@db/app?sslmode=maybe", &[], "verify-full, had \"maybe\"");
        check("postgres://u:secret@db/app?sslmode=verify-ca", &[], "sslrootcert");
        check(
            "postgres://u:secret@db/app?sslrootcert=/none/ca.pem",
            &[("PGSSLMODE", "verify-full")],
            "/none/ca.pem",
        );
        check("postgres://u:secret@db/app?sslrootcert=system&sslmode=require", &[], "sslmode=verify-full");
        check("postgres://u:secret@db/app?sslcert=/none/me.pem", &[], "sslkey");
        check("postgres://u:secret@db/app?schema=Team-A", &[], "lower-case letters");
        check("postgres://u:secret@db/app?schema=pg_temp", &[], "the database's own");
        check("postgres://u:secret@db/app?color=red", &[], "unknown option `color`");
        check("postgres://u:secret@db:no/app", &[], "port");
        check("postgres://u:pass@secret@db/app", &[], "%40");
        check("postgres:///app", &[], "no host");
        check("postgres:///app", &[("PGHOST", "db"), ("PGPORT", "many")], "PGPORT");
    }

    #[test]
    fn variables_complete_a_url_and_never_override_it() {
        let all = [
            ("PGHOST", "db.example"),
            ("PGPORT", "6543"),
            ("PGUSER", "ann"),
            ("PGPASSWORD", "secret"),
            ("PGDATABASE", "app"),
            ("PGSSLMODE", "require"),
            ("PGCONNECT_TIMEOUT", "7"),
        ];
        let address = parse("postgres://", &all).unwrap();
        assert_eq!(address.place(), "postgres://ann@db.example:6543/app");
        assert_eq!(address.config.get_password(), Some(&b"secret"[..]));
        assert_eq!(address.config.get_ssl_mode(), SslMode::Require);
        assert_eq!(address.config.get_connect_timeout(), Some(&Duration::from_secs(7)));
        let url = "postgres://bob:own@other:1/theirs?sslmode=disable&connect_timeout=2";
        let address = parse(url, &all).unwrap();
        assert_eq!(address.place(), "postgres://bob@other:1/theirs");
        assert_eq!(address.config.get_password(), Some(&b"own"[..]));
        assert_eq!(address.config.get_ssl_mode(), SslMode::Disable);
        assert_eq!(address.config.get_connect_timeout(), Some(&Duration::from_secs(2)));
        // A socket is never encrypted, as nothing could be checked.
        let address = parse("postgres:///app?host=/run/pg&sslmode=require", &[]).unwrap();
        assert_eq!(address.config.get_ssl_mode(), SslMode::Disable);
    }

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
