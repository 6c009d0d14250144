"""The reference page of the npm package, made from its sources: `reference.py` writes it with the pages that it makes.

The package is JavaScript with its types in comments. Read are the comments that stand on lines of their own before a
declaration, and the parameters of that declaration; what has no description is the package's own.
"""

import json
import re
from pathlib import Path

SOURCES = Path(__file__).resolve().parent.parent / "typescript"
WIDE = 110
#: A comment on lines of its own, and where the declaration after it begins.
COMMENT = re.compile(r"^( *)/\*\*((?:(?!\*/).)*)\*/\n(?=\1\S)", re.M | re.S)
CLOSING = {"(": ")", "[": "]", "{": "}", "<": ">"}


def balanced(text: str, at: int) -> int:
    """Where the bracket at `at` ends: the position after its closing one. `=>` closes nothing."""
    depth = 0
    for match in re.compile(r"=>|[()\[\]{}<>]").finditer(text, at):
        depth += {"=>": 0}.get(match[0], 1 if match[0] in CLOSING else -1)
        if depth == 0:
            return match.end()
    raise SystemExit(f"a bracket is not closed: {text[at : at + 80]}")


def parts(text: str, separator: str) -> list[str]:
    """The text split at separators that stand in no bracket."""
    found, depth, start = [], 0, 0
    for match in re.compile(rf"=>|[()\[\]{{}}<>]|{re.escape(separator)}").finditer(text):
        if match[0] == separator and depth == 0:
            found.append(text[start : match.start()])
            start = match.end()
        elif match[0] not in ("=>", separator):
            depth += 1 if match[0] in CLOSING else -1
    return [part.strip() for part in [*found, text[start:]] if part.strip()]


class Comment:
    """A comment: its description, and its tags as (type, rest) by their name."""

    def __init__(self, text: str) -> None:
        text = re.sub(r"^ *\* ?", "", text, flags=re.M).strip()
        self.tags: dict[str, list[tuple[str, str]]] = {}
        tag = re.compile(r"(?:^|(?<=\s))@(\w+)\s*")
        first = at = tag.search(text)
        while at:
            end = balanced(text, at.end()) if text[at.end() : at.end() + 1] == "{" else at.end()
            after = tag.search(text, end)
            rest = text[end : after.start() if after else len(text)].strip()
            self.tags.setdefault(at[1], []).append((clean(text[at.end() + 1 : end - 1] if end > at.end() else ""), rest))
            at = after
        self.about = text[: first.start()].strip() if first else text

    def generics(self) -> str:
        names = []
        for bound, rest in self.tags.get("template", []):
            names += [f"{name.strip()}{f' extends {bound}' if bound else ''}" for name in rest.split(",")]
        return f"<{', '.join(names)}>" if names else ""


def clean(kind: str) -> str:
    return " ".join(re.sub(r"import\('[^']+'\)\.", "", kind).split())


class Declaration:
    """Kind of the declaration behind a comment: a class, a function, a method, a getter or a field."""

    def __init__(self, comment: Comment, text: str, at: int) -> None:
        self.comment, self.at = comment, at
        line = text[at : text.index("\n", at)]
        head = re.match(r" *(?:export )?(async )?(?:(class|function|const|get) )?\*?(?:this\.)?([\w$]+|\[[\w.]+\])(?: extends (\w+))?", line)
        self.is_async, self.word, self.name, self.base = head.groups() if head else (None, None, "", None)
        opened = at + head.end() if head else at
        is_called = text[opened : opened + 1] == "("
        self.parameters = parts(text[opened + 1 : balanced(text, opened) - 1], ",") if is_called else None

    def signature(self, name: str) -> str:
        """The call as TypeScript writes it, a parameter a line where it is long."""
        told = self.comment.tags.get("param", [])
        shown = []
        for (kind, rest), written in zip(told, self.parameters or []):
            called = re.sub(r"\W", "", rest.split()[0])
            is_optional = rest.startswith("[") or len(parts(written, "=")) > 1
            shown.append(f"{'...' if written.startswith('...') else ''}{called}{'?' if is_optional else ''}: {kind}")
        ((returns, _),) = self.comment.tags.get("returns") or [("Promise<void>" if self.is_async else "", "")]
        end = f"{f': {returns}' if returns else ''}"
        one = f"{name}{self.comment.generics()}({', '.join(shown)}){end}"
        if len(one) > WIDE:
            one = f"{name}{self.comment.generics()}(\n" + "".join(f"    {each},\n" for each in shown) + f"){end}"
        return f"```text\n{one}\n```\n"


