"""A loss of power, seen from the disk: what a step has returned is there, though no cache survives.

    make power-loss
    sudo python scripts/power-loss.py [--losses N]

The store is on a file system of its own, on a loop device. After some steps the file behind that device is copied:
it holds what the disk was given, and nothing that only the kernel's cache knows. The copy is mounted, its store
opened, and each step that had returned must be replayed from it, of both of two handles that write the store in
turns. The same is done with OUTLAST_DURABILITY=process, where steps must be missing: else this would show nothing.

Needs root, mkfs.ext4 and loop devices. The mounts are in a namespace of this process's own, and end with it.
"""

import argparse
import os
import random
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "tests" / "python"))
IMAGE_MIB = 96


def mount(image: Path, place: Path) -> None:
    place.mkdir(exist_ok=True)
    subprocess.run(["mount", "-o", "loop", image, place], check=True)


def step(run, i: int, text: str = "") -> str:
    """The i-th step of a run; in a copy it must be there."""

    def work(i: int) -> str:
        if not text:
            raise LookupError(i)
        return text

    return run.step("work", work, i)


def missing(store: Path, done: dict[str, int]) -> int:
    """How many of the runs' steps a store does not have."""
    import outlast

    lost = 0
    rt = outlast.connect(store)
    for name, steps in done.items():
        try:
            # Its holder lives, on the other disk.
            with rt.run(name, budget=outlast.Budget(usd=1), if_held="takeover") as run:
                for i in range(steps):
                    step(run, i)
        except LookupError as e:
            lost += steps - e.args[0]
    rt.close()
    return lost


def losses(place: Path, times: int, seed: int) -> list[int]:
    """Steps lost at each loss of power."""
    import outlast

    chance = random.Random(seed)
    image, copy = place / "disk", place / "copy"
    with image.open("wb") as file:
        file.truncate(IMAGE_MIB << 20)
    subprocess.run(["mkfs.ext4", "-q", image], check=True)
    mount(image, place / "on")
    handles = [outlast.connect(place / "on" / "outlast.db") for _ in range(2)]
    runs = [rt.run(f"run-{i}", budget=outlast.Budget(usd=1)).__enter__() for i, rt in enumerate(handles)]
    done = [0, 0]
    lost = []
    for _ in range(times):
        for _ in range(chance.randrange(1, 40)):
            # Mostly the same one: what follows one's own commit is synced in another way than what follows another's.
            who = int(chance.random() < 0.2)
            step(runs[who], done[who], "x" * chance.choice([1, 100, 3000, 9000]))
            done[who] += 1
        shutil.copyfile(image, copy)
        mount(copy, place / "off")
        try:
            lost.append(missing(place / "off" / "outlast.db", {f"run-{i}": n for i, n in enumerate(done)}))
        finally:
            subprocess.run(["umount", place / "off"], check=True)
    for run, rt in zip(runs, handles):
        run.__exit__(None, None, None)
        rt.close()
    subprocess.run(["umount", place / "on"], check=True)
    return lost


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--losses", type=int, default=30, help="how often the power is lost")
    parser.add_argument("--seed", type=int, default=random.randrange(1 << 32))
    args = parser.parse_args()
    if os.environ.get("OUTLAST_POWER_LOSS") != "within":
        os.environ["OUTLAST_POWER_LOSS"] = "within"
        os.execvp("unshare", ["unshare", "--mount", sys.executable, __file__, "--losses", str(args.losses), "--seed", str(args.seed)])
    from conftest import SOURCES

    sys.path.insert(0, str(SOURCES))
    print(f"seed {args.seed}")
    (ROOT / ".run").mkdir(exist_ok=True)
    failed = False
    for durability, wants_loss in (("full", False), ("process", True)):
        os.environ["OUTLAST_DURABILITY"] = durability
        with tempfile.TemporaryDirectory(dir=ROOT / ".run", prefix="power-loss-") as place:
            lost = losses(Path(place), args.losses, args.seed)
        print(f"{durability}: of {len(lost)} losses of power {sum(map(bool, lost))} lost steps, {sum(lost)} in all")
        failed |= any(lost) != wants_loss
    print("not what was to be shown" if failed else "what had returned was there")
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
