"""Writes the reference pages that are made from the program itself, or says which are out of date.

    python scripts/reference.py [--outlast PATH] [--check]

- docs/reference/cli.md: what `outlast COMMAND --help` prints.
- docs/reference/python.md: signatures and docstrings of the package's public names. The sources are read, not imported.
- docs/reference/typescript.md: the same of the npm package: see `reference_typescript.py`.
- docs/reference/settings.md: its table of settings, between the two marks: the long flags that do not act.
- docs/reference/outlast.schema.json: the same and the page's other tables, as editors read them.
"""

import argparse
import ast
import os
import re
import subprocess
import sys
from pathlib import Path

import reference_typescript
import schema

ROOT = Path(__file__).resolve().parent.parent
PAGES = ROOT / "docs" / "reference"
SCHEMA = PAGES / "outlast.schema.json"
PACKAGE = ROOT / "crates" / "python" / "python" / "outlast"
BEGIN, END = "<!-- made by scripts/reference.py -->\n", "<!-- end -->\n"


def rust() -> str:
    return "\n".join(path.read_text() for path in sorted((ROOT / "crates").glob("*/src/**/*.rs")))


def quoted(pattern: str, source: str) -> list[str]:
    """The strings within what `pattern` finds in the Rust sources: a rule that stands there stands nowhere else."""
    found = re.search(pattern, source, re.S)
    if not found:
        raise SystemExit(f"the sources have no longer what this script reads: {pattern}")
    return re.findall(r'"([^"]+)"', found.group(1))


def tables(source: str) -> dict[str, list[str]]:
    """The keys of each table of `outlast.toml` that is no command's, as the sources take them."""
    found = {"agents": [key for key in re.search(r"unknown key \(wanted ([a-z_, ]+)\)", source).group(1).split(", ")]}
    pattern = r'pub const TABLE: &str = "([a-z]+)";(.*?)(?=pub const TABLE|\Z)'
    for name, rest in re.findall(pattern, source, re.S):
        # Its keys are read off the message above.
        if name == "agents":
            continue
        if name == "digest":
            body = re.search(r"pub struct Masks \{\n(.*?)\n\}", source, re.S)
        else:
            body = re.search(r"struct Written \{\n(.*?)\n\}", rest, re.S)
        found[name] = re.findall(r"^    (?:pub )?([a-z_]+):", body.group(1), re.M)
        # A table that has tables of names within says its own keys where it refuses another.
        own = re.search(r'"wanted ([a-z_, ]+), or a table \[' + name, rest)
        found[name] += own.group(1).split(", ") if own else []
    return found


def help_of(outlast: Path, *words: str) -> str:
    env = {"PATH": os.environ["PATH"], "HOME": "/nonexistent", "LANG": "C.UTF-8"}
    # `run` has a shorter help, too.
    flag = "--help-all" if words == ("run",) else "--help"
    done = subprocess.run([outlast, *words, flag], env=env, cwd="/", capture_output=True, text=True, check=True)
    return "\n".join(line.rstrip() for line in done.stdout.splitlines()) + "\n"


def subcommands(text: str) -> list[str]:
    # The first page has its commands below headings of their own.
    headings = [word for word in quoted(r"pub const HEADINGS: [^=]* = \[(.*?)\n\];", rust()) if word[0].isupper()]
    listed = re.findall(rf"^(?:Commands|{'|'.join(headings)}):\n((?:  .*\n)+)", text, re.M)
    names = re.findall(r"^  ([a-z][a-z-]*)(?=\s|$)", "".join(listed), re.M)
    return [name for name in names if name != "help"]


def tree(outlast: Path, *words: str) -> list[tuple[tuple[str, ...], str]]:
    """Every command with its help, in the order of the help above it."""
    text = help_of(outlast, *words)
    return [(words, text)] + [found for name in subcommands(text) for found in tree(outlast, *words, name)]


def cli_page(commands: list[tuple[tuple[str, ...], str]]) -> str:
    out = [
        "# Command line\n\nAfter reading an entry you can type the command. `outlast COMMAND --help` prints the same text; a long flag that",
        "does not act is also a [setting](settings.md). What a command exits with: [exit codes](exit-codes.md).\n\n"
        "This page is made from the program by `scripts/reference.py`.\n",
    ]
    for words, text in commands:
        name = " ".join(["outlast", *words])
        out.append(f"{'#' * (2 + max(0, len(words) - 1))} `{name}`\n\n```text\n{text}```\n")
    return "\n".join(out)


class Flag:
    """A long flag as the help of one command has it."""

    def __init__(self, name: str, value: str, about: str) -> None:
        self.name = name
        default = re.search(r"\[default: ([^\]]*)\]", about)
        possible = re.search(r"\[possible values: ([^\]]*)\]", about)
        self.default = default.group(1) if default else ""
        about = re.sub(r"\s*\[(default|possible values): [^\]]*\]", "", about).strip()
        if possible:
            value = possible.group(1).replace(", ", "|")
        self.value = value.replace(" | ", "|").replace("\\|", "|").replace("|", " \\| ") or "true or false"
        self.about = about.replace("|", "\\|")


