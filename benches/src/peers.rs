//! Steps of the Python and the npm package beside their peers, as `benches/peers/steps.py` measures them in the same run.

use std::process::{Command, Stdio};

use serde_json::Value;

use crate::report::{Row, Unit, section};

/// Python with the package of this build and its peers, which `make bench` sets up.
const PYTHON: &str = ".venv-bench/bin/python";

/// Measures and prints the figures.
pub fn measure() {
    let stores: [(&str, &[&str]); 2] = [("SQLite", &[]), ("PostgreSQL", &["--postgres"])];
    for (store, flags) in stores {
        section(&format!("the packages on {store}"));
        // What it says of failed measurements goes to standard error.
        let ran = Command::new(PYTHON)
            .args(["benches/peers/steps.py", "--json"])
            .args(flags)
            .stderr(Stdio::inherit())
            .output();
        let said = ran.map(|out| out.stdout).unwrap_or_default();
        let rows: Vec<Value> = serde_json::from_slice(&said).unwrap_or_default();
        if rows.is_empty() {
            println!("nothing came of benches/peers/steps.py: `make bench` sets up {PYTHON} for it");
        }
        for row in rows.iter().filter_map(row) {
            row.tell();
        }
    }
}

fn row(row: &Value) -> Option<Row> {
    let figure = |of: &str| Some((row[of][0].as_str()?, row[of][1].as_f64()?));
    let mut told =
        Row::new(row["what"].as_str()?, Unit::parse(row["unit"].as_str()?)?, row["ours"].as_f64()?);
    if let Some((name, value)) = figure("limit") {
        told = told.limit(name, value);
    }
    if let Some((name, value)) = figure("peer") {
        told = told.peer(name, value);
    }
    Some(told)
}
