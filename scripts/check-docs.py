"""Holds the documents to what is there: runs their commands, looks up the tests, files, codes and settings they name,
the figures that link to the benchmarks and to the evidence, and asks whether the generated pages are what `reference.py` would write.

    python scripts/check-docs.py [--outlast PATH] [DOCUMENT…]

In a block marked ```console the lines that begin with `$ ` are run by bash, in a home of their own, with the
example agent at hand and a fake provider in place of the real ones; a document is one session. Lines that begin
with `> ` belong to the command above them. Every other line of the block must be found in the command's output, in
order; `…` stands for anything, and blanks count as one. A command whose block shows no output must exit with 0.
"""

import argparse
import contextlib
import fnmatch
import itertools
import json
import os
import re
import shlex
import shutil
import socket
import subprocess
import sys
import tempfile
from pathlib import Path

import reference

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "scripts" / "crash"))

import evidence  # noqa: E402

MARK = "--- check-docs"
COMMAND_TIMEOUT_S = 180
# In documents these are the ports people see; here they may be taken.
PORTS = ("7070", "7077", "7078", "50051")
TRIED = itertools.count(os.getpid())


def documents() -> list[Path]:
    pages = [*sorted((ROOT / "docs").rglob("*.md")), *sorted((ROOT / "examples").glob("*/README.md"))]
    own = [ROOT / name for name in ("README.md", "ARCHITECTURE.md", "CONTRIBUTING.md")]
    return [*own, *pages]


def steps(text: str) -> list[tuple[str, list[str]]]:
    """The commands of a document, each with the output that it shows."""
    found: list[tuple[str, list[str]]] = []
    for block in re.findall(r"^```console\n(.*?)^```", text, re.M | re.S):
        for line in block.splitlines():
            if line.startswith("$ "):
                found.append((line[2:], []))
            elif line.startswith("> "):
                found[-1] = (f"{found[-1][0]}\n{line[2:]}", found[-1][1])
            elif line.strip():
                found[-1][1].append(line)
    return found


def run(outlast: Path, commands: list[str], home: Path) -> list[tuple[int, str]]:
    """Each command's exit code and output, of one bash session."""
    (home / "examples").symlink_to(ROOT / "examples")
    # `python` is the one that has the SDKs.
    (home / "bin").mkdir()
    (home / "bin" / "python").write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} "$@"\n')
    (home / "bin" / "python").chmod(0o755)
    (home / "bin" / "outlast").symlink_to(outlast)
    # The package as it is built here: its sources, and the extension beside the program.
    shutil.copytree(ROOT / "crates/python/python/outlast", home / "lib/outlast", ignore=shutil.ignore_patterns("*.so", "__pycache__"))
    (home / "lib/outlast/_native.abi3.so").symlink_to(outlast.parent / "lib_native.so")
    provider = subprocess.Popen(
        [outlast, "mock", "--listen", "127.0.0.1:0"], stdout=subprocess.PIPE, text=True, env={"HOME": str(home)}
    )
    try:
        url = provider.stdout.readline().strip()
        env = {
            "HOME": str(home),
            "PYTHONPATH": f"{home}/lib",
            "PATH": f"{home}/bin:{os.environ['PATH']}",
            "LANG": "C.UTF-8",
            "OPENAI_BASE_URL": f"{url}/v1",
            "ANTHROPIC_BASE_URL": url,
        }
        # The fake provider here stands for a real one, with a key of the reader's. A page that begins a provider of its own
        # has to say which key it takes, and where it is.
        if any(command.startswith("outlast mock") for command in commands):
            env |= {"OPENAI_BASE_URL": "", "ANTHROPIC_BASE_URL": ""}
        else:
            env |= {"OPENAI_API_KEY": "sk-a-fake-key", "ANTHROPIC_API_KEY": "sk-a-fake-key"}
        script = "".join(f"{command}\nended=$?; echo; echo '{MARK}' $ended\n" for command in commands)
        done = subprocess.run(
            ["bash", "-c", f"trap 'kill $(jobs -p) 2>/dev/null' EXIT\n{script}"],
            cwd=home,
            env=env,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=COMMAND_TIMEOUT_S,
        )
    finally:
        provider.kill()
        provider.wait()
    pieces = re.split(rf"^{MARK} (\d+)\n", done.stdout, flags=re.M)
    return [(int(code), said) for said, code in zip(pieces[::2], pieces[1::2])]


