//! Native half of the Python package: the engine inside the agent's own process.
//!
//! This half stays thin: bytes go in, tickets come out, and the interpreter's lock is released while a commit is
//! awaited. The meaning of steps, budgets and retries is defined in `python/outlast/`, where people can read it.
//!
//! Unsafe code: what PyO3's macros write; none is written by hand.

mod approval;
mod engine;
mod error;
mod item;
mod job;
mod open_run;
mod plain;
mod recorded;
mod shared;
mod state;
mod ticket;
mod values;

use pyo3::prelude::*;

/// Runs the `outlast` command with `args`, the program's path first, and returns its exit code.
#[pyfunction]
fn main(py: Python<'_>, args: Vec<std::ffi::OsString>) -> u8 {
    // This process's executable is the interpreter; the script beside it is the command.
    if let Some(program) = args.first() {
        outlast::set_program(program.into());
    }
    py.detach(|| outlast::exit_of(args))
}

#[pymodule]
fn _native(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add("__version__", env!("CARGO_PKG_VERSION"))?;
    module.add_class::<engine::Engine>()?;
    module.add_class::<open_run::OpenRun>()?;
    module.add_class::<recorded::Recorded>()?;
    module.add_class::<state::States>()?;
    module.add_class::<job::Items>()?;
    module.add_class::<ticket::Ticket>()?;
    module.add_function(wrap_pyfunction!(engine::snapshot, module)?)?;
    module.add_function(wrap_pyfunction!(engine::fork, module)?)?;
    module.add_function(wrap_pyfunction!(job::jobs, module)?)?;
    module.add_function(wrap_pyfunction!(item::claim_item, module)?)?;
    module.add_function(wrap_pyfunction!(item::next_try, module)?)?;
    module.add_function(wrap_pyfunction!(item::record_item, module)?)?;
    module.add_function(wrap_pyfunction!(item::return_item, module)?)?;
    module.add_function(wrap_pyfunction!(item::resolve_step, module)?)?;
    module.add_function(wrap_pyfunction!(plain::enter, module)?)?;
    module.add_function(wrap_pyfunction!(plain::written, module)?)?;
    module.add_function(wrap_pyfunction!(approval::request_approval, module)?)?;
    module.add_function(wrap_pyfunction!(approval::is_pending, module)?)?;
    module.add_function(wrap_pyfunction!(approval::recalled_approval, module)?)?;
    module.add_function(wrap_pyfunction!(main, module)?)
}