class Module:
    """A source: its declarations with a comment, its types, and what it gives on from others."""

    def __init__(self, name: str) -> None:
        self.text = (SOURCES / "src" / name).read_text()
        found = [(len(m[1]), Comment(m[2]), m.end()) for m in COMMENT.finditer(self.text)]
        self.declared = [(depth, Declaration(comment, self.text, at)) for depth, comment, at in found]
        # A line that begins with a comment's last one, such as a type before a type.
        loose = [Comment(m[1]) for m in re.finditer(r"^/\*\*((?:(?!\*/).)*)\*/$", self.text, re.M | re.S)]
        self.types = {rest.split()[0]: (comment, kind) for comment in loose for kind, rest in comment.tags.get("typedef", [])}

    def find(self, name: str) -> "Declaration":
        for depth, declared in self.declared:
            if depth == 0 and declared.name == name:
                return declared
        raise SystemExit(f"{name} has no comment where it is declared")

    def members(self, owner: Declaration) -> list[Declaration]:
        end = self.text.index("\n}\n", owner.at)
        inner = [(depth, one) for depth, one in self.declared if depth and owner.at < one.at < end]
        return [one for depth, one in inner if one.name[0] not in "_[" and (depth == 2 or f"this.{one.name} =" in self.text[one.at : one.at + 60])]

    def public(self) -> list[tuple["Module", str]]:
        """What the module exports, each with where it is declared."""
        found = [(self, name) for name in re.findall(r"^export (?:async )?(?:class|function|const) (\w+)", self.text, re.M)]
        for names, home in re.findall(r"^export (\*|\{[^}]*\}) from '\./([\w.-]+)';", self.text, re.M):
            there = Module(home)
            found += there.public() if names == "*" else [(there, name) for name in re.findall(r"\w+", names)]
        return found


def entry(module: Module, name: str, is_made: bool) -> str:
    """A class with its members, or a function. `is_made`: programs make objects of the class."""
    bound = re.search(rf"^export const {name} = \w+\.(\w+)\.bind", module.text, re.M)
    if bound:
        method = next(one for _, one in module.declared if one.name == bound[1] and one.parameters is not None)
        return f"### `{name}`\n\n{method.signature(name)}\n{method.comment.about}\n"
    declared = module.find(name)
    if declared.word != "class":
        call = declared.signature(name) + "\n" if declared.parameters is not None else ""
        return f"### `{name}`\n\n{call}{declared.comment.about}\n"
    out = [f"### `{name}{declared.comment.generics()}{f' extends {declared.base}' if declared.base else ''}`\n", declared.comment.about + "\n"]
    members = module.members(declared)
    fields = [f"- `{one.name}`: {' '.join(one.comment.about.split())}\n" for one in members if one.parameters is None or one.word == "get"]
    if is_made:
        out += [one.signature(f"new {name}") for one in members if one.name == "constructor"]
    out += ["".join(field for field in fields if ": \n" not in field)]
    out += [
        f"#### `{name}.{one.name}`\n\n{one.signature(one.name)}\n{one.comment.about}\n"
        for one in members
        if one.parameters is not None and one.word != "get" and one.comment.about and one.name != "constructor"
    ]
    return "\n".join(part for part in out if part)


def type_entry(name: str, comment: Comment, kind: str) -> str:
    if kind.startswith("{"):
        kind = "{\n" + "".join(f"    {member},\n" for member in parts(kind[1:-1], ",")) + "}"
    return f"### `{name}{comment.generics()}`\n\n```text\n{kind}\n```\n" + (f"\n{comment.about}\n" if comment.about else "")


def page() -> str:
    groups: dict[str, list[str]] = {"Functions": [], "Classes": [], "Errors": []}
    index = Module("index.js")
    errors = "errors.js"
    for module, name in sorted(index.public(), key=lambda one: one[1].lower()):
        is_class = re.search(rf"^export class {name}\b", module.text, re.M)
        is_error = module.text == Module(errors).text
        title = "Errors" if is_class and is_error else "Classes" if is_class else "Functions"
        groups[title].append(entry(module, name, is_error))
    places = json.loads((SOURCES / "package.json").read_text())["exports"]
    for place, about in places.items():
        if place not in (".", "./package.json"):
            named = Module(Path(about["default"]).name).public()
            groups[f"`outlast{place[1:]}`"] = [entry(module, name, True) for module, name in sorted(named, key=lambda one: one[1].lower())]
    types = {name: told for source in sorted((SOURCES / "src").glob("*.js")) for name, told in Module(source.name).types.items() if told[1] != name}
    shown = "\n".join(text for entries in groups.values() for text in entries)
    wanted: dict[str, str] = {}
    while fresh := [n for n in types if n not in wanted and re.search(rf"(?m)^(?!#|- ).*[:<|&( ]{n}\b", "\n".join(re.findall(r"```text\n.*?```", shown, re.S)))]:
        wanted |= {name: type_entry(name, *types[name]) for name in fresh}
        shown = "\n".join(wanted[name] for name in fresh)
    groups["Types"] = [text for _, text in sorted(wanted.items())]
    head = (
        "# TypeScript API\n\nEach public name of the npm package `outlast`, with its signature and what its source says of it. To learn the\n"
        "package, read the [guide](../guides/typescript.md) first.\n\nThis page is made from the sources by `scripts/reference.py`.\n"
    )
    return "\n".join([head, *(f"## {title}\n\n" + "\n".join(entries) for title, entries in groups.items())])
