//! Name of the person who types a command, as acts record it.

use crate::{program::told, settings::surroundings::Surroundings};

/// Returns `cli:USER@HOST` for a person, and `agent:RUN` for a process of a run.
pub fn actor(around: &Surroundings) -> String {
    by(around, "cli")
}

/// Returns `WAY:USER@HOST` for a person who acts by `way`, and `agent:RUN` for a process of a run.
pub fn by(around: &Surroundings, way: &str) -> String {
    let named = |name| around.var(name).map(|value| value.to_string_lossy().into_owned());
    if [told::TOKEN, told::MARK].into_iter().any(|name| around.is_set(name)) {
        return format!("agent:{}", named(told::RUN_ID).unwrap_or_else(|| "unknown".into()));
    }
    let user = named("USER").or_else(|| named("LOGNAME")).unwrap_or_else(|| "unknown".into());
    let host = rustix::system::uname().nodename().to_string_lossy().into_owned();
    format!("{way}:{user}@{host}")
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    #[test]
    fn a_process_of_a_run_is_named_by_its_run_and_a_person_by_user_and_machine() {
        let of = |variables: &[(&str, &str)]| actor(&Surroundings::new(variables, Path::new("/")));
        assert!(of(&[("USER", "ann")]).starts_with("cli:ann@"));
        assert!(of(&[]).starts_with("cli:unknown@"));
        assert_eq!(of(&[("USER", "ann"), (told::MARK, "m"), ("OUTLAST_RUN_ID", "r")]), "agent:r");
    }
}
