"""Makes every file that is handed out, into dist/, by one release build.

    make dist
    python scripts/dist.py [--out dist] [--profile dist]

With `--profile demo` the same is compiled quickly and without optimisation: to try the packing, never to hand out.

- a wheel (abi3, manylinux_2_28; the `outlast` command is in it) and an sdist, by maturin
- a tarball to be unpacked below a prefix: the stripped binary, completions, man pages, the schema of `outlast.toml`
- a .deb with the same and the systemd unit
- npm tarballs: the package in typescript/, and the one of this platform with the binary
- an OCI image as an archive: the binary on the C library of this Debian, made without a daemon
- a CycloneDX SBOM of each (and one inside of the wheel, the tarball and the .deb), the licences of all dependencies (and in each file
  with the binary), and SHA256SUMS

zig stands in for the C compiler and the linker, so that the binary runs from glibc 2.28 on (2018; `pwritev2`, by which the store writes its log, is of 2.26), whatever is installed
here. Times are the commit's, and no path of this machine is in a file, so that two builds of one commit can be compared.
"""

import argparse
import base64
import copy
import gzip
import hashlib
import io
import json
import os
import platform
import shutil
import subprocess
import sys
import tarfile
import time
import tomllib
import zipfile
from pathlib import Path

import deflate
import dist_image
import dist_sbom

ROOT = Path(__file__).resolve().parent.parent
PACKAGING = ROOT / "packaging"
SCHEMA = ROOT / "docs" / "reference" / "outlast.schema.json"
TARGET = Path(os.environ.get("CARGO_TARGET_DIR", ROOT / "target")).resolve()
# The tools of requirements-dist.txt stand beside this interpreter.
TOOLS = Path(sys.executable).parent
GLIBC = "2.28"
MACHINE = platform.machine()
# The machine's name in the words of Debian, npm and OCI.
# libdeflate's highest level.
SMALLEST = 12
WORDS = {"x86_64": ("amd64", "x64", "amd64"), "aarch64": ("arm64", "arm64", "arm64")}
COMPLETIONS = {
    "bash": "share/bash-completion/completions/outlast",
    "zsh": "share/zsh/site-functions/_outlast",
    "fish": "share/fish/vendor_completions.d/outlast.fish",
}


def run(*words: object, **options) -> str:
    """Runs a command and returns its output. Fails with it."""
    return subprocess.run([str(word) for word in words], check=True, stdout=subprocess.PIPE, text=True, **options).stdout


def git(*words: str) -> str:
    return run("git", "-C", ROOT, *words).strip()


def version() -> str:
    return tomllib.loads((ROOT / "Cargo.toml").read_text())["workspace"]["package"]["version"]


class Build:
    """One commit on its way into files: how it is compiled, and what its files say of time."""

    def __init__(self, work: Path, profile: str):
        self.work, self.profile = work, profile
        self.version = version()
        self.epoch = int(git("show", "-s", "--format=%ct", "HEAD"))
        self.target = f"{MACHINE}-unknown-linux-gnu"
        self.made = TARGET / self.target / profile
        self.env = self.environment()

    def environment(self) -> dict[str, str]:
        """The environment of both builds: what differs between them would compile the shared crates twice."""
        cargo_home = os.environ.get("CARGO_HOME", str(Path.home() / ".cargo"))
        name = self.target.replace("-", "_")
        maps = {str(TARGET): "/target", str(ROOT): "/outlast", cargo_home: "/cargo"}
        tools = {tool: self.zig(tool) for tool in ("cc", "c++", "ar")}
        return {key: value for key, value in os.environ.items() if not key.startswith(("RUSTC_WORKSPACE", "CARGO_PROFILE"))} | {
            "PATH": f"{TOOLS}:{os.environ['PATH']}",
            "SOURCE_DATE_EPOCH": str(self.epoch),
            "OUTLAST_BUILD_COMMIT": git("rev-parse", "HEAD"),
            "OUTLAST_BUILD_DATE": git("show", "-s", "--format=%cs", "HEAD"),
            "CARGO_TARGET_DIR": str(TARGET),
            "CARGO_INCREMENTAL": "0",
            "RUSTFLAGS": " ".join(f"--remap-path-prefix={here}={there}" for here, there in maps.items()),
            f"CFLAGS_{name}": " ".join(f"-ffile-prefix-map={here}={there}" for here, there in maps.items()),
            f"CC_{name}": str(tools["cc"]),
            f"CXX_{name}": str(tools["c++"]),
            f"AR_{name}": str(tools["ar"]),
            f"CARGO_TARGET_{name.upper()}_LINKER": str(tools["cc"]),
        }

    def zig(self, tool: str) -> Path:
        """A script that stands in for the tool. cargo-zigbuild leaves out the words of rustc that zig does not take."""
        script = self.work / "zig" / tool
        target = "" if tool == "ar" else f" -target {MACHINE}-linux-gnu.{GLIBC}"
        script.parent.mkdir(parents=True, exist_ok=True)
        script.write_text(f'#!/bin/sh\nexec "{TOOLS}/cargo-zigbuild" zig {tool} --{target} "$@"\n')
        script.chmod(0o755)
        return script

    def compile(self, sbom: Path) -> Path:
        """Compiles the extension into a wheel, which carries the SBOM, then the binary out of the same crates; the binary."""
        how = ["--profile", self.profile, "--locked", "--target", self.target]
        package = ["--manifest-path", ROOT / "crates/python/Cargo.toml", "--out", self.work]
        self.tool("maturin", "build", *how, *package, "--compatibility", "manylinux_2_28", "--sbom-include", sbom)
        self.tool("maturin", "sdist", *package)
        # The last crate of a link says how all of it is optimised together: that of the wheel is small, and this one is compiled for size.
        self.tool("cargo", "rustc", *how, "--package", "outlast", "--bin", "outlast", "--", "-Copt-level=2")
        binary = self.work / "outlast"
        self.tool("strip", "-o", binary, self.made / "outlast")
        return binary

    def tool(self, *words: object) -> None:
        subprocess.run([str(word) for word in words], check=True, cwd=ROOT, env=self.env)

    def archive(self, out: Path, entries: dict[str, bytes | Path]) -> None:
        """Writes a gzipped tar of the files whose bytes depend on nothing but them."""
        packed = io.BytesIO()
        with tarfile.open(fileobj=packed, mode="w", format=tarfile.GNU_FORMAT) as tar:
            for name, content in sorted(entries.items()):
                member = tarfile.TarInfo(name)
                member.mtime, member.mode = self.epoch, 0o755 if "/bin/" in f"/{name}" else 0o644
                data = content if isinstance(content, bytes) else content.read_bytes()
                member.size = len(data)
                tar.addfile(member, io.BytesIO(data))
        out.write_bytes(deflate.gzip_compress(packed.getvalue(), SMALLEST))


