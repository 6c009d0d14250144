//! Rules that several verbs share.

pub mod doubt;
pub mod guard;
pub mod life;
pub mod replay;
pub mod taking;
pub mod windows;
pub mod within;
