//! Database addresses, connections to them, and the mapping of PostgreSQL's errors.

use std::{error::Error as _, fmt::Write as _, time::Duration};

use outlast_core::store::Error;
use tokio_postgres::{
    Client, Config, NoTls,
    config::{Host, SslMode},
    error::{Severity, SqlState},
};

/// Connection timeout for each host, unless the URL sets one.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);

/// Time after which a silently lost TCP peer is noticed, unless the URL sets one.
const SILENCE: Duration = Duration::from_secs(30);

/// Default keepalive of tokio-postgres, which here means that the URL sets none.
const UNSET_KEEPALIVE: Duration = Duration::from_secs(2 * 60 * 60);

/// Address of a database.
#[derive(Clone)]
pub struct Address {
    config: Config,
    place: String,
}

impl Address {
    /// Parses a `postgres://` or `postgresql://` URL in libpq's form: a socket's directory is given as the host,
    /// percent-encoded, or as `?host=/directory`.
    ///
    /// Errors: `Open`, whose text never repeats the URL, as it may hold a password.
    pub fn parse(url: &str) -> Result<Address, Error> {
        let refused = |place: &str, why: String| Error::Open { place: place.into(), why };
        let mut config: Config = url.parse().map_err(|e| refused("postgres://…", chain(&e)))?;
        if config.get_application_name().is_none() {
            config.application_name("outlast");
        }
        if config.get_connect_timeout().is_none() {
            config.connect_timeout(CONNECT_TIMEOUT);
        }
        if config.get_tcp_user_timeout().is_none() {
            config.tcp_user_timeout(SILENCE);
        }
        if config.get_keepalives_idle() == UNSET_KEEPALIVE {
            config.keepalives_idle(SILENCE);
        }
        let place = place_of(&config);
        if config.get_hosts().is_empty() && config.get_hostaddrs().is_empty() {
            return Err(refused(&place, "the URL names no host and no socket's directory".into()));
        }
        if place.matches('@').count() > 1 {
            // The text after the first @ was parsed as the host, but may be the rest of a password.
            let why = "a part of the URL holds an @ that is not percent-encoded (%40)";
            return Err(refused("postgres://…", why.into()));
        }
        if config.get_ssl_mode() == SslMode::Require {
            let why = "the URL asks for sslmode=require, and this outlast does not speak TLS to databases";
            return Err(refused(&place, why.into()));
        }
        Ok(Address { config, place })
    }

    /// Returns the URL without its password and options.
    pub fn place(&self) -> &str {
        &self.place
    }

    /// Connects, and drives the connection on the current runtime. Takes a bounded time.
    pub async fn connect(&self) -> Result<Client, ConnectError> {
        let hosts = self.config.get_hosts().len().max(self.config.get_hostaddrs().len()).max(1);
        let each = self.config.get_connect_timeout().copied().unwrap_or(CONNECT_TIMEOUT);
        // The driver's timeout covers only the TCP handshake; this one also covers a server that hangs later.
        let all = each * u32::try_from(hosts).unwrap_or(1) + CONNECT_TIMEOUT;
        let connected = tokio::time::timeout(all, self.config.connect(NoTls));
        let (client, connection) = match connected.await {
            Ok(Ok(both)) => both,
            Ok(Err(e)) => return Err(ConnectError::new(&e)),
            Err(_) => {
                let why = format!("it did not answer within {} s", all.as_secs());
                return Err(ConnectError { why, may_pass: true });
            }
        };
        // Whoever waits for a statement is given the connection's error.
        tokio::spawn(connection);
        Ok(client)
    }

    /// Maps a failed connection attempt to an operation's error. It is not `Io`, so that the store works again once the
    /// database does.
    pub fn unreachable(&self, e: &ConnectError) -> Error {
        Error::Unavailable { why: format!("the database {} cannot be reached: {}", self.place, e.why) }
    }
}

/// Failure of a connection attempt.
pub struct ConnectError {
    pub why: String,
    /// Whether a later attempt may succeed without any intervention.
    pub may_pass: bool,
}

