//! Matching of a path against a route with `{…}` segments.

/// Returns the values of the `{…}` segments of `route` in `path`, not decoded; `None` if the path does not match.
pub fn open<'a>(route: &str, path: &'a str) -> Option<Vec<&'a str>> {
    // Every request is asked about many routes: what does not fit allocates nothing.
    let (mut wanted, mut had) = (route.split('/'), path.split('/'));
    let mut open = Vec::new();
    loop {
        match (wanted.next(), had.next()) {
            (None, None) => return Some(open),
            (Some(wanted), Some(had)) if wanted.starts_with('{') => open.push(had),
            (Some(wanted), Some(had)) if wanted == had => {}
            _ => return None,
        }
    }
}