def missing(shown: list[str], said: str) -> str | None:
    """The first line shown that the output does not have, in its place."""
    lines = iter([" ".join(line.split()) for line in said.splitlines()])
    for line in shown:
        pattern = re.sub(r"([\[?*])", r"[\1]", " ".join(line.split())).replace("…", "*")
        if not any(fnmatch.fnmatchcase(had, pattern) for had in lines):
            return line
    return None


def check_commands(outlast: Path, document: Path) -> list[str]:
    told = steps(document.read_text())
    if not told:
        return []
    ports = {port: free_port() for port in PORTS}
    commands = [substitute(command, ports) for command, _ in told]
    # A short path: a Unix socket of a command's could stand in it.
    with tempfile.TemporaryDirectory(prefix="docs-") as home:
        ran = run(outlast, commands, Path(home))
        back = {port: word for word, port in ports.items()} | {home: "~"}
    faults = [f"the session ended at: $ {told[len(ran)][0]}"] if len(ran) < len(told) else []
    for (command, shown), (code, said) in zip(told, ran):
        said = substitute(said, back)
        line = missing(shown, said)
        if line is not None:
            faults.append(f"$ {command}\n  wanted: {line}\n  had: {said.strip()}")
        elif not shown and code != 0:
            faults.append(f"$ {command}\n  exited with {code}: {said.strip()}")
    return faults


def substitute(text: str, words: dict[str, str]) -> str:
    for word, other in words.items():
        text = text.replace(word, other)
    return text


def free_port() -> str:
    """A port below those that the kernel gives out, and above those of the tests: none is taken while a server is away."""
    while True:
        port = 31_500 + next(TRIED) % 1_000
        with socket.socket() as free, contextlib.suppress(OSError):
            free.bind(("127.0.0.1", port))
            return str(port)


def sources(pattern: str, below: str = "crates") -> str:
    return "\n".join(path.read_text() for path in sorted((ROOT / below).glob(pattern)))


def check_names(document: Path, code: str) -> list[str]:
    """Tests (`a_b_c_d`, three underscores or more) and files (`crates/…`, links) that are not there."""
    text = re.sub(r"^```.*?^```", "", document.read_text(), flags=re.M | re.S)
    faults = []
    for name in set(re.findall(r"`([a-z0-9]+(?:_[a-z0-9]+){3,})`", text)):
        if not any(text in code for text in (f"fn {name}", f"def {name}(", f'"{name}"')):
            faults.append(f"there is no test or code {name}")
    paths = re.findall(r"`((?:crates|scripts|examples|docs|benches)/[^`\s…*]*)`", text)
    links = [link for link in re.findall(r"\]\(([^)#\s]+)", text) if "://" not in link]
    for path in {ROOT / path for path in paths} | {document.parent / link for link in links}:
        if not path.exists():
            faults.append(f"there is no {os.path.relpath(path, ROOT)}")
    return faults


def check_cells(document: Path) -> list[str]:
    """Each cell of the contract's table of agents names a test, or says that there is none."""
    table = re.search(r"^\| \| 1\. goes on \|.*?\n\n", document.read_text(), re.M | re.S)
    rows = [line.strip("| ").split(" | ") for line in table[0].splitlines()[2:] if line] if table else []
    bad = [f"{row[0]}: {cell}" for row in rows for cell in row[1:] if not re.fullmatch(r"`\w+`|–|\*not tried\*", cell)]
    return bad if rows and all(len(row) == 7 for row in rows) else ["the table of agents has not six cells a row"]


def check_figures(document: Path) -> list[str]:
    """A figure that links to the benchmarks or to the evidence stands there."""
    faults = []
    for figure, name in re.findall(r"\[([^\]]*[0-9][^\]]*)\]\([^)#]*\b(benchmarks|evidence)\.md\)", document.read_text()):
        page = ROOT / "docs" / f"{name}.md"
        if figure not in page.read_text():
            faults.append(f"docs/{name}.md does not have the figure {figure}")
    return faults


