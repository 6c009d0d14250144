//! Connection to a database, whose statements are about the tables of the store's own schema.

use tokio_postgres::{
    Error, Row, SimpleQueryMessage, Statement,
    types::{ToSql, Type},
};

use super::{schema_name::SchemaName, statement::Param};

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

    pub async fn simple_query(&self, sql: &str) -> Result<Vec<SimpleQueryMessage>, Error> {
        self.client.simple_query(&self.schema.within(sql)).await
    }

    pub async fn query_typed(&self, sql: &str, params: &[Param<'_>]) -> Result<Vec<Row>, Error> {
        self.client.query_typed(&self.schema.within(sql), params).await
    }

    pub async fn query_typed_one(&self, sql: &str, params: &[Param<'_>]) -> Result<Row, Error> {
        self.client.query_typed_one(&self.schema.within(sql), params).await
    }

    pub async fn execute_typed(&self, sql: &str, params: &[Param<'_>]) -> Result<u64, Error> {
        self.client.execute_typed(&self.schema.within(sql), params).await
    }

    pub async fn prepare_typed(&self, sql: &str, types: &[Type]) -> Result<Statement, Error> {
        self.client.prepare_typed(&self.schema.within(sql), types).await
    }

    /// Runs a prepared statement.
    pub async fn query(
        &self,
        statement: &Statement,
        values: &[&(dyn ToSql + Sync)],
    ) -> Result<Vec<Row>, Error> {
        self.client.query(statement, values).await
    }

    /// Runs a prepared statement.
    pub async fn execute(&self, statement: &Statement, values: &[&(dyn ToSql + Sync)]) -> Result<u64, Error> {
        self.client.execute(statement, values).await
    }
}
