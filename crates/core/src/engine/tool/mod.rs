//! Verbs on tool calls that go through Outlast: reserve, send, give up, give back, resolve. `Record` closes them with their answer.

pub mod give_back_tool;
pub mod give_up_tool;
pub mod reserve_tool;
pub mod resolve_tool;
pub mod send_tool;
