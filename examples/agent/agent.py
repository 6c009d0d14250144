"""A support desk's agent: reads tickets, files a note on each, writes the morning's report.

    python examples/agent/agent.py [--input DIR] [--out DIR]

The notes are made by a tool-calling loop over Anthropic's API, the report by one over OpenAI's, streamed.
It is an ordinary agent: it takes its keys and base URLs from the environment as the SDKs do, keeps no
checkpoint, and knows nothing of who may be watching. Killed and started again, it begins at its beginning.
"""

import argparse
import json
import os
import sys
from pathlib import Path

import anthropic
import openai

HERE = Path(__file__).resolve().parent
TRIAGE_MODEL = "claude-sonnet-5"
REPORT_MODEL = "gpt-4.1"
ANSWER_TOKENS = 256
REPORT_TOKENS = 400
MAX_TURNS = 40

SYSTEM = (
    "You work at the support desk of a small software company. You act through tools only, one call at a "
    "time, and you never invent a fact that is not in a ticket or a note. Write plainly."
)


class Desk:
    """The tools: tickets can be read, notes read and written, nothing else."""

    def __init__(self, tickets: Path, out: Path):
        self.tickets = tickets
        self.notes = out / "notes"
        self.notes.mkdir(parents=True, exist_ok=True)

    def list_files(self) -> str:
        return names(self.tickets)

    def read_file(self, name: str) -> str:
        return read(self.tickets, name)

    def write_note(self, ticket: str, team: str, urgency: str, note: str) -> str:
        if not ticket.isdigit():
            raise ValueError(f"wanted a ticket's number, had {ticket!r}")
        text = f"ticket: {ticket}\nteam: {team}\nurgency: {urgency}\n\n{note}\n"
        write_whole(self.notes / f"{ticket}.txt", text)
        return f"filed {ticket}.txt"

    def list_notes(self) -> str:
        return names(self.notes)

    def read_note(self, name: str) -> str:
        return read(self.notes, name)

    def use(self, tool: str, arguments: dict) -> str:
        """Runs a tool; what goes wrong is told to the model, which may do better."""
        print(f"  {tool} {' '.join(str(value) for value in arguments.values())[:60]}", flush=True)
        try:
            return getattr(self, tool)(**arguments)
        except (OSError, TypeError, ValueError) as error:
            return f"error: {error}"


def names(directory: Path) -> str:
    return "\n".join(sorted(path.name for path in directory.glob("*.txt")))


def read(directory: Path, name: str) -> str:
    # A name from a model is checked against the list: it may not lead out of the directory.
    if name not in names(directory).splitlines():
        raise ValueError(f"there is no {name!r}")
    return (directory / name).read_text()


def write_whole(path: Path, text: str) -> None:
    """Writes a file that is there whole or not at all, whenever the process dies."""
    beside = path.with_name(f".{path.name}.part")
    with open(beside, "w") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    os.replace(beside, path)


def schema(**fields: str) -> dict:
    properties = {name: {"type": "string", "description": text} for name, text in fields.items()}
    return {"type": "object", "properties": properties, "required": list(fields)}


TRIAGE_TOOLS = {
    "list_files": ("Lists the tickets' files.", schema()),
    "read_file": ("Reads a ticket.", schema(name="the file's name, as listed")),
    "write_note": (
        "Files the note on a ticket; a note that is there is replaced.",
        schema(
            ticket="the ticket's number",
            team="who has to act: billing, reports, accounts, platform or product",
            urgency="now, today, this week or whenever",
            note="what happened and what to do, in at most three sentences",
        ),
    ),
}
REPORT_TOOLS = {
    "list_notes": ("Lists the notes' files.", schema()),
    "read_note": ("Reads a note.", schema(name="the file's name, as listed")),
}


def triage(desk: Desk) -> str:
    """Files the notes; returns the model's last words."""
    client = anthropic.Anthropic()
    tools = [
        {"name": name, "description": text, "input_schema": fields}
        for name, (text, fields) in TRIAGE_TOOLS.items()
    ]
    messages: list = [{"role": "user", "content": (HERE / "prompts" / "triage.txt").read_text()}]
    for _ in range(MAX_TURNS):
        answer = client.messages.create(
            model=TRIAGE_MODEL, max_tokens=ANSWER_TOKENS, system=SYSTEM, tools=tools, messages=messages
        )
        if answer.stop_reason == "max_tokens":
            raise RuntimeError(f"the answer was cut off at {answer.usage.output_tokens} tokens")
        said = [block.model_dump(exclude_none=True) for block in answer.content]
        messages.append({"role": "assistant", "content": said})
        calls = [block for block in answer.content if block.type == "tool_use"]
        if not calls:
            return "".join(block.text for block in answer.content if block.type == "text")
        results = [
            {"type": "tool_result", "tool_use_id": call.id, "content": desk.use(call.name, call.input)}
            for call in calls
        ]
        messages.append({"role": "user", "content": results})
    raise RuntimeError(f"no end after {MAX_TURNS} turns")


def report(desk: Desk) -> str:
    """Returns the report, which the model writes from the notes; streamed, as a person would watch it."""
    client = openai.OpenAI()
    tools = [
        {"type": "function", "function": {"name": name, "description": text, "parameters": fields}}
        for name, (text, fields) in REPORT_TOOLS.items()
    ]
    prompt = (HERE / "prompts" / "report.txt").read_text()
    messages: list = [{"role": "system", "content": SYSTEM}, {"role": "user", "content": prompt}]
    for _ in range(MAX_TURNS):
        text, calls = stream(client, messages, tools)
        if not calls:
            return text
        messages.append({"role": "assistant", "content": text or None, "tool_calls": calls})
        for call in calls:
            result = desk.use(call["function"]["name"], json.loads(call["function"]["arguments"] or "{}"))
            messages.append({"role": "tool", "tool_call_id": call["id"], "content": result})
    raise RuntimeError(f"no end after {MAX_TURNS} turns")


def stream(client: openai.OpenAI, messages: list, tools: list) -> tuple[str, list]:
    """One streamed answer: its text and its tool calls."""
    text, calls = "", {}
    chunks = client.chat.completions.create(
        model=REPORT_MODEL, max_tokens=REPORT_TOKENS, tools=tools, messages=messages, stream=True
    )
    reason = None
    for chunk in chunks:
        choice = chunk.choices[0]
        reason = choice.finish_reason or reason
        if choice.delta.content:
            text += choice.delta.content
            print(choice.delta.content, end="", flush=True)
        for part in choice.delta.tool_calls or []:
            call = calls.setdefault(part.index, {"id": "", "name": "", "arguments": ""})
            call["id"] += part.id or ""
            call["name"] += part.function.name or ""
            call["arguments"] += part.function.arguments or ""
    if text:
        print(flush=True)
    if reason not in ("stop", "tool_calls"):
        raise RuntimeError(f"the answer was cut off: {reason}")
    return text, [
        {"id": c["id"], "type": "function", "function": {"name": c["name"], "arguments": c["arguments"]}}
        for c in calls.values()
    ]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--input", type=Path, default=HERE / "input", help="a directory of tickets, *.txt")
    parser.add_argument("--out", type=Path, default=Path("desk"), help="where notes and report go")
    args = parser.parse_args()
    desk = Desk(args.input, args.out)
    try:
        print(triage(desk), flush=True)
        text = report(desk)
    except (anthropic.APIError, openai.APIError, RuntimeError) as error:
        print(f"agent: {error}", file=sys.stderr)
        return 1
    write_whole(args.out / "report.md", text + "\n")
    print(f"wrote {args.out / 'report.md'}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