impl ConnectError {
    fn new(e: &tokio_postgres::Error) -> ConnectError {
        // A wrong password or database name stays wrong; a server that is starting or full does not stay so.
        let may_pass = e.code().is_none_or(|code| !matches!(&code.code()[..2], "28" | "3D" | "42"));
        ConnectError { why: chain(e), may_pass }
    }
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

/// Returns the error's text with all its causes.
pub fn chain(e: &tokio_postgres::Error) -> String {
    if let Some(db) = e.as_db_error() {
        let detail = db.detail().map(|d| format!(" ({d})")).unwrap_or_default();
        return format!("{}{detail}", db.message());
    }
    let mut text = e.to_string();
    let mut source = e.source();
    while let Some(e) = source {
        let _ = write!(text, ": {e}");
        source = e.source();
    }
    text
}

/// Maps a PostgreSQL error to the store's error.
///
/// Only the server's own trouble with its files becomes `Io`, which closes the store until it is reopened. All other
/// errors either pass or guarantee that nothing was changed.
pub fn failure(e: tokio_postgres::Error) -> Error {
    let why = chain(&e);
    let Some(code) = e.code() else {
        return Error::Unavailable { why: format!("the connection to the database was lost: {why}") };
    };
    match code {
        &SqlState::DISK_FULL => Error::Full { why },
        &SqlState::LOCK_NOT_AVAILABLE => {
            Error::Unavailable { why: "another server holds the store's lock for too long".into() }
        }
        code => match &code.code()[..2] {
            // Data exceptions, violated constraints, missing tables and columns, broken pages: the database does
            // not hold what Outlast wrote.
            "22" | "23" | "42" | "3F" | "XX" if *code != SqlState::INSUFFICIENT_PRIVILEGE => {
                Error::Corrupt { what: why }
            }
            "58" => Error::Io { why },
            _ => Error::Unavailable { why },
        },
    }
}

/// Returns whether a failed COMMIT is known to have changed nothing.
///
/// That is so if the connection survives the error: the transaction was aborted. The commit may have happened if the
/// session ends (FATAL, PANIC, a cut connection), or if a proxy in between reports that it does not know.
pub fn rolled_back(e: &tokio_postgres::Error) -> bool {
    e.as_db_error().is_some_and(|db| {
        db.parsed_severity() == Some(Severity::Error)
            && !db.code().code().starts_with("08")
            && *db.code() != SqlState::T_R_STATEMENT_COMPLETION_UNKNOWN
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_place_names_the_database_and_never_its_password() {
        let check = |url: &str, place: &str| assert_eq!(Address::parse(url).unwrap().place(), place);
        check("postgres://u:secret@db.example/app", "postgres://u@db.example/app");
        check("postgresql://u:se%3Fcret@db.example:6543/app", "postgres://u@db.example:6543/app");
        check("postgres://db/app?password=secret&user=u", "postgres://u@db/app");
        check("postgres://u:secret@a,b:6543/app", "postgres://u@a,b:6543/app");
        check("postgres://u:secret@%2Frun%2Fpg/app", "postgres://u@/app?host=/run/pg");
        check("postgres:///app?host=/run/pg", "postgres:///app?host=/run/pg");
        check("postgres:///app?host=%2Frun%2Fpg", "postgres:///app?host=/run/pg");
    }

    #[test]
    fn a_url_that_cannot_be_used_is_refused_by_name_and_without_its_password() {
        let check = |url: &str, wanted: &str| {
            let error = Address::parse(url).map(|_| ()).unwrap_err();
            let text = format!("{error} {error:?}");
            assert!(text.contains(wanted), "{text}");
            assert!(!text.contains("secret"), "{text}");
            assert_eq!(error.code(), "store_open");
        };
        check("postgres://u:secret@db/app?sslmode=require", "sslmode=require");
        check("postgres://u:secret@db/app?sslmode=verify-full", "sslmode");
        check("postgres://u:secret@db/app?color=red", "unknown option `color`");
        check("postgres://u:secret@db:no/app", "port");
        check("postgres://u:pass@secret@db/app", "%40");
        check("postgres:///app", "no host");
    }
}
