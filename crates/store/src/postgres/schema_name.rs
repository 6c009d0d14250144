//! Schema that holds a store's tables, and the advisory lock of its writers.
//!
//! Statements name the tables in full, in the usual schema; a store in another one puts its own name there as a
//! statement is sent. So nothing depends on `search_path`, which poolers share between sessions, and which a database's
//! owner may set.

use std::{borrow::Cow, sync::Arc};

use outlast_core::words::Digest;

/// Name of the schema, as an address may set it with `?schema=NAME`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SchemaName(Arc<str>);

/// Usual schema.
pub const USUAL: &str = "outlast";

/// Qualifier of every table in the texts of statements.
const QUALIFIER: &str = "outlast.";

/// Key of the lock in the usual schema: "outlast" in ASCII.
const USUAL_LOCK: i64 = 31_372_865_309_864_820;

impl SchemaName {
    /// Reads a name. Errors: the reason.
    pub fn parse(name: &str) -> Result<SchemaName, String> {
        let begins = name.starts_with(|c: char| c.is_ascii_lowercase() || c == '_');
        let fits = name.chars().all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_');
        // PostgreSQL keeps 63 bytes of a name.
        if !begins || !fits || name.len() > 63 {
            return Err(format!(
                "wanted a schema of at most 63 lower-case letters, digits and underscores that begins with no digit, had \
                 {name:?}"
            ));
        }
        if name.starts_with("pg_") || name == "information_schema" {
            return Err(format!("the schema {name} is the database's own"));
        }
        Ok(SchemaName(name.into()))
    }

    pub fn as_str(&self) -> &str {
        &self.0
    }

    pub fn is_usual(&self) -> bool {
        &*self.0 == USUAL
    }

    /// Returns the statement with its tables named in this schema.
    pub fn within<'a>(&self, sql: &'a str) -> Cow<'a, str> {
        match self.is_usual() {
            true => Cow::Borrowed(sql),
            false => Cow::Owned(sql.replace(QUALIFIER, &format!("\"{}\".", self.0))),
        }
    }

    /// Returns the call that locks the whole store: its holder is alone, and sees everything committed before.
    pub fn lock(&self) -> String {
        format!("pg_advisory_xact_lock({})", self.lock_key())
    }

    /// Returns the call that takes the store's lock in shared mode. Several processes may hold it at once; a
    /// process that locks the whole store waits for all of them.
    pub fn lock_beside_others(&self) -> String {
        format!("pg_advisory_xact_lock_shared({})", self.lock_key())
    }

    /// Returns the first class of the locks of the store's parts. Locks of two numbers have keys of their own, apart from
    /// those of one.
    pub fn lock_class(&self) -> i32 {
        self.lock_key() as i32
    }

    /// Returns the name under which the store's processes hear each other. Channels are of the whole database, and their
    /// names as short as other names.
    pub fn channel(&self) -> String {
        match self.is_usual() {
            true => USUAL.to_owned(),
            false => format!("{USUAL}_{:016x}", self.lock_key()),
        }
    }

    /// Returns the key of the store's advisory lock. Advisory locks are shared by the whole database, so each
    /// schema has its own.
    fn lock_key(&self) -> i64 {
        if self.is_usual() {
            return USUAL_LOCK;
        }
        let digest = Digest::of(format!("outlast schema {}", self.0).as_bytes());
        let mut key = [0; 8];
        key.copy_from_slice(&digest.0[..8]);
        i64::from_be_bytes(key)
    }
}

impl Default for SchemaName {
    fn default() -> SchemaName {
        SchemaName(USUAL.into())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_schema_has_a_plain_name_that_is_not_the_databases_own() {
        for name in ["outlast", "team_a", "_x", "s2", "user"] {
            assert_eq!(SchemaName::parse(name).unwrap().as_str(), name);
        }
        let long = "x".repeat(64);
        for name in
            ["", "2s", "Team", "a-b", "a b", "a\"b", "a.b", "é", "pg_temp", "information_schema", &long]
        {
            SchemaName::parse(name).unwrap_err();
        }
    }

    #[test]
    fn statements_and_the_lock_are_of_the_schema() {
        let sql = "SELECT 1 FROM outlast.runs JOIN outlast.specs ON to_regclass('outlast.meta') IS NULL";
        assert_eq!(SchemaName::default().within(sql), sql);
        let own = SchemaName::parse("user").unwrap();
        let wanted =
            "SELECT 1 FROM \"user\".runs JOIN \"user\".specs ON to_regclass('\"user\".meta') IS NULL";
        assert_eq!(own.within(sql), wanted);
        // Servers of other versions take the same lock.
        assert_eq!(SchemaName::default().lock(), "pg_advisory_xact_lock(31372865309864820)");
        assert_ne!(own.lock_key(), SchemaName::parse("team_a").unwrap().lock_key());
        assert_eq!(own.lock_key(), SchemaName::parse("user").unwrap().lock_key());
        assert_eq!(SchemaName::default().channel(), "outlast");
        assert_ne!(own.channel(), SchemaName::parse("team_a").unwrap().channel());
    }
}
