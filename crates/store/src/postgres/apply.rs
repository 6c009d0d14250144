//! Writes the rows touched by a decision.

use outlast_core::{
    engine::loaded::{Loaded, NewPayload},
    store::Error,
    words::row::{Row, Touch},
};
use tokio_postgres::Client;

use super::{
    error::failure,
    rows::{no_json, to_json},
    state,
    statement::{Param, params, write_one},
};
use crate::{
    rows::{Cell, Dialect, Stored, Write, cells},
    tables::PAYLOAD,
};

const POSTGRES: Dialect = Dialect::Postgres;

/// Writes the touched rows: envelopes, then runs, then entries, the order in which row locks would be taken.
pub async fn apply(client: &Client, l: &Loaded) -> Result<(), Error> {
    write_all(client, &l.instances).await?;
    write_all(client, &l.envelopes).await?;
    write_all(client, &l.runs).await?;
    put_all(client, &l.budgets).await?;
    for (no, spec) in &l.specs {
        let sql = "INSERT INTO outlast.specs (run_no, spec) VALUES ($1, $2) \
                   ON CONFLICT (run_no) DO UPDATE SET spec = excluded.spec";
        write_one(client, sql, params![no.0, to_json(spec)?]).await?;
    }
    write_all(client, &l.attempts).await?;
    put_all(client, &l.leases).await?;
    write_all(client, &l.entries).await?;
    for p in &l.payloads {
        put_payload(client, p).await?;
    }
    state::apply(client, &l.state).await?;
    if let Some(d) = &l.new_delivery {
        // Two processes may insert the first row at once: the second one's transaction then fails and decides again.
        let sql = "INSERT INTO outlast.deliveries AS d (name, version, delivery) VALUES ($1, $2, $3) \
                   ON CONFLICT (name) DO UPDATE SET version = excluded.version, delivery = excluded.delivery \
                   WHERE d.version = excluded.version - 1";
        write_one(client, sql, params![d.name.as_bytes(), d.version, to_json(d)?]).await?;
    }
    for e in &l.events {
        let sql = "INSERT INTO outlast.events (at, run_no, seq, kind, about) VALUES ($1, $2, $3, $4, $5)";
        let (run, seq) = (e.run.map(|no| no.0), e.seq.map(|seq| seq.0));
        write_one(client, sql, params![e.at.0, run, seq, e.kind.name(), e.about.to_string()]).await?;
    }
    for (run, envelope, namespace) in &l.forgotten {
        forget(client, run.0, envelope.0, namespace.as_bytes()).await?;
    }
    Ok(())
}

async fn write_all<T: Stored>(client: &Client, rows: &[Row<T>]) -> Result<(), Error> {
    for row in rows {
        match row.touch {
            Touch::Read => {}
            Touch::Insert => {
                bind(client, &POSTGRES.texts::<T>().insert, cells(&row.value, |_| true)).await?;
            }
            Touch::Update => {
                let wanted = |write| write == Write::Key || POSTGRES.rewrites(write);
                bind(client, &POSTGRES.texts::<T>().update, cells(&row.value, wanted)).await?;
            }
        }
    }
    Ok(())
}

/// Inserts the touched rows, or replaces those with the same keys.
async fn put_all<T: Stored>(client: &Client, rows: &[Row<T>]) -> Result<(), Error> {
    for row in rows.iter().filter(|row| row.touch != Touch::Read) {
        bind(client, &POSTGRES.texts::<T>().upsert, cells(&row.value, |_| true)).await?;
    }
    Ok(())
}

async fn bind(client: &Client, sql: &str, cells: serde_json::Result<Vec<Cell<'_>>>) -> Result<(), Error> {
    let cells = cells.map_err(no_json)?;
    let params: Vec<Param<'_>> = cells.iter().map(Cell::param).collect();
    write_one(client, sql, &params).await
}

async fn delete(client: &Client, sql: &str, params: &[Param<'_>]) -> Result<(), Error> {
    client.execute_typed(sql, params).await.map(drop).map_err(failure)
}

/// Deletes all rows that belong to a run.
async fn forget(client: &Client, run: i64, envelope: i64, namespace: &[u8]) -> Result<(), Error> {
    for table in ["payloads", "entries", "attempts", "leases", "specs"] {
        delete(client, &format!("DELETE FROM outlast.{table} WHERE run_no = $1"), params![run]).await?;
    }
    for sql in state::FORGET {
        delete(client, sql, params![namespace]).await?;
    }
    let sql = "DELETE FROM outlast.events WHERE run_no = $1 AND kind <> 'run_removed'";
    delete(client, sql, params![run]).await?;
    delete(client, "DELETE FROM outlast.runs WHERE no = $1", params![run]).await?;
    delete(client, "DELETE FROM outlast.envelopes WHERE no = $1", params![envelope]).await
}

async fn put_payload(client: &Client, p: &NewPayload) -> Result<(), Error> {
    let len = i64::try_from(p.payload.len)
        .map_err(|_| Error::Corrupt { what: format!("a payload of {} bytes", p.payload.len) })?;
    let names: Vec<&str> = ["run_no", "seq", "role", "part"].into_iter().chain(PAYLOAD.split(", ")).collect();
    write_one(
        client,
        &format!(
            "{} ON CONFLICT (run_no, seq, role, part) DO UPDATE SET codec = excluded.codec, \
             key_id = excluded.key_id, len = excluded.len, sha256 = excluded.sha256, bytes = excluded.bytes",
            POSTGRES.insert("payloads", &names)
        ),
        params![
            p.run.0,
            p.seq.0,
            p.role.code(),
            i64::from(p.payload.part),
            p.payload.codec as i64,
            i64::from(p.payload.key_id),
            len,
            &p.payload.sha256[..],
            &p.payload.bytes[..]
        ],
    )
    .await
}
