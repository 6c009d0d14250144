//! Input of a loop's iteration, and the answer of the command that ends the loop.

use std::{fs::File, io::Read as _};

use crate::program::error::{CliError, InputError};
use outlast_process::exit::Exit;

/// Largest input of an iteration that is stored, in bytes.
const MAX_INPUT: u64 = 64 << 20;

/// Reads the whole file that `--stdin` names.
///
/// Errors: the file cannot be read, is no regular file, or is larger than `MAX_INPUT`.
pub fn read_input(path: &str) -> Result<Vec<u8>, CliError> {
    let bad = |why: String| InputError::Iteration { path: path.to_owned(), why };
    let file = File::open(path).map_err(|e| bad(e.to_string()))?;
    // A pipe would have nothing left for the second iteration.
    if !file.metadata().map_err(|e| bad(e.to_string()))?.is_file() {
        return Err(bad("it is no regular file".into()).into());
    }
    let mut bytes = Vec::new();
    file.take(MAX_INPUT + 1).read_to_end(&mut bytes).map_err(|e| bad(e.to_string()))?;
    if bytes.len() as u64 > MAX_INPUT {
        return Err(bad("it is larger than 64 MiB, and cannot be kept with the run".into()).into());
    }
    Ok(bytes)
}

/// Result of the `--until` command, which decides whether a loop ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Until {
    Met,
    NotYet,
    /// The shell found no such command or could not execute it, and exited with this code: a mistake in the command.
    NotRun(i32),
}

pub fn until(exit: Exit) -> Until {
    match exit.code {
        Some(0) => Until::Met,
        Some(code @ (126 | 127)) => Until::NotRun(code),
        _ => Until::NotYet,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_success_ends_a_loop_and_a_command_that_is_not_there_is_a_mistake() {
        for (exit, wanted) in [
            (Exit::code(0), Until::Met),
            (Exit::code(1), Until::NotYet),
            (Exit::code(2), Until::NotYet),
            (Exit::signal(9), Until::NotYet),
            (Exit::code(126), Until::NotRun(126)),
            (Exit::code(127), Until::NotRun(127)),
        ] {
            assert_eq!(until(exit), wanted, "{exit}");
        }
    }

    #[test]
    fn an_input_is_a_regular_file_that_can_be_read() {
        let dir = tempfile::tempdir().unwrap();
        let check = |name: &str, wanted: Result<&[u8], &str>| {
            let path = dir.path().join(name);
            match (read_input(path.to_str().unwrap()), wanted) {
                (Ok(bytes), Ok(wanted)) => assert_eq!(bytes, wanted),
                (Err(e), Err(wanted)) => assert!(e.to_string().contains(wanted), "{e}"),
                (had, _) => panic!("{name}: {:?}", had.map_err(|e| e.to_string())),
            }
        };
        std::fs::write(dir.path().join("prompt"), b"do it\xff\n").unwrap();
        check("prompt", Ok(b"do it\xff\n"));
        check("missing", Err("No such file"));
        check(".", Err("it is no regular file"));
    }
}
