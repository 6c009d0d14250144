"""A research agent that names its run by headers and keeps its own checkpoint.

    python agent.py --run RUN --label ATTEMPT --checkpoint FILE [--until N]

Asks one question after the other, from the one its checkpoint names to number N, or until its budget is spent.
Base URL and key come from OPENAI_BASE_URL and OPENAI_API_KEY, as for every agent. Retries are the SDK's own, and as many as
a server needs to be back: its two would be over within seconds.
Exits 0 when it has its N answers, 3 when it was refused for its budget.
"""

import argparse
import json
import os
import sys
from pathlib import Path

import openai

MODEL = "gpt-4.1"
ANSWER_TOKENS = 1000
RETRIES = 100
NOTES = "The notes so far say that the river was measured at the old bridge, twice a day, for a year. "


def begin_at(checkpoint: Path) -> int:
    return json.loads(checkpoint.read_text())["next"] if checkpoint.exists() else 1


def save(checkpoint: Path, following: int) -> None:
    beside = checkpoint.with_suffix(".part")
    beside.write_text(json.dumps({"next": following}))
    os.replace(beside, checkpoint)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--run", required=True)
    parser.add_argument("--label", required=True, help="a new label is a new attempt of the run")
    parser.add_argument("--checkpoint", type=Path, required=True)
    parser.add_argument("--until", type=int, default=10_000)
    args = parser.parse_args()

    headers = {"X-Outlast-Run": args.run, "X-Outlast-Attempt": args.label}
    client = openai.OpenAI(default_headers=headers, max_retries=RETRIES)
    for number in range(begin_at(args.checkpoint), args.until + 1):
        question = f"Question {number:05} of the research. {NOTES * 25} What follows?"
        try:
            client.chat.completions.create(
                model=MODEL, max_tokens=ANSWER_TOKENS, messages=[{"role": "user", "content": question}]
            )
        except openai.APIStatusError as error:
            if error.status_code != 402:
                raise
            print(f"request {number}: refused, {error.code}", flush=True)
            return 3
        save(args.checkpoint, number + 1)
        print(f"request {number}: answered", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
