"""A batch of calls where the provider says no now and then: Outlast's `amap` beside what people write without it.

    python benches/peers/refusals.py [--turns 3] [--items 800] [SCENE…]     with what is installed here, and $OUTLAST_BIN

Each measurement is a batch of its own against an `outlast mock` of its own (40 ms an answer, `retry-after: 1` on a refusal),
16 calls at once, on a fresh store on the disk of --dir. Peers: the plain SDK with max_retries=20, tenacity around it, LiteLLM's
batch_completion. Peers take turns; a figure is the median of --turns, with its ratio to the plain SDK. Each batch has to
end with every item answered: a measurement with a failed item is told with what failed, and counts.
"""

from __future__ import annotations

import argparse
import asyncio
import importlib
import os
import statistics
import subprocess
import sys
import tempfile
import time
from typing import Any, Awaitable, Callable

#: Arguments of the mock, and the number of processes that share its quota (and for Outlast the store).
SCENES: dict[str, tuple[list[str], int]] = {
    "0 %": ([], 1),
    "1 %": (["--fail", "429:0.01"], 1),
    "3 %": (["--fail", "429:0.03"], 1),
    "10 %": (["--fail", "429:0.1"], 1),
    "full quota": (["--rate-limit", "100/s,100"], 1),
    "3 %, two processes": (["--fail", "429:0.03"], 2),
    "full quota, two processes": (["--rate-limit", "100/s,100"], 2),
}
AT_ONCE, TRIES = 16, 20


# --- one process of a batch


def question(item: str) -> dict[str, Any]:
    return {"model": "gpt-4o-mini", "max_tokens": 20, "messages": [{"role": "user", "content": item}]}


async def each(items: list[str], ask: Callable[[str], Awaitable[object]]) -> int:
    """The number of `items` that `ask` failed on, AT_ONCE at a time."""
    gate = asyncio.Semaphore(AT_ONCE)

    async def one(item: str) -> None:
        async with gate:
            await ask(item)

    ends = await asyncio.gather(*map(one, items), return_exceptions=True)
    return count_failures(ends)


def count_failures(ends: list[Any]) -> int:
    failures = [end for end in ends if isinstance(end, BaseException)]
    if failures:
        print(f"    {failures[0]!r}"[:300], file=sys.stderr)
    return len(failures)


async def plain(items: list[str], _job: str) -> int:
    import openai

    client = openai.AsyncOpenAI(max_retries=TRIES)
    return await each(items, lambda item: client.chat.completions.create(**question(item)))


async def tenacity(items: list[str], _job: str) -> int:
    import openai
    import tenacity as library

    client = openai.AsyncOpenAI(max_retries=0)

    @library.retry(
        retry=library.retry_if_exception_type(openai.RateLimitError),
        wait=library.wait_random_exponential(min=1, max=20),
        stop=library.stop_after_attempt(TRIES),
    )
    async def ask(item: str) -> object:
        return await client.chat.completions.create(**question(item))

    return await each(items, ask)


async def litellm(items: list[str], _job: str) -> int:
    import litellm as library

    library.suppress_debug_info = True
    ends = await asyncio.to_thread(
        library.batch_completion,
        model="openai/gpt-4o-mini",
        messages=[question(item)["messages"] for item in items],
        max_tokens=20,
        max_workers=AT_ONCE,
        num_retries=TRIES,
        api_base=os.environ["OPENAI_BASE_URL"],
    )
    return count_failures(ends)


async def outlast(items: list[str], job: str) -> int:
    import openai

    import outlast as library

    client = openai.AsyncOpenAI(**library.openai(aio=True))

    async def ask(item: str) -> str | None:
        return (await client.chat.completions.create(**question(item))).choices[0].message.content

    batch = await library.amap(
        items,
        ask,
        job=job,
        key=str,
        concurrency=AT_ONCE,
        retries=library.Retry(TRIES),
        budget=library.Budget(usd=100),
    )
    return batch.stats.failed


#: What it imports beside the SDK, before its time begins; and the batch.
PEERS: dict[str, tuple[str, Callable[[list[str], str], Awaitable[int]]]] = {
    "plain SDK": ("openai", plain),
    "tenacity": ("tenacity", tenacity),
    "LiteLLM": ("litellm", litellm),
    "outlast": ("outlast", outlast),
}


async def part(peer: str, items: int, number: str) -> None:
    """Runs one process's part of a batch, and prints its seconds and its failed items."""
    library, batch = PEERS[peer]
    for module in ("openai", library):
        importlib.import_module(module)
    started = time.monotonic()
    failed = await batch([f"{number}/{item}" for item in range(items)], f"job-{number}")
    print(f"{time.monotonic() - started:.3f} {failed}")


# --- the table


def measure(peer: str, scene: str, items: int, seed: int, directory: str | None) -> float:
    """Seconds that a batch took, by its slowest process."""
    options, processes = SCENES[scene]
    program = os.environ.get("OUTLAST_BIN", "outlast")
    with tempfile.TemporaryDirectory(dir=directory) as home:
        env = os.environ | {"HOME": home, "OPENAI_API_KEY": "any", "OUTLAST_STORE": f"{home}/runs.db"}
        # Its own table, which it would fetch.
        env["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"
        mock = [program, "mock", "--listen", "127.0.0.1:0", "--latency", "40ms", "--seed", str(seed), *options]
        with subprocess.Popen(mock, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=env) as provider:
            assert provider.stdout
            address = next(word for line in provider.stdout for word in line.split() if word.startswith("http://"))
            env["OPENAI_BASE_URL"] = address.rstrip("/.").removesuffix("/v1") + "/v1"
            command = [sys.executable, __file__, "--part", peer, "--items", str(items // processes)]
            parts = [
                subprocess.Popen([*command, f"--number={number}"], env=env, stdout=subprocess.PIPE, text=True)
                for number in range(processes)
            ]
            ends = [process.communicate()[0].split() for process in parts]
            provider.kill()
    failed = sum(int(end[-1]) for end in ends)
    if failed:
        print(f"    {peer}, {scene}: {failed} of {items} items failed", file=sys.stderr)
    return max(float(end[-2]) for end in ends)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("scene", nargs="*", default=list(SCENES), help=f"of {', '.join(SCENES)}; default all")
    parser.add_argument("--items", type=int, default=800, help="items of a batch")
    parser.add_argument("--turns", type=int, default=3, help="measurements of each figure")
    parser.add_argument("--dir", help="where stores are made; default the system's place for temporary files")
    parser.add_argument("--part", choices=PEERS, help=argparse.SUPPRESS)
    parser.add_argument("--number", default="0", help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.part:
        asyncio.run(part(asked.part, asked.items, asked.number))
        return
    print(f"| {asked.items} items, {AT_ONCE} at once | " + " | ".join(PEERS) + " |")
    print("|---|" + "---|" * len(PEERS))
    for scene in asked.scene:
        seconds: dict[str, list[float]] = {peer: [] for peer in PEERS}
        for turn in range(asked.turns):
            for peer in PEERS:
                seconds[peer].append(measure(peer, scene, asked.items, 7 + turn, asked.dir))
        medians = {peer: statistics.median(of) for peer, of in seconds.items()}
        bare = medians["plain SDK"]
        cells = [f"{median:.2f} s, {median / bare:.2f} x" for median in medians.values()]
        print(f"| {scene} | " + " | ".join(cells) + " |", flush=True)


if __name__ == "__main__":
    main()
