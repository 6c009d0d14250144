"""A research agent on RiskKernel's published SDK, unmodified: the address it is given is Outlast's.

    python agent.py --run-file FILE [--usd 0.25] [--until N]

Asks one question after the other until it has N answers or its budget is spent. FILE holds the id of its run: without
it a run is created, with it that run is resumed, at the question its last checkpoint names. The server's address comes
from RISKKERNEL_BASE_URL. Exits 0 when it has its N answers, 3 when its budget is spent, 4 when the server is gone.
"""

import argparse
import http.client
import os
import sys
from pathlib import Path

import openai
import riskkernel as rk

MODEL = "gpt-4.1"
ANSWER_TOKENS = 1000
NOTES = "The notes so far say that the river was measured at the old bridge, twice a day, for a year. "


def work(run: rk.Run, until: int) -> None:
    checkpoint = run.latest_checkpoint()
    begin = checkpoint["payload"]["next"] if checkpoint else 1
    if checkpoint:
        used = run.status()["usage"]
        print(f"resumed at question {begin}: {used['loops']} loops and {used['dollars']} usd are used", flush=True)
    config = run.proxy_config()
    client = openai.OpenAI(
        base_url=config["base_url"],
        default_headers=config["headers"],
        api_key=os.environ.get("RISKKERNEL_API_TOKEN", "any-key"),
        max_retries=0,
    )
    for number in range(begin, until + 1):
        run.step()
        question = f"Question {number:05} of the research. {NOTES * 25} What follows?"
        client.chat.completions.create(
            model=MODEL, max_tokens=ANSWER_TOKENS, messages=[{"role": "user", "content": question}]
        )
        run.checkpoint("answered", {"next": number + 1})
        print(f"question {number}: answered", flush=True)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--run-file", type=Path, required=True)
    parser.add_argument("--usd", type=float, default=0.25)
    parser.add_argument("--until", type=int, default=10_000)
    args = parser.parse_args()

    rt = rk.default_runtime()
    try:
        if args.run_file.exists():
            with rt.resume_run(args.run_file.read_text()) as run:
                work(run, args.until)
        else:
            budget = rt.budget(dollars=args.usd, loops=100, seconds=3600)
            # Whoever starts it again goes on with it: what ends this process is not to cancel the run.
            with rt.governed_run(name="research", budget=budget, cancel_on_error=False) as run:
                args.run_file.write_text(run.id)
                work(run, args.until)
    except rk.BudgetExceeded as error:
        print(f"stopped: {error.reason}", flush=True)
        return 3
    except openai.APIStatusError as error:
        if error.status_code != 402:
            raise
        print(f"stopped: {error.code}", flush=True)
        return 3
    except (rk.APIError, openai.APIConnectionError, OSError, http.client.HTTPException) as error:
        if getattr(error, "status", 0) != 0:
            raise
        print("the server is gone", flush=True)
        return 4
    return 0


if __name__ == "__main__":
    sys.exit(main())