def flags(text: str) -> list[Flag]:
    found, at = [], None
    for line in text.splitlines():
        head = re.match(r"^ {2,6}(?:-\w, )?--([a-z-]+)(?:(?: \[?|\[=)<([^>]*)>\]?)?(?:  +(.*))?$", line)
        if head:
            at = [head.group(1), head.group(2) or "", head.group(3) or ""]
            found.append(at)
        elif at and line.startswith("         "):
            at[2] += " " + line.strip()
        elif line and not line.startswith(" "):
            at = None
    return [Flag(name, value, " ".join(about.split())) for name, value, about in found]


def flags_set_by(who: str, source: str) -> list[str]:
    """The flags that the table of `settings/flags.rs` has for `who`."""
    (names,) = quoted(rf'const FLAGS:.*?\b{who},\s+(".*?")', source)
    return names.replace("\\", " ").split()


def settings_rows(commands: list[tuple[tuple[str, ...], str]]) -> dict[tuple[str, str, str, str], list[str]]:
    """The flags that are settings, each with the commands that have it: key, value, default, what it sets."""
    never = ["help", "version", *flags_set_by("Typing", rust())]
    rows: dict[tuple[str, str, str, str], list[str]] = {}
    everywhere = {flag.name for flag in flags(commands[0][1])}
    for words, text in commands:
        if len(words) > 1:
            continue
        for flag in flags(text):
            acts = flag.name in never or f"{words[0] if words else ''}.{flag.name}" in never
            if acts or (words and flag.name in everywhere):
                continue
            row = (flag.name, flag.value, flag.default, flag.about)
            rows.setdefault(row, []).append(words[0] if words else "all")
    return rows


def settings_table(rows: dict[tuple[str, str, str, str], list[str]]) -> str:
    anyone = flags_set_by("Anyone", rust())
    out = ["| key | of | value | default | what it sets |\n|---|---|---|---|---|\n"]
    for (name, value, default, about), of in sorted(rows.items(), key=lambda row: row[0]):
        key = f"`{name.replace('-', '_')}`" + (" (any directory)" if name in anyone else "")
        out.append(f"| {key} | {', '.join(of)} | {value} | {f'`{default}`' if default else ''} | {about} |\n")
    return "".join(out)


def signature(node: ast.FunctionDef | ast.AsyncFunctionDef) -> str:
    """The signature in a block of its own, a parameter a line where it is long."""
    node.args.args = [arg for arg in node.args.args if arg.arg not in ("self", "cls")]
    returns = f" -> {ast.unparse(node.returns)}" if node.returns else ""
    head = f"{'async ' if isinstance(node, ast.AsyncFunctionDef) else ''}{node.name}"
    text = f"{head}({', '.join(parameters(node.args))}){returns}"
    if len(text) > 110:
        lines = "".join(f"    {parameter},\n" for parameter in parameters(node.args))
        text = f"{head}(\n{lines}){returns}"
    return f"```text\n{text}\n```\n"


def parameters(args: ast.arguments) -> list[str]:
    def shown(arg: ast.arg, default: ast.expr | None) -> str:
        return ast.unparse(arg) + (f" = {ast.unparse(default)}" if default else "")

    plain = [*args.posonlyargs, *args.args]
    defaults = [None] * (len(plain) - len(args.defaults)) + list(args.defaults)
    out = [shown(arg, default) for arg, default in zip(plain, defaults)]
    if args.vararg or args.kwonlyargs:
        out.append(f"*{ast.unparse(args.vararg)}" if args.vararg else "*")
    out += [shown(arg, default) for arg, default in zip(args.kwonlyargs, args.kw_defaults)]
    return out + ([f"**{ast.unparse(args.kwarg)}"] if args.kwarg else [])


def described(node: ast.AST) -> str:
    return (ast.get_docstring(node) or "").strip()


def homes() -> dict[str, str]:
    for node in ast.parse((PACKAGE / "__init__.py").read_text()).body:
        if isinstance(node, ast.Assign) and getattr(node.targets[0], "id", None) == "_MODULES":
            return {name: module for module, names in ast.literal_eval(node.value).items() for name in names.split()}
    raise SystemExit("outlast/__init__.py has no table of its public names")


def source_of(home: str) -> Path:
    return PACKAGE / f"{home.replace('.', '/')}.py"


def find(name: str, home: str) -> ast.AST:
    source = source_of(home)
    for node in ast.parse(source.read_text()).body:
        if isinstance(node, (ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)) and node.name == name:
            return node
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == name:
            return node
    raise SystemExit(f"{name} is not in {source}")


def is_property(node: ast.AST) -> bool:
    return any(getattr(d, "id", None) == "property" for d in getattr(node, "decorator_list", []))


