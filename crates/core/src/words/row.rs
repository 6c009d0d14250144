//! Rows loaded from a store, and whether they are to be written back.

/// A loaded row.
#[derive(Clone, Debug)]
pub struct Row<T> {
    pub value: T,
    pub touch: Touch,
    /// Whether the row belongs to another run, of which this one is a fork. A change then writes a row of
    /// this run's own.
    shared: bool,
}

impl<T> Row<T> {
    pub fn read(value: T) -> Self {
        Self { value, touch: Touch::Read, shared: false }
    }
    pub fn insert(value: T) -> Self {
        Self { value, touch: Touch::Insert, shared: false }
    }
    /// Wraps a row that is shared with another run and that this run does not have yet: see `store::load`.
    pub fn shared(value: T) -> Self {
        Self { value, touch: Touch::Read, shared: true }
    }
    /// Returns the value for a change. The row will be written back.
    pub fn touched(&mut self) -> &mut T {
        if self.touch == Touch::Read {
            self.touch = if self.shared { Touch::Insert } else { Touch::Update };
        }
        &mut self.value
    }
}

/// Whether a row is to be written back.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Touch {
    #[default]
    Read,
    Update,
    Insert,
}
