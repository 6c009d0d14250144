//! Errors of the engine as Python's: one class for each code.

use outlast::program::error::CliError;
use outlast_core::{engine, envelope::Refusal, store};
use pyo3::prelude::*;

/// What went wrong, before it is an exception.
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

    /// The store was closed under its user.
    pub fn closed() -> Failure {
        Failure::from(store::Error::Closed)
    }

    /// A limit refused something. `run` is the id for the hint.
    pub fn refused(refusal: &Refusal, run: &str) -> Failure {
        Failure {
            code: refusal.code.clone(),
            message: format!("run {run}: {}", refusal.message()),
            hint: Some(refused_hint(refusal, run)),
        }
    }
}

/// What to do about a refusal, here: no command of ours started the program, unless a supervisor did.
pub fn refused_hint(refusal: &Refusal, run: &str) -> String {
    match std::env::var_os("OUTLAST_RUN_ID") {
        Some(_) => refusal.hint(run),
        None => refusal.hint_then(run, "start the program again"),
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
    /// `outlast.errors.of` knows the class of each code.
    fn from(f: Failure) -> PyErr {
        let made = Python::try_attach(|py| {
            let class = py.import("outlast.errors")?.getattr("of")?;
            class.call1((f.code, f.message, f.hint)).map(PyErr::from_value)
        });
        match made {
            Some(Ok(error) | Err(error)) => error,
            // The interpreter is on its way out: nobody is left to catch it.
            None => pyo3::exceptions::PySystemExit::new_err(()),
        }
    }
}
