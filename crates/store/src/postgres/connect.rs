//! Connections to a database.

use std::future::poll_fn;

use tokio::sync::mpsc::UnboundedSender;
use tokio_postgres::AsyncMessage;

use super::{
    address::{Address, CONNECT_TIMEOUT},
    error::chain,
    link::Link,
};

impl Address {
    /// Connects, and drives the connection on the current runtime. Gives up after a bounded time.
    pub async fn connect(&self) -> Result<Link, ConnectError> {
        self.connect_with(None).await
    }

    /// Connects as `connect` does, with settings of its own from the session's first moment on, as `-c name=value`. A server
    /// that does not know them, or a pooler that passes none on, is connected to without.
    pub async fn connect_set(&self, settings: &str) -> Result<Link, ConnectError> {
        let mut with = self.clone();
        let urls = self.config.get_options().unwrap_or_default();
        with.config.options(format!("{urls} {settings}").trim());
        match with.connect().await {
            Err(e) if e.is_of_settings => self.connect().await,
            done => done,
        }
    }

    /// Connects as `connect` does. The payloads of notifications go to `heard`, which is closed with the connection.
    pub async fn listen(&self, heard: UnboundedSender<String>) -> Result<Link, ConnectError> {
        self.connect_with(Some(heard)).await
    }

    async fn connect_with(&self, heard: Option<UnboundedSender<String>>) -> Result<Link, ConnectError> {
        let hosts = self.config.get_hosts().len().max(self.config.get_hostaddrs().len()).max(1);
        let each = self.config.get_connect_timeout().copied().unwrap_or(CONNECT_TIMEOUT);
        // The driver's timeout covers only the TCP handshake; this one also covers a server that hangs later.
        let all = each * u32::try_from(hosts).unwrap_or(1) + CONNECT_TIMEOUT;
        let connected = tokio::time::timeout(all, self.config.connect(self.tls.clone()));
        let (client, mut connection) = match connected.await {
            Ok(Ok(both)) => both,
            Ok(Err(e)) => return Err(ConnectError::new(&e)),
            Err(_) => {
                let why = format!("it did not answer within {} s", all.as_secs());
                return Err(ConnectError::passing(why));
            }
        };
        // Whoever waits for a statement is given the connection's error.
        tokio::spawn(async move {
            while let Some(Ok(message)) = poll_fn(|context| connection.poll_message(context)).await {
                if let (AsyncMessage::Notification(told), Some(heard)) = (message, &heard) {
                    // Who no longer hears has dropped the client, which ends the connection.
                    let _ = heard.send(told.payload().to_owned());
                }
            }
        });
        Ok(Link::new(client, self.schema.clone()))
    }
}

/// Failure of a connection attempt.
pub struct ConnectError {
    pub why: String,
    /// Whether a later attempt may succeed without any intervention.
    pub may_pass: bool,
    /// Whether the server says that there is no such database.
    pub is_gone: bool,
    /// Whether the server, or a pooler before it, may have refused the settings that the connection was to begin with.
    is_of_settings: bool,
}

impl ConnectError {
    fn new(e: &tokio_postgres::Error) -> ConnectError {
        // A wrong password or database name stays wrong; a server that is starting or full does not stay so.
        let may_pass = e.code().is_none_or(|code| !matches!(&code.code()[..2], "28" | "3D" | "42"));
        let is_gone = e.code().is_some_and(|code| code.code() == "3D000");
        let classes = ["08", "0A", "22", "42"];
        let is_of_settings = e.as_db_error().is_some_and(|db| classes.contains(&&db.code().code()[..2]));
        ConnectError { why: chain(e), may_pass, is_gone, is_of_settings }
    }

    /// Failure that another attempt may not meet.
    pub fn passing(why: String) -> ConnectError {
        ConnectError { why, may_pass: true, is_gone: false, is_of_settings: false }
    }
}
