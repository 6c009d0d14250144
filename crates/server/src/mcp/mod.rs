//! MCP over HTTP: messages, and the client's side of a server at a URL.
//!
//! `message` reads as much of a line as is needed. `remote` sends lines to the server at a `target` and hears its own;
//! `mirror` makes the headers that repeat a message, `stream` reads what a server streams. None of them knows what is recorded.

pub mod message;
pub mod mirror;
pub mod remote;
mod stream;
pub mod target;
