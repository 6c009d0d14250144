"""Times what people type on stores of 10^4 to 10^7 entries, and prints a table for docs/benchmarks.md.

    cargo build --release -p outlast -p outlast-bench --bins --examples
    python benches/growth.py [--outlast target/release/outlast] [--sizes 10000,100000,1000000] [--dir DIR]

Each store has as many runs as a five-hundredth of its entries, every fifth entry a paid call, and one run of a tenth of all
entries more. A figure is the median of five turns in seconds, the whole process counted. `verify` and `gc` go once.
"""

import argparse
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
COMMANDS = {
    "ls": ["ls"],
    "show": ["show", "night 7"],
    "show, the long run": ["show", "big"],
    "journal, one entry of the long run": ["journal", "big", "5"],
    "spend": ["spend"],
    "spend by run": ["spend", "--by", "run"],
    "digest of a day": ["digest", "--since", "24h"],
}
ONCE = {"verify": ["verify"], "gc": ["gc"]}
TURNS = 5


def seconds(words: list[str], env: dict[str, str]) -> float:
    """Runs the command and returns how long it took. Fails with it."""
    began = time.monotonic()
    done = subprocess.run(words, env=env, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    if done.returncode != 0:
        raise SystemExit(f"{' '.join(words)} exited with {done.returncode}: {done.stderr}")
    return time.monotonic() - began


def measure(size: int, outlast: Path, filler: Path, directory: Path) -> dict[str, str]:
    store = directory / f"{size}.db"
    env = {**os.environ, "OUTLAST_STORE": str(store)}
    filling = seconds([str(filler), str(store), str(size), str(max(size // 500, 1)), str(size // 10)], env)
    held = sum(file.stat().st_size for file in directory.iterdir() if file.name.startswith(store.name))
    figures = {"entries a second when filled": f"{1.1 * size / filling:,.0f}", "bytes an entry": f"{held / size / 1.1:,.0f}"}
    for name, words in COMMANDS.items():
        took = statistics.median(seconds([str(outlast), *words], env) for _ in range(TURNS))
        figures[name] = f"{took:.3f}"
    for name, words in ONCE.items():
        figures[name] = f"{seconds([str(outlast), *words], env):.2f}"
    return figures


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--outlast", type=Path, default=ROOT / "target/release/outlast")
    parser.add_argument("--filler", type=Path, help="the example `growth` (default: beside the program)")
    parser.add_argument("--sizes", default="10000,100000,1000000", help="numbers of entries")
    parser.add_argument("--dir", type=Path, help="where the stores are made, and left (default: a temporary directory)")
    args = parser.parse_args()
    outlast = args.outlast.resolve()
    filler = (args.filler or outlast.parent / "examples" / "growth").resolve()
    directory = args.dir or Path(tempfile.mkdtemp(prefix="outlast-growth-"))
    directory.mkdir(parents=True, exist_ok=True)
    sizes = [int(size) for size in args.sizes.split(",")]
    table = {size: measure(size, outlast, filler, directory) for size in sizes}
    print("| seconds | " + " | ".join(f"{size:,} entries" for size in sizes) + " |")
    print("|---" * (len(sizes) + 1) + "|")
    for name in table[sizes[0]]:
        print(f"| {name} | " + " | ".join(table[size][name] for size in sizes) + " |")
    if args.dir is None:
        shutil.rmtree(directory)
    return 0


if __name__ == "__main__":
    sys.exit(main())
