//! Matching of a path against a route with `{…}` segments.

/// Returns the values of the `{…}` segments of `route` in `path`, not decoded; `None` if the path does not match.
pub fn open<'a>(route: &str, path: &'a str) -> Option<Vec<&'a str>> {
    let (wanted, had): (Vec<&str>, Vec<&str>) = (route.split('/').collect(), path.split('/').collect());
    let is_open = |segment: &str| segment.starts_with('{');
    let fits = wanted.len() == had.len() && wanted.iter().zip(&had).all(|(w, h)| is_open(w) || w == h);
    fits.then(|| wanted.iter().zip(had).filter(|(w, _)| is_open(w)).map(|(_, h)| h).collect())
}
