"""Times what people type on stores of 10^4 to 10^7 entries, and prints a table.

    make growth [ENTRIES=10000,100000,1000000]      builds what it needs
    python benches/growth.py [--outlast target/release/outlast] [--entries 10000,100000] [--dir DIR]

Each store has as many runs as a five-hundredth of its entries, every fifth entry a paid call, and one run of a tenth of all
entries more. A figure is the median of five turns in seconds, the whole process counted. `verify` and `gc` go once. What takes
longer than two minutes is ended, and told as `> 120`; a store that is not filled in half an hour ends the table. `gc` removes
every run but the newest, last of all. The page's routes are asked over a connection each.
"""

import argparse
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
COMMANDS = {
    "ls": ["ls"],
    "ls of a name": ["ls", "--name", "night 7"],
    "show": ["show", "night 7"],
    "show, the long run": ["show", "big"],
    "journal, one entry of the long run": ["journal", "big", "5"],
    "spend": ["spend"],
    "spend by run": ["spend", "--by", "run"],
    "spend of a day by model": ["spend", "--since", "24h", "--by", "model"],
    "digest of a day": ["digest", "--since", "24h"],
}
ROUTES = {
    "page: runs": "/v1/runs",
    "page: the long run": "/v1/runs/run-big/summary",
    "page: its attempts": "/v1/runs/run-big/attempts",
    "page: its entries": "/v1/runs/run-big/entries?limit=100",
    "page: spend": "/v1/spend",
}
ONCE = {"verify": ["verify"], "gc": ["gc", "--older-than", "1s"]}
TURNS, LONGEST, FILLING = 5, 120, 1800
#: Bytes that were given for an entry: a step's value has 100, and a call's request and answer, which are a fifth, 1,100.
GIVEN = (4 * 100 + 1_100) / 5


def seconds(words: list[str], env: dict[str, str], longest: float = LONGEST) -> float | None:
    """Runs the command and returns how long it took; None if that was too long. Fails with it."""
    began = time.monotonic()
    try:
        done = subprocess.run(words, env=env, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, timeout=longest)
    except subprocess.TimeoutExpired:
        return None
    if done.returncode != 0:
        raise SystemExit(f"{' '.join(words)} exited with {done.returncode}: {done.stderr}")
    return time.monotonic() - began


def median(words: list[str], env: dict[str, str]) -> str:
    took: list[float] = []
    for _ in range(TURNS):
        one = seconds(words, env)
        if one is None:
            return f"> {LONGEST}"
        took.append(one)
    return f"{statistics.median(took):.3f}"


def routes(outlast: Path, env: dict[str, str]) -> dict[str, str]:
    """Times the page's routes at a server of the store, which is ended."""
    serve = subprocess.Popen(
        [outlast, "serve", "--listen", "127.0.0.1:0"], env=env, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
    )
    try:
        place = next(word.rstrip(",") for word in serve.stderr.readline().split() if word.startswith("http://"))
        figures = {}
        for name, path in ROUTES.items():
            took = []
            for _ in range(TURNS):
                began = time.monotonic()
                urllib.request.urlopen(place + path, timeout=LONGEST).read()
                took.append(time.monotonic() - began)
            figures[name] = f"{statistics.median(took):.3f}"
        return figures
    finally:
        serve.terminate()
        serve.communicate()


def measure(size: int, outlast: Path, filler: Path, directory: Path) -> dict[str, str] | None:
    """Figures of a store of this size by what they are of; None if it could not be filled in time."""
    store = directory / f"{size}.db"
    env = {**os.environ, "OUTLAST_STORE": str(store)}
    filling = seconds([str(filler), str(store), str(size), str(max(size // 500, 1)), str(size // 10)], env, FILLING)
    if filling is None:
        return None
    held = sum(file.stat().st_size for file in directory.iterdir() if file.name in (store.name, f"{store.name}-wal"))
    figures = {
        "entries a second when filled": f"{1.1 * size / filling:,.0f}",
        f"bytes an entry, of {GIVEN:.0f} given": f"{held / size / 1.1:,.0f}",
    }
    figures |= {name: median([str(outlast), *words], env) for name, words in COMMANDS.items()}
    figures |= routes(outlast, env)
    resumed = [float(subprocess.check_output([filler, store], env=env, timeout=LONGEST)) for _ in range(TURNS)]
    figures["steps read for a resume of the long run"] = f"{statistics.median(resumed):.3f}"
    for name, words in ONCE.items():
        took = seconds([str(outlast), *words], env)
        figures[name] = f"> {LONGEST}" if took is None else f"{took:.2f}"
    return figures


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--outlast", type=Path, default=ROOT / "target/release/outlast")
    parser.add_argument("--filler", type=Path, help="the example `growth` (default: beside the program)")
    parser.add_argument("--entries", default="10000,100000,1000000", help="sizes of the stores")
    parser.add_argument("--dir", type=Path, help="where the stores are made, and left (default: a temporary directory)")
    args = parser.parse_args()
    outlast = args.outlast.resolve()
    filler = (args.filler or outlast.parent / "examples" / "growth").resolve()
    # On the disk of the checkout: a directory in memory has another speed.
    directory = args.dir or Path(tempfile.mkdtemp(prefix="growth-", dir=outlast.parent))
    directory.mkdir(parents=True, exist_ok=True)
    table: dict[int, dict[str, str]] = {}
    try:
        for size in map(int, args.entries.split(",")):
            print(f"a store of {size:,} entries", file=sys.stderr)
            figures = measure(size, outlast, filler, directory)
            if figures is None:
                print(f"it was not filled in {FILLING} s: the table ends before it", file=sys.stderr)
                break
            table[size] = figures
    finally:
        if args.dir is None:
            shutil.rmtree(directory)
    print("| seconds | " + " | ".join(f"{size:,} entries" for size in table) + " |")
    print("|---" * (len(table) + 1) + "|")
    for name in next(iter(table.values()), {}):
        print(f"| {name} | " + " | ".join(figures[name] for figures in table.values()) + " |")
    return 0


if __name__ == "__main__":
    sys.exit(main())