def with_options(node: ast.FunctionDef, home: str) -> ast.FunctionDef:
    """The function with the fields of the class whose values it takes by their names: see `taking` of the batches."""
    for decorator in node.decorator_list:
        if isinstance(decorator, ast.Call) and ast.unparse(decorator.func) == "taking":
            fields = [f for f in find(decorator.args[0].id, f"{home.rpartition('.')[0]}.options").body if isinstance(f, ast.AnnAssign)]
            node.args.args.pop()
            node.args.kwonlyargs = [ast.arg(f.target.id, f.annotation) for f in fields]
            node.args.kw_defaults = [f.value for f in fields]
    return node


def with_hidden_bases(node: ast.ClassDef, home: str) -> ast.ClassDef:
    """The class with the members that it has from a base of ours that is no public name; those bases are not shown."""
    bases, body = [], []
    here = ast.parse(source_of(home).read_text()).body
    places = {n.name: home for n in here if isinstance(n, ast.ClassDef)}
    for n in here:
        if isinstance(n, ast.ImportFrom) and n.level:
            module = ".".join([*home.split(".")[: -n.level], n.module or ""])
            places |= {alias.name: module for alias in n.names}
    for base in node.bases:
        name = ast.unparse(base).partition("[")[0]
        if name in places and name not in homes():
            body += with_hidden_bases(find(name, places[name]), places[name]).body
        elif name != "Generic":
            bases.append(base)
    about = [item for item in node.body[:1] if described(node)]
    node.bases, node.body = bases, about + body + node.body[len(about) :]
    return node


def class_entry(node: ast.ClassDef) -> str:
    bases = ", ".join(ast.unparse(base) for base in node.bases)
    out = [f"### `{node.name}{f'({bases})' if bases else ''}`\n", described(node) + "\n" if described(node) else ""]
    fields = [
        ast.unparse(item)
        for item in node.body
        if isinstance(item, ast.AnnAssign) and isinstance(item.target, ast.Name) and not item.target.id.startswith("_")
    ]
    if fields:
        out.append("```text\n" + "\n".join(fields) + "\n```\n")
    for item in node.body:
        if not isinstance(item, (ast.FunctionDef, ast.AsyncFunctionDef)) or item.name.startswith("_"):
            continue
        if not described(item):
            continue
        block = "" if is_property(item) else f"{signature(item)}\n"
        out.append(f"#### `{node.name}.{item.name}`\n\n{block}{described(item)}\n")
    return "\n".join(part for part in out if part)


def python_page() -> str:
    groups: dict[str, list[str]] = {"Functions": [], "Classes": [], "Errors and warnings": []}
    for name, home in sorted(homes().items(), key=lambda item: item[0].lower()):
        node = find(name, home)
        if isinstance(node, ast.Assign):
            groups["Errors and warnings"].append(f"### `{name}`\n\nAnother name of `{ast.unparse(node.value)}`.\n")
        elif isinstance(node, ast.ClassDef):
            groups["Errors and warnings" if home == "errors" else "Classes"].append(class_entry(with_hidden_bases(node, home)))
        else:
            about = described(node)
            groups["Functions"].append(f"### `{name}`\n\n{signature(with_options(node, home))}" + (f"\n{about}\n" if about else ""))
    head = (
        "# Python API\n\nEach public name of the package `outlast`, with its signature and its docstring. To learn the package, read the\n"
        "[guide](../guides/python.md) first.\n\nThis page is made from the sources by `scripts/reference.py`.\n"
    )
    return "\n".join([head, *(f"## {title}\n\n" + "\n".join(entries) for title, entries in groups.items())])


def pages(outlast: Path) -> dict[Path, str]:
    commands = tree(outlast)
    settings = (PAGES / "settings.md").read_text()
    before, _, rest = settings.partition(BEGIN)
    after, rows = rest.partition(END)[2], settings_rows(commands)
    return {
        PAGES / "cli.md": cli_page(commands),
        PAGES / "python.md": python_page(),
        PAGES / "typescript.md": reference_typescript.page(),
        PAGES / "settings.md": f"{before}{BEGIN}{settings_table(rows)}{END}{after}",
        SCHEMA: schema.schema(rows, after),
    }


def stale(outlast: Path) -> list[Path]:
    """The pages that are not what the program says now."""
    return [page for page, text in pages(outlast).items() if not page.exists() or page.read_text() != text]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--outlast", type=Path, default=ROOT / "target" / "debug" / "outlast", help="the program")
    parser.add_argument("--check", action="store_true", help="write nothing; exit with 1 where a page is out of date")
    args = parser.parse_args()
    old = stale(args.outlast.resolve())
    for page in old:
        print(f"{page.relative_to(ROOT)} {'is out of date' if args.check else 'is written'}")
    if not args.check:
        for page, text in pages(args.outlast.resolve()).items():
            page.write_text(text)
    return 1 if args.check and old else 0


if __name__ == "__main__":
    sys.exit(main())
