//! Quoting of values for a shell.
//!
//! Written here because shlex quotes a word in one of three ways: hooks in people's settings and the output of
//! `shell-init` have to stay the same in every version.

/// Quotes `text` as one word of any POSIX shell, in single quotes.
///
/// The caller excludes NUL, which no shell can hold.
pub fn quoted(text: &str) -> String {
    format!("'{}'", text.replace('\'', r"'\''"))
}

/// Returns `text` as one word of a shell: quoted only where it has to be.
pub fn word(text: &str) -> String {
    let is_plain = |b: u8| b.is_ascii_alphanumeric() || b"-_./:=,@%+".contains(&b);
    if !text.is_empty() && text.bytes().all(is_plain) { text.to_owned() } else { quoted(text) }
}

/// Returns a line of shell code that exports a variable, or unsets it if the value holds NUL, which no environment can.
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
                let script = format!("{}printf '%s|' \"$V\" {}", export("V", value), word(value));
                let out = Command::new(shell).args(["-c", &script]).output().unwrap();
                assert_eq!(String::from_utf8(out.stdout).unwrap(), format!("{value}|{value}|"), "{shell}");
            }
        }
    }
}
