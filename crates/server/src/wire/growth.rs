//! Growth of a buffer that is filled piece by piece and then kept.

/// Appends `more`. Room is made for a quarter more than there is, where a vector by itself would double: what is kept
/// holds at most 1.25 bytes for each byte.
pub fn append<T: Copy>(to: &mut Vec<T>, more: &[T]) {
    if to.capacity() - to.len() < more.len() {
        to.reserve_exact(more.len().max(to.len() / 4));
    }
    to.extend_from_slice(more);
}
