"""The JSON Schema of `outlast.toml`, for editors: made from the flags of the program and the tables of settings.md.

`reference.py` writes it with the pages that it makes. The program stays the judge of values: the schema knows the names, and
of values what the help says.
"""

import json
import re

# Words of the help for values that may be written as a number.
NUMBERS = ("N", "AMOUNT", "TIME", "SIZE", "SHARE")
OPEN = {"type": ["string", "number"]}


def flag_schema(name: str, value: str, default: str, about: str) -> dict:
    """Schema of a flag's value in the file, from its row in the table of settings."""
    value = value.replace(" \\| ", "|")
    if value == "true or false":
        one = {"type": "boolean"}
    elif "|" in value:
        one = {"enum": value.split("|")}
    else:
        one = dict(OPEN) if value in NUMBERS else {"type": "string"}
    if "can be repeated" in about:
        table = [{"type": "object", "additionalProperties": {"type": ["string", "number", "boolean"]}}] if name == "tag" else []
        one = {"anyOf": [one, {"type": "array", "items": one}, *table]}
    default = {"default": default} if default and one.get("type") == "string" or default in one.get("enum", []) else {}
    return one | default | {"description": about.replace("\\|", "|")}


def cell_schema(value: str) -> dict:
    """Schema of a table's key, from the words of settings.md."""
    words = re.findall(r"`([a-z]+)`", value)
    if value.startswith(("a list of `{", "a list", "lists")):
        items = {"type": "object"} if "`{" in value else {"type": "string"}
        return {"type": "array", "items": items}
    if value.startswith("a table"):
        return {"type": "object", "additionalProperties": {"type": "string"}}
    if value == "true or false":
        return {"type": "boolean"}
    if value == "N":
        return {"type": "integer", "minimum": 1}
    if words and re.fullmatch(r"`[a-z]+`(, `[a-z]+`)*", value):
        return {"enum": words}
    return dict(OPEN) if value.startswith(("a limit", "as the flags")) else {"type": "string"}


def either(one: dict | None, other: dict) -> dict:
    """Schema that accepts both. Alternatives of several commands stand side by side."""
    if one is None or one == other:
        return other
    return {"anyOf": [*(one["anyOf"] if set(one) == {"anyOf"} else [one]), other]}


def closed(properties: dict, **more: object) -> dict:
    return {"type": "object", "additionalProperties": False, "properties": properties} | more


def table_schemas(page: str) -> dict[str, dict]:
    """The tables that are no command's. Keys of `[NAME.…]` are those of each table within it."""
    found = {}
    for heading, body in re.findall(r"^### (`\[[a-z].*?)\n(.*?)(?=^##|\Z)", page, re.M | re.S):
        table = re.match(r"`\[([a-z]+)", heading).group(1)
        top, named = {}, {}
        for row in re.findall(r"^\| (`.*) \|$", body, re.M):
            keys, value, *_, about = re.split(r" \| ", row.replace(" | | ", " |  | "))
            for key in re.findall(r"`([a-z_]+)`", keys):
                entry = cell_schema(value) | {"description": about}
                within = f"[{table}.NAME]" in heading and f"(in `[{table}]`)" not in keys
                if within:
                    named[key] = entry
                if not within or f"`[{table}]`" in heading and f"(in `[{table}.NAME]`)" not in keys:
                    top[key] = entry
        each = closed(named)
        if table == "budgets":
            # `plan = "5h=60%"` stands in the table itself.
            each = {"anyOf": [each, {"type": "string"}]}
        found[table] = closed(top, additionalProperties=each) if named else closed(top)
    return found


def schema(rows: dict[tuple[str, str, str, str], list[str]], page: str) -> str:
    """The whole schema: `rows` are the rows of the table of settings, each with its commands."""
    top: dict[str, dict] = {}
    commands: dict[str, dict] = {}
    everywhere: dict[str, dict] = {}
    for (name, value, default, about), of in sorted(rows.items()):
        key, entry = name.replace("-", "_"), flag_schema(name, value, default, about)
        top[key] = either(top.get(key), entry)
        for command in of:
            (everywhere if command == "all" else commands.setdefault(command, {}))[key] = entry
    sections = {name: closed(keys | everywhere) for name, keys in commands.items()}
    for name, table in table_schemas(page).items():
        if name in sections and table["additionalProperties"]:
            table["properties"] = sections[name]["properties"] | table["properties"]
        sections[name] = table
    for name, section in sections.items():
        top[name] = either(top.get(name), section)
    document = {
        "$schema": "http://json-schema.org/draft-07/schema#",
        "title": "outlast.toml",
        "description": "Settings of Outlast. Keys are the long flags of its commands, with _ for -.",
    } | closed(dict(sorted(top.items())))
    return json.dumps(document, indent=1) + "\n"
