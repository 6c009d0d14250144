//! Places at which a test kills the process, or does what another process would do in between.

use std::io;

/// Passes a place before a write. In a test it can fail, and every later place with it: the process is dead then.
#[cfg(not(test))]
#[inline]
pub fn point(_name: &str) -> io::Result<()> {
    Ok(())
}

#[cfg(test)]
pub use armed::{arm, between, point};

#[cfg(test)]
mod armed {
    use std::cell::{Cell, RefCell};

    use super::io;

    type Deed = Box<dyn FnMut(&str)>;

    thread_local! {
        static LEFT: Cell<Option<u64>> = const { Cell::new(None) };
        static DEED: RefCell<Option<Deed>> = const { RefCell::new(None) };
    }

    pub fn point(name: &str) -> io::Result<()> {
        DEED.with_borrow_mut(|deed| deed.iter_mut().for_each(|deed| deed(name)));
        match LEFT.get() {
            Some(0) => Err(io::Error::other("killed here by a test")),
            left => {
                LEFT.set(left.map(|n| n - 1));
                Ok(())
            }
        }
    }

    /// Lets `left` places pass and kills at the next one; `None`: at none.
    pub fn arm(left: Option<u64>) {
        LEFT.set(left);
    }

    /// Does something at each place, as another process could; `None`: nothing.
    pub fn between(deed: Option<Deed>) {
        DEED.set(deed);
    }
}
