"""Tries every file of dist/ as it is: each in an empty place without a compiler, with its store in use while it is replaced.

    make dist-test
    python scripts/dist-test.py [--dist dist] [--before DIR]

For the wheel, the tarball and the .deb the place is a Debian of its own (debootstrap), thrown away afterwards. There the file
is installed, `docs/start.md` is played by its commands, a run is begun under the version before, and while it goes on the
file is installed over it and then the one before again; each installation is killed on its way once, and the run's agent and
its supervisor are killed after it. It is resumed under the older program, shown by the newer, and the file is removed: what
was installed must be gone. A store of the oldest format that this version reads is opened by it and killed on its way, over and over.
`--before` names the files of an earlier version; for what it lacks, and without it, the same file stands in. The image is unpacked and
serves; the npm packages are installed below a prefix. Root is needed.
"""

import argparse
import importlib
import json
import os
import re
import shutil
import signal
import socket
import stat
import subprocess
import sys
import sysconfig
import tarfile
import tempfile
import time
from pathlib import Path

check_docs = importlib.import_module("check-docs")

ROOT = Path(__file__).resolve().parent.parent
TARGET = Path(os.environ.get("CARGO_TARGET_DIR", ROOT / "target")).resolve()
PACKAGES = "python3,python3-venv"
# What the wheel is to stay below: it is fetched into every environment anew.
WHEEL_LIMIT = 12_000_000
# The SDKs of the example agent: those of this interpreter.
SDKS = Path(sysconfig.get_paths()["purelib"])
DEVICES = {"null": (1, 3), "zero": (1, 5), "full": (1, 7), "random": (1, 8), "urandom": (1, 9), "tty": (5, 0)}
# Where an installation may leave something: what is the person's own, and what Debian notes of any package.
OWN = ("root", "tmp", "var/lib/dpkg", "var/log", "var/cache", "proc", "dev", "run")

# How each file is installed and removed, FILE being its name in /dist; and what the PATH has then. `/usr/local/share/man` is
# Debian's own, to which `/usr/local/man` points.
INSTALLS = {
    "wheel": (
        "*manylinux*.whl",
        "export PYTHONPATH=; python3 -m venv /opt/venv && /opt/venv/bin/pip install --quiet --no-index --disable-pip-version-check --force-reinstall FILE",
        "export PYTHONPATH=; /opt/venv/bin/pip uninstall --quiet --yes outlast && ! find /opt/venv -iname '*outlast*' | grep . && rm -r /opt/venv",
        "/opt/venv/bin",
    ),
    "tarball": (
        "outlast-*-linux.tar.gz",
        "tar -xzf FILE -C /usr/local --strip-components=1",
        "tar -tzf FILE | cut -d/ -f2- | (cd /usr/local && xargs -d '\\n' rm --) && find /usr/local -mindepth 1 -type d -empty -newer /before -not -path /usr/local/share/man -delete",
        "/usr/local/bin",
    ),
    "deb": ("outlast_*.deb", "dpkg -i FILE >/dev/null", "dpkg -P outlast >/dev/null", "/usr/bin"),
}

# A run is on its way when the program is installed anew. After the upgrade its agent is killed, after the downgrade its
# supervisor, and the run is resumed by the older program. The provider stands still meanwhile, so that the run is not through before.
IN_USE = """
rm -f paid; outlast mock --listen 127.0.0.1:7078 --latency 300ms --log paid > mock.log 2>&1 & mock=$!
until grep -q http mock.log; do sleep 0.1; done
outlast run --usd 0.25 --name used -- python examples/agent/agent.py > run.log 2>&1 & run=$!
reached() { until [ -e paid ] && [ "$(wc -l < paid)" -ge "$1" ]; do kill -0 $run || { cat run.log; exit 1; }; sleep 0.05; done; }
child() { cat /proc/$1/task/*/children; }
upgrade() ( UPGRADE )
downgrade() ( DOWNGRADE )
killed() { setsid bash -c "$(declare -f $1); $1" > /dev/null 2>&1 & sleep 0.$((RANDOM % 9 + 1)); kill -9 -$!; wait $!; }
reached 3; kill -STOP $mock
killed upgrade
upgrade && kill -9 $(child $(child $run)) || exit 1
kill -CONT $mock; reached 7; kill -STOP $mock
killed downgrade
downgrade && kill -9 $(child $run) || exit 1
kill -CONT $mock; wait $run
outlast resume used > resume.log 2>&1 || { cat run.log resume.log; exit 1; }
kill $mock
upgrade || exit 1
outlast --json show used
"""