def check_evidence(document: Path) -> list[str]:
    """The page of evidence is what its facts make, and its facts are of a campaign without faults that found all of its own."""
    told = json.loads(evidence.FACTS.read_text())
    faults = [] if document.read_text() == evidence.page(told) else ["is not what docs/evidence.json makes: run scripts/crash/evidence.py"]
    faults += [f"a run had a fault: {one['only']}" for one in told["faults"]]
    return faults + [f"a planted fault was not found: {one['name']}" for one in told["planted"] if not one["found"]]


def check_codes(document: Path, rust: str) -> list[str]:
    """Every code that a `fn code`, a `fn fact` or a table of facts gives stands in the document, and the document has no other."""
    text = document.read_text()
    told = set(re.findall(r"^\| `([a-z_]+)` \|", text, re.M))
    given = set()
    for match in re.finditer(
        r"^( *)(?:pub (?:const )?fn code|(?:pub )?(?:const )?fn fact)\(&?self\)[^\n]*{\n.*?^\1}", rust, re.M | re.S
    ):
        given |= set(re.findall(r'"([a-z]+(?:_[a-z]+)*)"', match.group(0)))
    for rows in re.findall(r"error_facts! {\n.*?^}", rust, re.M | re.S):
        given |= set(re.findall(r'"([a-z]+(?:_[a-z]+)*)"', rows))
    for rows in re.findall(r"error_rows! {\n.*?^}", rust, re.M | re.S):
        given |= set(re.findall(r'=> \("([a-z]+(?:_[a-z]+)*)",', rows))
    given |= set(re.findall(r'\bcode: "([a-z_]+)"', rust))
    faults = [f"the code {code} is given and not told" for code in sorted(given - told)]
    return faults + [f"the code {code} is told and not given" for code in sorted(told) if f'"{code}"' not in rust]


def check_settings(document: Path) -> list[str]:
    """Every key of the tables of `outlast.toml` stands in the page, and no other."""
    faults = []
    sections = dict(re.findall(r"^### `\[([a-z]+).*?\n(.*?)(?=^##|\Z)", document.read_text(), re.M | re.S))
    for table, keys in reference.tables(reference.rust()).items():
        rows = re.findall(r"^\| (`[^|]*) \|", sections.get(table, ""), re.M)
        told = {key for row in rows for key in re.findall(r"`([a-z_]+)`", row)}
        faults += [f"the key {key} of [{table}] is taken and not told" for key in sorted(set(keys) - told)]
        faults += [f"the key {key} of [{table}] is told and not taken" for key in sorted(told - set(keys))]
    return faults


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--outlast", type=Path, default=ROOT / "target" / "debug" / "outlast", help="the program")
    parser.add_argument("documents", nargs="*", type=Path)
    args = parser.parse_args()
    code, broken, old = sources("**/*.rs") + sources("**/*.py", "tests"), 0, reference.stale(args.outlast.resolve())
    for document in args.documents or documents():
        faults = check_names(document.resolve(), code) + check_figures(document) + check_commands(args.outlast.resolve(), document)
        if document.name == "errors.md":
            faults += check_codes(document, sources("*/src/**/*.rs") + sources("python/python/outlast/**/*.py"))
        if document.name == "contract.md":
            faults += check_cells(document)
        if document.name == "evidence.md":
            faults += check_evidence(document)
        if document.name == "settings.md":
            faults += check_settings(document)
        # The schema of the settings is made from their page.
        if document.resolve() in old or document.name == "settings.md" and reference.SCHEMA in old:
            faults.append("is out of date: run scripts/reference.py")
        for fault in faults:
            print(f"{document.name}: {fault}")
        broken += bool(faults)
        if not faults:
            print(f"{document.name}: ok, {len(steps(document.read_text()))} commands")
    return 1 if broken else 0


if __name__ == "__main__":
    sys.exit(main())
