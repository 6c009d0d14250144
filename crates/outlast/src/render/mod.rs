//! Formats colours, tables, times, amounts and entries. Pure: the commands print.

pub mod amount;
pub mod approval;
pub mod did;
pub mod entry;
pub mod list;
pub mod look;
pub mod next;
pub mod quote;
pub mod story;
pub mod table;
pub mod talk;
pub mod text;
pub mod time;

pub use outlast_core::reads::called as short;
