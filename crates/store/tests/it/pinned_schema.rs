//! PostgreSQL's tables as they stand in databases that people have. SQLite's are pinned in crates/outlast/tests/it/pins.

use std::fs;

use crate::{beds::open_at, private_postgres::Database};

const COLUMNS: &str = "SELECT string_agg(line, E'\\n' ORDER BY line) FROM (
    SELECT format('%s.%s %s%s', table_name, column_name, data_type, CASE is_nullable WHEN 'NO' THEN ' NOT NULL' ELSE '' END) AS line
    FROM information_schema.columns WHERE table_schema = 'outlast'
    UNION ALL SELECT indexdef FROM pg_indexes WHERE schemaname = 'outlast'
    UNION ALL SELECT format('meta %s', key) FROM outlast.meta
    UNION ALL SELECT format('format %s', convert_from(value, 'UTF8')) FROM outlast.meta WHERE key = 'format') lines";

#[test]
fn a_new_database_has_the_tables_that_it_had() {
    let database = Database::new();
    drop(open_at(&database.url(), true).unwrap());
    let found = database.value(COLUMNS).unwrap() + "\n";
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/it/pinned_schema.txt");
    if std::env::var("OUTLAST_PINS").is_ok_and(|v| v == "write") {
        fs::write(path, &found).unwrap();
    }
    assert_eq!(found, fs::read_to_string(path).unwrap());
}
