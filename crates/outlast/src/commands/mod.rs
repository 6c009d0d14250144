//! The commands, one file each. They take a store and a page, and touch nothing else.

pub mod attach;
pub mod budget;
pub mod cancel;
pub mod completions;
pub mod ctx;
pub mod divergence;
pub mod doctor;
pub mod evidence;
pub mod export;
pub mod find;
pub mod fork;
pub mod gc;
pub mod inspect;
pub mod jobs;
pub mod journal;
pub mod logs;
pub mod ls;
pub mod resolve;
pub mod retry;
pub mod service;
pub mod show;
pub mod spend;
pub mod state;
pub mod stop;
pub mod verify;
pub mod wake;