class Deflater:
    """Compressor for `zipfile`: libdeflate, which needs a thirtieth less space than zlib at its best."""

    def __init__(self, *_: object):
        self.data = b""

    def compress(self, data: bytes) -> bytes:
        self.data += data
        return b""

    def flush(self) -> bytes:
        return deflate.deflate_compress(self.data, SMALLEST)


def squeeze(wheel: Path, out: Path, licences: dict[str, bytes]) -> None:
    """Packs the wheel's files anew, each as it was, in less space; with the licences, which the wheel's list names."""
    zipfile._get_compressor = Deflater
    with zipfile.ZipFile(wheel) as made, zipfile.ZipFile(out / wheel.name, "w") as packed:
        record = next(file for file in made.infolist() if file.filename.endswith(".dist-info/RECORD"))
        listed = made.read(record)
        for name, text in licences.items():
            file = copy.copy(record)
            file.filename = f"{record.filename.removesuffix('RECORD')}licenses/{name}"
            digest = base64.urlsafe_b64encode(hashlib.sha256(text).digest()).decode().rstrip("=")
            listed = f"{file.filename},sha256={digest},{len(text)}\n".encode() + listed
            packed.writestr(file, text)
        for file in made.infolist():
            packed.writestr(file, listed if file is record else made.read(file))


def tree(build: Build, binary: Path, sbom: Path, licences: bytes) -> dict[str, bytes | Path]:
    """The files of an installation, by their paths below its prefix."""
    manual = build.work / "man"
    shutil.rmtree(manual, ignore_errors=True)
    run(binary, "man", manual)
    files: dict[str, bytes | Path] = {f"share/man/man1/{page.name}": page for page in manual.iterdir()}
    files |= {path: run(binary, "completions", shell).encode() for shell, path in COMPLETIONS.items()}
    return files | {
        "bin/outlast": binary,
        "share/outlast/outlast.schema.json": SCHEMA,
        "share/doc/outlast/README.md": ROOT / "README.md",
        "share/doc/outlast/CHANGELOG.md": ROOT / "CHANGELOG.md",
        "share/doc/outlast/LICENSE": ROOT / "LICENSE",
        "share/doc/outlast/licences-of-dependencies.txt": licences,
        "share/doc/outlast/outlast.cdx.json": sbom,
    }


def tarball(build: Build, out: Path, files: dict[str, bytes | Path]) -> None:
    name = f"outlast-{build.version}-{MACHINE}-linux"
    build.archive(out / f"{name}.tar.gz", {f"{name}/{path}": content for path, content in files.items()})


