//! Engine errors as Python exceptions, one class for each code.

use outlast::program::error::CliError;
use outlast_core::{engine, envelope::Refusal, store};
use pyo3::prelude::*;

/// Error of the engine before it is made a Python exception.
#[derive(Clone, Debug)]
pub struct Failure {
    pub code: String,
    pub message: String,
    pub hint: Option<String>,
}

impl Failure {
    pub fn new(code: &str, message: impl Into<String>, hint: Option<&str>) -> Failure {
        Failure { code: code.into(), message: message.into(), hint: hint.map(str::to_owned) }
    }

    /// Returns the error of a store that is closed.
    pub fn closed() -> Failure {
        Failure::from(store::Error::Closed)
    }

    /// Returns the error of a refusal by a limit. `run` is the run's id, for the hint.
    pub fn refused(refusal: &Refusal, run: &str) -> Failure {
        Failure {
            code: refusal.code.clone(),
            message: format!("run {run}: {}", refusal.message()),
            hint: Some(refused_hint(refusal, run)),
        }
    }
}

/// Returns the hint for a refusal. `outlast resume` starts the command of a supervised run again; any other program is
/// to be started again by the person.
pub fn refused_hint(refusal: &Refusal, run: &str) -> String {
    const AGAIN: &str = "start the program again";
    match std::env::var("OUTLAST_RUN_ID") {
        Ok(supervised) if supervised == run => refusal.hint(run),
        Ok(supervised) => refusal.hint_then(run, &format!("`outlast resume {supervised}`")),
        Err(_) if refusal.code == "price_unknown" => format!(
            "give the model a price in a file that OUTLAST_PRICES names (docs/guides/prices.md), or remove the limit with \
             `outlast budget {run} --no-limit usd`; then {AGAIN}"
        ),
        Err(_) => refusal.hint_then(run, AGAIN),
    }
}

impl From<store::Error> for Failure {
    fn from(e: store::Error) -> Failure {
        Failure { code: e.code().into(), message: e.to_string(), hint: e.hint() }
    }
}

impl From<engine::Error> for Failure {
    fn from(e: engine::Error) -> Failure {
        store::Error::from(e).into()
    }
}

impl From<CliError> for Failure {
    fn from(e: CliError) -> Failure {
        Failure { code: e.code().into(), message: e.to_string(), hint: e.hint() }
    }
}

impl From<Failure> for PyErr {
    /// Makes the Python exception. `outlast.errors.of` maps each code to its class.
    fn from(f: Failure) -> PyErr {
        let made = Python::try_attach(|py| {
            let class = py.import("outlast.errors")?.getattr("of")?;
            class.call1((f.code, f.message, f.hint)).map(PyErr::from_value)
        });
        match made {
            Some(Ok(error) | Err(error)) => error,
            // The interpreter is shutting down, so nothing can catch the exception.
            None => pyo3::exceptions::PySystemExit::new_err(()),
        }
    }
}
