//! Typing mistakes: an agent that died before its first call, in a way that every further attempt would repeat. Pure.

/// Names of the errors by which Python reports a program that it cannot load.
const PYTHON: [&str; 5] =
    ["ModuleNotFoundError", "ImportError", "SyntaxError", "IndentationError", "TabError"];

/// Beginnings of the lines by which Node reports a program that it cannot load.
const NODE: [&str; 3] =
    ["Error: Cannot find module ", "Error [ERR_MODULE_NOT_FOUND]: Cannot find ", "SyntaxError: "];

/// Number of last printed lines that are searched: Node prints its stack below the error.
pub const LINES: usize = 40;

/// Returns the line that says which program or module cannot be loaded, among the last ones that the agent printed;
/// `None` if there is none.
pub fn mistake(lines: &[String]) -> Option<&str> {
    let last = lines.iter().map(|line| line.trim_end()).rfind(|line| !line.is_empty())?;
    let is_python = last.split_once(": ").is_some_and(|(name, _)| PYTHON.contains(&name));
    if is_python {
        return Some(last);
    }
    // The version comes last in Node's report of an error that nobody caught.
    last.strip_prefix("Node.js v")?;
    lines.iter().map(|line| line.trim_end()).rfind(|line| NODE.iter().any(|begins| line.starts_with(begins)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_program_that_cannot_be_loaded_is_a_mistake() {
        let check = |printed: &str, wanted: Option<&str>| {
            let lines: Vec<String> = printed.lines().map(str::to_owned).collect();
            assert_eq!(mistake(&lines), wanted, "{printed}");
        };
        let module = "ModuleNotFoundError: No module named 'openia'";
        let traceback =
            "Traceback (most recent call last):\n  File \"a.py\", line 1, in <module>\n    import openia\n";
        check(&format!("{traceback}{module}\n"), Some(module));
        check(&format!("{traceback}{module}\n\n"), Some(module));
        check(
            "  File \"a.py\", line 3\n    x = (\n        ^\nSyntaxError: '(' was never closed\n",
            Some("SyntaxError: '(' was never closed"),
        );
        check(&format!("{traceback}openai.APIConnectionError: Connection error.\n"), None);
        check(&format!("{module}\nfalling back\n"), None);
        let node = "node:internal/modules/cjs/loader:1228\n  throw err;\n  ^\n\nError: Cannot find module '/x/a.js'\nRequire stack:\n    at x\n  code: 'MODULE_NOT_FOUND',\n}\n\nNode.js v20.19.2\n";
        check(node, Some("Error: Cannot find module '/x/a.js'"));
        check("TypeError: fetch failed\n    at y\n\nNode.js v20.19.2\n", None);
        check("I think you have an ImportError: see above", None);
        check("", None);
    }
}
