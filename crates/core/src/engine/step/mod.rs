//! Verbs on steps, tools, checkpoints and loops.

pub mod begin_step;
pub mod checkpoint;
pub mod count_loop;
pub mod next_try;
pub mod record;
pub mod resolve_step;
pub mod tool;
