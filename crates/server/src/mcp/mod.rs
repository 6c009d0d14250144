//! MCP over HTTP: messages, the client's side of a server at a URL, and the server's side at `/mcp/NAME`.
//!
//! `message` reads as much of a line as is needed, `era` knows what each era wants of one that we make. `remote` sends lines
//! to the server at a `Target` and hears its own; `mirror` makes the headers that repeat a message, `stream` reads what a
//! server streams. `front` takes clients' requests to a [`recorder`], and gives them its lines by a `session`. None of them
//! knows what is recorded.

pub mod era;
pub mod front;
pub mod message;
pub mod mirror;
pub mod recorder;
pub mod remote;
mod session;
mod stream;
