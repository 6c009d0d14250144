//! Threads and tasks that steps come from. With more than one, the order of steps depends on timing.

use pyo3::{prelude::*, sync::PyOnceLock};

/// Thread, and the current task of its running event loop (0 if there is none), from which a step is called.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Strand {
    thread: usize,
    task: usize,
}

/// Returns the strand of the calling code: its thread and task.
pub fn here(py: Python<'_>) -> PyResult<Strand> {
    static RUNNING_LOOP: PyOnceLock<Py<PyAny>> = PyOnceLock::new();
    static CURRENT_TASK: PyOnceLock<Py<PyAny>> = PyOnceLock::new();
    thread_local!(static HERE: u8 = const { 0 });
    let thread = HERE.with(|here| std::ptr::from_ref(here) as usize);
    let running = RUNNING_LOOP.import(py, "asyncio", "_get_running_loop")?.call0()?;
    if running.is_none() {
        return Ok(Strand { thread, task: 0 });
    }
    let task = CURRENT_TASK.import(py, "asyncio", "current_task")?.call1((running,))?;
    Ok(Strand { thread, task: task.as_ptr() as usize })
}

/// Threads and tasks (strands) from which the steps of a run were called so far.
#[derive(Default)]
pub struct Strands {
    first: Option<Strand>,
    several: bool,
}

impl Strands {
    pub fn note(&mut self, strand: Strand) {
        self.several |= *self.first.get_or_insert(strand) != strand;
    }

    /// Returns whether all steps so far were called from one strand.
    pub fn is_one(&self) -> bool {
        !self.several
    }

    pub fn be_several(&mut self) {
        self.several = true;
    }
}