# Each time the store is opened from the beginning of its change; what the program left when it was killed stays.
OLDER_STORE = """
outlast_runs() { python3 -c "import sqlite3, sys; print(sqlite3.connect(sys.argv[1]).execute('SELECT count(*) FROM runs').fetchone()[0])" $1; }
format() { python3 -c "import sqlite3, sys; print(sqlite3.connect(sys.argv[1]).execute('PRAGMA user_version').fetchone()[0])" $1; }
older=$(format /older.db); runs=$(outlast_runs /older.db); half=0
for wait in $(seq -f 0.%02g 0 39); do
    cp /older.db store.db; rm -f store.db-* store.db.format-*
    { outlast --store store.db ls & sleep $wait; kill -9 $!; wait $!; } > /dev/null 2>&1
    [ ! -e store.db.format-$older-unfinished ] || half=$((half + 1))
    outlast --store store.db ls > ls.log 2>&1 || { cat ls.log; exit 1; }
    [ "$(outlast_runs store.db)/$(outlast_runs store.db.format-$older)/$(format store.db.format-$older)" = $runs/$runs/$older ] || exit 1
done
echo "from format $older to $(format store.db), killed 40 times on the way, $half times within the copy: all $runs runs, and the copy is as it was"
"""


class Failed(Exception):
    """A file is not what it is to be."""


