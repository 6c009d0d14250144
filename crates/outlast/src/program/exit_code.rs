//! The exit codes of `outlast`, in one place. `docs/reference/exit-codes.md` is this table.

/// The command did what was asked; for `outlast run`, the agent exited with 0.
pub const OK: u8 = 0;
/// The command refused: an unknown run, a change that cannot be made, an answer that could not be written.
pub const REFUSED: u8 = 1;
/// The command line, a variable or `outlast.toml` asks for something that does not exist.
pub const USAGE: u8 = 2;
/// The store, or a key that is needed, is unavailable.
pub const UNAVAILABLE: u8 = 69;
/// The run is halted: at a limit, by an unknown price, or on divergence.
pub const HALTED: u8 = 75;
/// The run failed or was cancelled.
pub const FAILED: u8 = 76;
/// Another live process drives the run.
pub const HELD: u8 = 77;
/// The agent died repeatedly without making progress.
pub const CRASH_LOOP: u8 = 78;
/// The command was found but cannot be executed, as in a shell.
pub const NOT_EXECUTABLE: u8 = 126;
/// The command does not exist, as in a shell.
pub const NOT_FOUND: u8 = 127;
/// A person stopped the run, by Ctrl-C or `outlast stop`. It can be resumed.
pub const INTERRUPTED: u8 = 130;

#[cfg(test)]
mod tests {
    use super::*;

    /// All exit codes, each with its name and meaning.
    const ALL: [(u8, &str, &str); 11] = [
        (OK, "ok", "it did what was asked; of `run` and `resume`: the agent finished with 0"),
        (REFUSED, "refused", "unknown run, a change that cannot be made, output that could not be written"),
        (USAGE, "usage", "the command line, a variable or `outlast.toml` asks for what does not exist"),
        (UNAVAILABLE, "unavailable", "the store, or a provider key that is needed, cannot be had"),
        (
            HALTED,
            "halted",
            "the run is halted: raise what stopped it with `outlast budget`, then `outlast resume`",
        ),
        (FAILED, "failed", "the run failed or was cancelled"),
        (HELD, "held", "another live process drives the run; the message says which"),
        (CRASH_LOOP, "crash loop", "the agent died again and again without getting on; the run is failed"),
        (NOT_EXECUTABLE, "not executable", "the agent's command cannot be executed; the run is failed"),
        (NOT_FOUND, "not found", "there is no such command; the run is failed"),
        (INTERRUPTED, "interrupted", "Ctrl-C or `outlast stop`; `outlast resume` goes on"),
    ];

    /// Returns the table as it stands in `docs/reference/exit-codes.md`.
    fn table() -> String {
        let mut out = String::from("| code | name | when |\n|---|---|---|\n");
        for (code, name, when) in ALL {
            out.push_str(&format!("| {code} | {name} | {when} |\n"));
        }
        out
    }

    #[test]
    fn the_page_in_docs_is_the_table() {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/reference/exit-codes.md");
        let page = std::fs::read_to_string(path).unwrap();
        assert!(page.contains(&table()), "docs/reference/exit-codes.md should contain:\n{}", table());
    }

    #[test]
    fn no_two_codes_are_the_same() {
        for (i, a) in ALL.iter().enumerate() {
            assert!(ALL[i + 1..].iter().all(|b| a.0 != b.0 && a.1 != b.1), "{a:?}");
        }
    }
}
