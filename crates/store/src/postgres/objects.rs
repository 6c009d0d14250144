//! Objects that machines share: rows that are named by their content.
//!
//! Statements that change several rows lock them in the order of their names, so that none waits in a circle.

use outlast_core::{
    store::{Error, SharedObjects, objects::Object},
    words::{Digest, Micros},
};
use tokio_postgres::Row;

use super::{
    PostgresStore,
    connect::Link,
    rows,
    statement::{Ask as _, all, failure, maybe, page, params},
    time::NOW,
};

/// Bytes of objects after which a read ends.
const MOST: i64 = 8 << 20;

fn owned(names: &[Digest]) -> Vec<Vec<u8>> {
    names.iter().map(|name| name.0.to_vec()).collect()
}

fn name(row: &Row) -> Result<Digest, Error> {
    let corrupt = |_| Error::Corrupt { what: "the name of an object has 32 bytes".into() };
    rows::get::<&[u8]>(row, 0)?.try_into().map(Digest).map_err(corrupt)
}

fn count(row: &Row, i: usize) -> Result<u64, Error> {
    Ok(rows::get::<i64>(row, i)?.unsigned_abs())
}

fn object(row: &Row) -> Result<Object, Error> {
    let length = u32::try_from(count(row, 1)?);
    let length = length.map_err(|_| Error::Corrupt { what: "the length of an object".into() })?;
    Ok(Object { name: name(row)?, length, bytes: rows::get(row, 2)? })
}

impl SharedObjects for PostgresStore {
    fn mark(&self, names: &[Digest]) -> Result<Vec<Digest>, Error> {
        let names = owned(names);
        self.readers.run(async move |c: &Link| {
            let sql = format!(
                "WITH there AS (SELECT name FROM outlast.objects WHERE name = ANY($1) ORDER BY name FOR UPDATE) \
                 UPDATE outlast.objects o SET used_at = {NOW} FROM there WHERE o.name = there.name RETURNING o.name"
            );
            all(c, &sql, params![names], name).await
        })
    }

    fn add(&self, objects: Vec<Object>) -> Result<(), Error> {
        self.readers.run(async move |c: &Link| {
            let names: Vec<&[u8]> = objects.iter().map(|o| &o.name.0[..]).collect();
            let lengths: Vec<i64> = objects.iter().map(|o| i64::from(o.length)).collect();
            let bytes: Vec<&[u8]> = objects.iter().map(|o| &o.bytes[..]).collect();
            let sql = format!(
                "INSERT INTO outlast.objects (name, used_at, length, bytes) SELECT name, {NOW}, length, bytes \
                 FROM unnest($1, $2, $3) AS added (name, length, bytes) ORDER BY name \
                 ON CONFLICT (name) DO UPDATE SET used_at = excluded.used_at"
            );
            c.execute(&sql, params![names, lengths, bytes]).await.map(drop).map_err(failure)
        })
    }

    fn read(&self, names: &[Digest]) -> Result<Vec<Object>, Error> {
        let names = owned(names);
        self.readers.run(async move |c: &Link| {
            let sql = "SELECT name, length, bytes FROM \
                       (SELECT *, sum(octet_length(bytes)) OVER (ORDER BY name) AS upto FROM outlast.objects \
                       WHERE name = ANY($1)) AS asked WHERE upto - octet_length(bytes) < $2";
            all(c, sql, params![names, MOST], object).await
        })
    }

    fn list(&self, after: &Digest, limit: usize) -> Result<Vec<Digest>, Error> {
        let after = after.0;
        self.readers.run(async move |c: &Link| {
            let sql = "SELECT name FROM outlast.objects WHERE name > $1 ORDER BY name LIMIT $2";
            page(c, sql, params![&after[..], limit as i64], name).await
        })
    }

    fn size(&self) -> Result<u64, Error> {
        let size = self.readers.run(async move |c: &Link| {
            let sql = "SELECT coalesce(sum(octet_length(bytes)), 0)::bigint FROM outlast.objects";
            maybe(c, sql, params![], |row| count(row, 0)).await
        })?;
        Ok(size.unwrap_or(0))
    }

    fn remove(&self, names: &[Digest], since: Micros) -> Result<(), Error> {
        let names = owned(names);
        self.readers.run(async move |c: &Link| {
            let sql = "WITH unused AS (SELECT name FROM outlast.objects WHERE name = ANY($1) AND used_at < $2 \
                       ORDER BY name FOR UPDATE) \
                       DELETE FROM outlast.objects o USING unused WHERE o.name = unused.name";
            c.execute(sql, params![names, since.0]).await.map(drop).map_err(failure)
        })
    }
}