def deb(build: Build, out: Path, files: dict[str, bytes | Path]) -> None:
    """A .deb by dpkg-deb: below /usr what the tarball has, with Debian's places and the unit."""
    root = build.work / "deb"
    shutil.rmtree(root, ignore_errors=True)
    moved = {"share/zsh/site-functions/_outlast": "share/zsh/vendor-completions/_outlast", "share/doc/outlast/LICENSE": "share/doc/outlast/copyright"}
    unit = {"lib/systemd/user/outlast.service": PACKAGING / "outlast.service"}
    for path, content in (files | unit).items():
        data = content if isinstance(content, bytes) else content.read_bytes()
        path = moved.get(path, path)
        if "/man/" in path:
            path, data = f"{path}.gz", gzip.compress(data, mtime=0)
        file = root / "usr" / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(data)
        file.chmod(0o755 if path == "bin/outlast" else 0o644)
    size = sum(file.stat().st_size for file in root.rglob("*") if file.is_file()) // 1024
    control = (PACKAGING / "control").read_text().format(version=build.version, architecture=WORDS[MACHINE][0], glibc=GLIBC, size=size)
    (root / "DEBIAN").mkdir()
    (root / "DEBIAN" / "control").write_text(control)
    for directory in [root, *(path for path in root.rglob("*") if path.is_dir())]:
        directory.chmod(0o755)
    build.tool("dpkg-deb", "--root-owner-group", "-Zxz", "--build", root, out / f"outlast_{build.version}_{WORDS[MACHINE][0]}.deb")


def npm(build: Build, out: Path, binary: Path, licences: bytes) -> None:
    """The package in typescript/ as npm packs it, and the package of this platform that it names, with the binary."""
    source = ROOT / "typescript" / "package.json"
    package = json.loads(source.read_text()) if source.exists() else {}
    suffix = f"linux-{WORDS[MACHINE][1]}"
    named = [name for name in package.get("optionalDependencies", {}) if name.endswith(suffix)]
    about = {
        "name": named[0] if named else f"outlast-{suffix}",
        "version": build.version,
        "description": f"The outlast command for {suffix}.",
        "license": "Apache-2.0",
        "os": ["linux"],
        "cpu": [WORDS[MACHINE][1]],
        "libc": ["glibc"],
        "files": ["bin"],
    }
    text = (json.dumps(about, indent=2) + "\n").encode()
    files = {"package/package.json": text, "package/LICENSE": ROOT / "LICENSE", "package/bin/outlast": binary}
    files["package/licences-of-dependencies.txt"] = licences
    build.archive(out / f"{about['name'].replace('@', '').replace('/', '-')}-{build.version}.tgz", files)
    if package:
        if "build" in package.get("scripts", {}):
            subprocess.run(["npm", "run", "--silent", "build"], check=True, cwd=source.parent, env=build.env)
        subprocess.run(["npm", "pack", "--silent", "--pack-destination", str(out)], check=True, cwd=source.parent, env=build.env, stdout=subprocess.DEVNULL)


def sums(out: Path) -> None:
    lines = [f"{hashlib.sha256(file.read_bytes()).hexdigest()}  {file.name}\n" for file in sorted(out.iterdir())]
    (out / "SHA256SUMS").write_text("".join(lines))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=ROOT / "dist", help="the directory, made anew (default: dist)")
    parser.add_argument("--profile", default="dist", help="Cargo's profile (default: dist)")
    args = parser.parse_args()
    out, began = args.out.resolve(), time.monotonic()
    if MACHINE not in WORDS:
        raise SystemExit(f"dist: wanted a machine of {', '.join(WORDS)}, had {MACHINE}")
    if git("status", "--porcelain", "--untracked-files=no"):
        print("dist: the checkout has changes that no commit has; the files say the commit without them", file=sys.stderr)
    work = TARGET / "dist-files"
    shutil.rmtree(work, ignore_errors=True)
    shutil.rmtree(out, ignore_errors=True)
    out.mkdir(parents=True)
    build = Build(work, args.profile)
    crates = dist_sbom.crates(ROOT, build.target)
    sbom = work / "outlast.cdx.json"
    sbom.write_bytes(dist_sbom.sbom("outlast", None, crates, [], build.version, build.epoch))
    binary = build.compile(sbom)
    for file in work.glob("*.tar.gz"):
        shutil.move(file, out / file.name)
    licences = dist_sbom.licences(crates)
    for file in work.glob("*.whl"):
        squeeze(file, out, {"LICENSE": (ROOT / "LICENSE").read_bytes(), "licences-of-dependencies.txt": licences})
    files = tree(build, binary, sbom, licences)
    tarball(build, out, files)
    deb(build, out, files)
    npm(build, out, binary, licences)
    debian = dist_image.write(build, out / f"outlast-{build.version}-{MACHINE}.oci.tar", binary, licences, WORDS[MACHINE][2])
    (out / "licences-of-dependencies.txt").write_bytes(licences)
    for file in sorted(out.iterdir()):
        if file.suffix != ".txt":
            parts = dist_sbom.debian(debian) if file.suffixes[-2:] == [".oci", ".tar"] else []
            digest = hashlib.sha256(file.read_bytes()).hexdigest()
            (out / f"{file.name}.cdx.json").write_bytes(dist_sbom.sbom(file.name, digest, crates, parts, build.version, build.epoch))
    sums(out)
    for file in sorted(out.iterdir()):
        print(f"{file.stat().st_size:>12,}  {file.name}")
    print(f"dist: {len(list(out.iterdir()))} files in {out} ({time.monotonic() - began:.0f} s)")
    return 0


if __name__ == "__main__":
    sys.exit(main())
