//! Connections to a database, whose statements are about the tables of the store's own schema.

use std::{future::poll_fn, task::Poll};

use tokio::{sync::mpsc::UnboundedSender, task::yield_now};
use tokio_postgres::{
    AsyncMessage, Error, Row, SimpleQueryMessage, Statement,
    types::{ToSql, Type},
};

use super::{
    address::{Address, CONNECT_TIMEOUT},
    schema::SchemaName,
    statement::{Ask, Param, chain},
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
            let mut ended = poll_fn(|context| connection.poll_message(context)).await;
            while let Some(Ok(message)) = ended {
                if let (AsyncMessage::Notification(told), Some(heard)) = (message, &heard) {
                    // Who no longer hears has dropped the client, which ends the connection.
                    let _ = heard.send(told.payload().to_owned());
                }
                ended = poll_fn(|context| connection.poll_message(context)).await;
            }
            if ended.is_some() {
                // A server that ends a session says why, and then closes. A statement that is sent meanwhile fails before
                // that was read: it is read now, as the statement's answer. The runtime looks at its sockets first.
                yield_now().await;
                poll_fn(|context| {
                    drop(connection.poll_message(context));
                    Poll::Ready(())
                })
                .await;
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

/// Connection to the database. The texts of statements name tables in the usual schema; the link puts the store's own
/// schema in its place.
pub struct Link {
    client: tokio_postgres::Client,
    pub schema: SchemaName,
}

impl Link {
    pub fn new(client: tokio_postgres::Client, schema: SchemaName) -> Link {
        Link { client, schema }
    }

    pub fn is_closed(&self) -> bool {
        self.client.is_closed()
    }

    pub async fn batch_execute(&self, sql: &str) -> Result<(), Error> {
        self.client.batch_execute(&self.schema.within(sql)).await
    }

    /// Returns the first word that a text of statements answers with; `None` if it answers with none.
    pub async fn word(&self, sql: &str) -> Result<Option<String>, Error> {
        let messages = self.client.simple_query(&self.schema.within(sql)).await?;
        Ok(messages.iter().find_map(|message| match message {
            SimpleQueryMessage::Row(row) => row.get(0).map(str::to_owned),
            _ => None,
        }))
    }

    pub async fn query_typed_one(&self, sql: &str, params: &[Param<'_>]) -> Result<Row, Error> {
        self.client.query_typed_one(&self.schema.within(sql), params).await
    }

    pub async fn prepare_typed(&self, sql: &str, types: &[Type]) -> Result<Statement, Error> {
        self.client.prepare_typed(&self.schema.within(sql), types).await
    }

    /// Runs a prepared statement.
    pub async fn query_prepared(
        &self,
        statement: &Statement,
        values: &[&(dyn ToSql + Sync)],
    ) -> Result<Vec<Row>, Error> {
        self.client.query(statement, values).await
    }

    /// Runs a prepared statement.
    pub async fn execute_prepared(
        &self,
        statement: &Statement,
        values: &[&(dyn ToSql + Sync)],
    ) -> Result<u64, Error> {
        self.client.execute(statement, values).await
    }
}

impl Ask for Link {
    async fn query(&self, sql: &str, params: &[Param<'_>]) -> Result<Vec<Row>, Error> {
        self.client.query_typed(&self.schema.within(sql), params).await
    }

    async fn execute(&self, sql: &str, params: &[Param<'_>]) -> Result<u64, Error> {
        self.client.execute_typed(&self.schema.within(sql), params).await
    }
}

#[cfg(test)]
mod tests {
    use std::{
        io::{Read as _, Write as _},
        os::unix::net::UnixListener,
        thread,
    };

    use tokio_postgres::error::SqlState;

    use super::*;

    const HELLO: &[u8] = b"R\0\0\0\x08\0\0\0\0Z\0\0\0\x05I";
    const STOOD_STILL: &[u8] = b"E\0\0\0\x24SFATAL\0VFATAL\0C25P03\0Mtoo long\0\0";

    /// Bug: a group that the database had ended for standing still was told as a commit of unclear outcome.
    /// Consequence: on a machine at its limit, an operation of a store that no process had registered with failed.
    /// Cause: the statement was sent before the end was read, and its failure to be sent was all that was told.
    #[test]
    fn a_statement_that_is_sent_to_an_ended_session_is_told_why_it_was_ended() {
        let directory = tempfile::tempdir().unwrap();
        let listener = UnixListener::bind(directory.path().join(".s.PGSQL.5432")).unwrap();
        let server = thread::spawn(move || {
            let (mut socket, _) = listener.accept().unwrap();
            let mut length = [0; 4];
            socket.read_exact(&mut length).unwrap();
            let mut startup = vec![0; u32::from_be_bytes(length) as usize - 4];
            socket.read_exact(&mut startup).unwrap();
            socket.write_all(HELLO).unwrap();
            socket
        });
        let url = format!("postgres://u@/d?sslmode=disable&host={}", directory.path().display());
        let address = Address::parse(&url, &|_| None).unwrap();
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let link = runtime.block_on(address.connect()).map_err(|e| e.why).unwrap();
        let mut socket = server.join().unwrap();
        // Nothing drives the connection meanwhile.
        socket.write_all(STOOD_STILL).unwrap();
        drop(socket);
        let told = runtime.block_on(link.batch_execute("COMMIT")).unwrap_err();
        assert_eq!(told.code(), Some(&SqlState::IDLE_IN_TRANSACTION_SESSION_TIMEOUT), "{told}");
    }
}
