//! Values for a shell to read: quoted so that nothing in them is anything but itself.
//!
//! Home-made: shlex writes one word now plain, now in one kind of quotes, now in the other; hooks in people's settings
//! and the lines of `shell-init` are to be the same in every version.

/// `text` as one word of any POSIX shell. In single quotes only a single quote ends the word.
///
/// NUL, which no shell can hold, is the caller's to keep out.
pub fn quoted(text: &str) -> String {
    format!("'{}'", text.replace('\'', r"'\''"))
}

/// A line that exports a variable; one whose value no environment can hold is unset.
pub fn export(variable: &str, value: &str) -> String {
    if value.contains('\0') {
        return format!("unset {variable}\n");
    }
    format!("export {variable}={}\n", quoted(value))
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;

    #[test]
    fn any_value_comes_through_a_shell_as_it_was() {
        for value in [
            "",
            "plain",
            "it's",
            "''",
            "'",
            "\"$HOME\" `id` $(id) ${IFS}",
            "two\nlines\n",
            "\r\t\x1b[2J",
            "-n -e \\n \\\\",
            "!! # ~ * ? [a] {a,b} > < | & ;",
            "größe 日本 🦀",
        ] {
            for shell in ["sh", "bash"] {
                let script = format!("{}printf '%s|' \"$V\"", export("V", value));
                let out = Command::new(shell).args(["-c", &script]).output().unwrap();
                assert_eq!(String::from_utf8(out.stdout).unwrap(), format!("{value}|"), "{shell}");
            }
        }
    }
}