class Place:
    """A Debian of its own: the base below, and a layer of this place's that ends with it.

    Nothing of this machine can be written from within: files are copied in, the SDKs are bound read-only, the devices are
    nodes of its own. Its directories are removed by `rmdir` alone, which fails on whatever is still mounted.
    """

    def __init__(self, base: Path, dist: Path, before: Path, path: str):
        if os.readlink("/proc/self/ns/mnt") == os.readlink(f"/proc/{os.getppid()}/ns/mnt"):
            raise Failed("a place is mounted where this process's mounts are its own alone: run the script, it sees to that")
        self.layer = Path(tempfile.mkdtemp(prefix="outlast-dist-"))
        self.root = self.layer / "root"
        for name in ("root", "layer"):
            (self.layer / name).mkdir()
        mount("-t", "tmpfs", "none", self.layer / "layer")
        for name in ("upper", "work"):
            (self.layer / "layer" / name).mkdir()
        layers = f"lowerdir={base},upperdir={self.layer}/layer/upper,workdir={self.layer}/layer/work"
        mount("-t", "overlay", "overlay", "-o", layers, self.root)
        for here, there in ((dist, "dist"), (before, "before-dist"), (ROOT / "examples", "root/examples")):
            shutil.copytree(here, self.root / there)
        (self.root / "sdk").mkdir()
        mount("--bind", SDKS, self.root / "sdk")
        mount("-o", "remount,bind,ro", self.root / "sdk")
        mount("-t", "tmpfs", "none", self.root / "dev")
        for name, number in DEVICES.items():
            os.mknod(self.root / "dev" / name, 0o666 | stat.S_IFCHR, os.makedev(*number))
        (self.root / "dev" / "fd").symlink_to("/proc/self/fd")
        self.env = {
            "HOME": "/root",
            "LANG": "C.UTF-8",
            "PATH": f"{path}:/opt/bin:/usr/sbin:/usr/bin:/sbin:/bin",
            "PYTHONPATH": "/sdk",
            "PYTHONDONTWRITEBYTECODE": "1",
            "OPENAI_BASE_URL": "http://127.0.0.1:7078/v1",
            "ANTHROPIC_BASE_URL": "http://127.0.0.1:7078",
            "OPENAI_API_KEY": "any",
            "ANTHROPIC_API_KEY": "any",
        }
        shutil.copy(ROOT / "crates/outlast/tests/it/pins/store.db", self.root / "older.db")
        self.run("mkdir -p /opt/bin && ln -s /usr/bin/python3 /opt/bin/python && touch /before")

    def run(self, script: str) -> str:
        """Runs the script in the place and returns its output. Its network is its own, so that its ports are, too, and nothing is fetched; what it leaves
        running ends with it."""
        own = ["unshare", "--mount", "--net", "--pid", "--fork", "--kill-child"]
        begin = f"mount -t proc proc {self.root}/proc; exec chroot {self.root} bash -c \"$SCRIPT\""
        env = self.env | {"SCRIPT": f"python3 -c '{LOOPBACK_UP}'; cd /root; {script}"}
        done = subprocess.run([*own, "sh", "-c", begin], env=env, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        if done.returncode != 0:
            raise Failed(f"$ {script.strip()}\nexited with {done.returncode}: {done.stdout}")
        return done.stdout

    def files(self) -> set[str]:
        found = set()
        for directory, _, names in os.walk(self.root):
            within = os.path.relpath(directory, self.root)
            if not within.startswith((*OWN, "dist", "before", "sdk")):
                found |= {f"{within}/{name}" for name in names}
        return found

    def close(self) -> None:
        for mounted in (self.root / "dev", self.root / "sdk", self.root, self.layer / "layer"):
            subprocess.run(["umount", mounted], check=True)
        left = [line.split()[4] for line in Path("/proc/self/mountinfo").read_text().splitlines() if str(self.layer) in line.split()[4]]
        if left:
            raise Failed(f"still mounted, and left alone: {', '.join(left)}")
        for directory in (self.root, self.layer / "layer", self.layer):
            directory.rmdir()


# SIOCSIFFLAGS: the loopback of a new network is down, and a small Debian has no `ip`.
LOOPBACK_UP = 'import fcntl,socket,struct; fcntl.ioctl(socket.socket(), 0x8914, struct.pack("16sh14x", b"lo", 1))'


def mount(*words: object) -> None:
    subprocess.run(["mount", *(str(word) for word in words)], check=True)


def one(dist: Path, pattern: str) -> Path:
    found = sorted(file for file in dist.glob(pattern) if not file.name.endswith(".json"))
    if len(found) != 1:
        raise Failed(f"wanted one file {pattern} in {dist}, had {len(found)}")
    return found[0]


def five_minutes(place: Place) -> float:
    """Plays docs/start.md; the seconds until its first run is through."""
    told = check_docs.steps((ROOT / "docs" / "start.md").read_text())
    began = time.monotonic()
    script = "".join(f"{command}\necho; echo '{check_docs.MARK}' $? $(date +%s.%N)\n" for command, _ in told)
    started = time.time()
    said = place.run(f"{{ trap 'kill $(jobs -p) 2>/dev/null' EXIT\n{script}\n}} 2>&1")
    pieces = re.split(rf"^{check_docs.MARK} \d+ ([0-9.]+)\n", said, flags=re.M)
    first = time.monotonic() - began
    for (command, shown), output, moment in zip(told, pieces[::2], pieces[1::2]):
        line = check_docs.missing(shown, output)
        if line is not None:
            raise Failed(f"$ {command}\n  wanted: {line}\n  had: {output.strip()}")
        if command.startswith("outlast run"):
            first = min(first, float(moment) - started)
    return first


def try_in_debian(kind: str, base: Path, dist: Path, before: Path) -> str:
    pattern, install, remove, path = INSTALLS[kind]
    new = f"/dist/{one(dist, pattern).name}"
    old = f"/before-dist/{one(before, pattern).name}" if list(before.glob(pattern)) else new
    place = Place(base, dist, before, path)
    try:
        had, began = place.files(), time.monotonic()
        place.run(install.replace("FILE", old))
        installed = time.monotonic() - began
        first = installed + five_minutes(place)
        said = place.run(IN_USE.replace("UPGRADE", install.replace("FILE", new)).replace("DOWNGRADE", install.replace("FILE", old)))
        told = json.loads(said[said.index("\n{") :])
        if (told["status"], told["money"]["in_doubt_calls"] <= 2) != ("completed", True):
            raise Failed(f"the run that was upgraded is {told['status']}, with {told['money']['in_doubt_calls']} calls in doubt")
        version = place.run("outlast --version").strip()
        if not re.fullmatch(r"outlast [0-9.]+ \([0-9a-f]{10} \d{4}-\d\d-\d\d\)", version):
            raise Failed(f"wanted a version with commit and date, had {version}")
        doctor, formats = place.run("outlast doctor"), place.run(OLDER_STORE).strip()
        if kind == "wheel":
            program = re.search(r"^```python\n(.*?)^```", (ROOT / "docs" / "start.md").read_text(), re.M | re.S).group(1)
            place.run(f"cat > essay.py <<'END'\n{program}\nEND\npython essay.py && python essay.py && outlast show essay-1")
        place.run(remove.replace("FILE", new))
        left = sorted(place.files() - had)
        if left:
            raise Failed(f"the removal leaves {', '.join(left[:10])}")
        return f"{version}; first protected run {first:.1f} s after the first line; {doctor.count(chr(10))} findings of doctor; {formats}; nothing left behind"
    finally:
        place.close()


def try_image(dist: Path) -> str:
    """Unpacks the layers as a daemon would, and asks a server in them whether it lives."""
    with tempfile.TemporaryDirectory(prefix="outlast-dist-") as made:
        root = Path(made)
        # As a daemon makes it: the image's user is not root.
        root.chmod(0o755)
        with tarfile.open(one(dist, "*.oci.tar")) as archive:
            blob = lambda about: archive.extractfile(f"blobs/sha256/{about['digest'].removeprefix('sha256:')}")
            manifest = json.load(blob(json.load(archive.extractfile("index.json"))["manifests"][0]))
            config = json.load(blob(manifest["config"]))["config"]
            for layer in manifest["layers"]:
                with tarfile.open(fileobj=blob(layer)) as files:
                    files.extractall(root, numeric_owner=True, filter="fully_trusted")
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            address = f"127.0.0.1:{free.getsockname()[1]}"
        user, group = config["User"].split(":")
        # With processes and a /proc of its own, as a container has them; `chroot` is looked for before the image's PATH holds.
        (root / "proc").mkdir(exist_ok=True)
        begin = f"mount -t proc proc {root}/proc; exec {shutil.which('chroot')} --userspec={user}:{group} {root} \"$@\""
        image = ["unshare", "--mount", "--pid", "--fork", "sh", "-c", begin, "sh", *config["Entrypoint"]]
        env = dict(variable.split("=", 1) for variable in config["Env"])
        server = subprocess.Popen([*image, "serve", "--listen", address], env=env, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, start_new_session=True)
        try:
            while True:
                try:
                    with socket.create_connection(tuple(address.split(":"))) as asked:
                        asked.sendall(b"GET /readyz HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n")
                        answer = asked.recv(100).decode()
                    break
                except ConnectionRefusedError:
                    if server.poll() is not None:
                        raise Failed(f"the image's server ended: {server.stderr.read()}")
                    time.sleep(0.05)
        finally:
            # All of its session: a process that has changed its user is no longer told of its parent's death.
            os.killpg(server.pid, signal.SIGKILL)
            server.wait()
        if " 200 " not in answer:
            raise Failed(f"the image's server is not ready: {answer}")
        return subprocess.run([*image, "--version"], env=env, check=True, stdout=subprocess.PIPE, text=True).stdout.strip() + "; its server is ready"


def try_npm(dist: Path) -> str:
    """Installs the packages below a prefix without the registry, and types the command."""
    with tempfile.TemporaryDirectory(prefix="outlast-dist-") as prefix:
        packed = [str(file) for file in sorted(dist.glob("*.tgz"))]
        words = ["npm", "install", "--silent", "--offline", "--no-audit", "--no-fund", "--prefix", prefix, *packed]
        subprocess.run(words, check=True, stdin=subprocess.DEVNULL)
        commands = [*Path(prefix).glob("node_modules/.bin/outlast"), *Path(prefix).glob("node_modules/*/bin/outlast"), *Path(prefix).glob("node_modules/@*/*/bin/outlast")]
        if not commands:
            raise Failed("no package has the command")
        return subprocess.run([commands[0], "--version"], check=True, stdout=subprocess.PIPE, text=True).stdout.strip() + f" of {len(packed)} package(s)"


def try_sums(dist: Path) -> str:
    wheel = one(dist, INSTALLS["wheel"][0]).stat().st_size
    if wheel >= WHEEL_LIMIT:
        raise Failed(f"wanted a wheel of less than {WHEEL_LIMIT:,} bytes, had {wheel:,}")
    subprocess.run(["sha256sum", "--quiet", "--check", "SHA256SUMS"], cwd=dist, check=True)
    sboms = list(dist.glob("*.cdx.json"))
    for sbom in sboms:
        told = json.loads(sbom.read_text())
        refs = {part["bom-ref"] for part in told["components"]} | {told["metadata"]["component"]["bom-ref"]}
        if len(refs) != len(told["components"]) + 1 or not all(need in refs for row in told["dependencies"] for need in row["dependsOn"]):
            raise Failed(f"{sbom.name} names parts that it does not have")
    return f"SHA256SUMS agree; {len(sboms)} SBOMs name what they have; the wheel has {wheel:,} bytes"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--dist", type=Path, default=ROOT / "dist", help="the files (default: dist)")
    parser.add_argument("--before", type=Path, help="the files of the version before (default: the same files)")
    parser.add_argument("--base", type=Path, default=TARGET / "dist-test" / "base", help="a Debian made by debootstrap; made if it is not there")
    parser.add_argument("--mounted", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args()
    # What is mounted here is mounted for this process alone, and ends with it.
    if "--mounted" not in sys.argv:
        os.execvp("unshare", ["unshare", "--mount", "--propagation", "private", sys.executable, *sys.argv, "--mounted"])
    dist, base = args.dist.resolve(), args.base.resolve()
    before = args.before.resolve() if args.before else dist
    if not (base / "usr/bin/python3").exists():
        subprocess.run(["debootstrap", "--variant=minbase", f"--include={PACKAGES}", "bookworm", base], check=True, stdout=subprocess.DEVNULL)
    tries = {kind: lambda kind=kind: try_in_debian(kind, base, dist, before) for kind in INSTALLS}
    tries |= {"npm": lambda: try_npm(dist), "image": lambda: try_image(dist), "sums": lambda: try_sums(dist)}
    failed = 0
    for name, attempt in tries.items():
        try:
            print(f"{name}: {attempt()}", flush=True)
        except (Failed, OSError, subprocess.SubprocessError) as error:
            failed += 1
            print(f"{name}: FAILED: {error}", flush=True)
    print(f"\n{len(tries) - failed} passed, {failed} failed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
