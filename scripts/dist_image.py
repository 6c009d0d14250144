"""The OCI image of `make dist`, written as an archive without a daemon: its layout is a few JSON files and two tars.

One layer has the C library of this machine's Debian, the other the binary. There is no shell: the image serves, or is a
place to copy the binary from.
"""

import hashlib
import io
import json
import subprocess
import tarfile
from datetime import datetime, timezone
from pathlib import Path

import deflate

PACKAGES = ("libc6",)
USER = 65532
# What of the C library a program needs that converts no character sets.
LEFT_OUT = ("gconv", "audit", "lintian", "locale")
PASSWD = f"root:x:0:0::/root:/sbin/nologin\noutlast:x:{USER}:{USER}::/var/lib/outlast:/sbin/nologin\n"
FILES = {
    "etc/passwd": PASSWD,
    "etc/group": f"root:x:0:\noutlast:x:{USER}:\n",
    "etc/nsswitch.conf": "passwd: files\ngroup: files\nhosts: files dns\n",
}
DIRECTORIES = {"etc": (0, 0o755), "tmp": (0, 0o1777), "var": (0, 0o755), "var/lib": (0, 0o755), "var/lib/outlast": (USER, 0o700)}


class Layer:
    """A tar whose bytes depend on its files alone."""

    def __init__(self, epoch: int):
        self.epoch, self.packed = epoch, io.BytesIO()
        self.tar = tarfile.open(fileobj=self.packed, mode="w", format=tarfile.GNU_FORMAT)

    def add(self, name: str, kind: bytes, mode: int, content: bytes = b"", owner: int = 0, link: str = "") -> None:
        member = tarfile.TarInfo(name)
        member.type, member.mode, member.mtime, member.linkname = kind, mode, self.epoch, link
        member.uid = member.gid = owner
        member.size = len(content)
        self.tar.addfile(member, io.BytesIO(content))

    def end(self) -> bytes:
        self.tar.close()
        return self.packed.getvalue()


def c_library(work: Path, epoch: int) -> tuple[bytes, list[tuple[str, str, str]]]:
    """The layer of Debian's packages, and what they are: name, version, architecture."""
    layer, told = Layer(epoch), []
    place = work / "image"
    place.mkdir(exist_ok=True)
    subprocess.run(["apt-get", "download", "-qq", *PACKAGES], cwd=place, check=True)
    for package in sorted(place.glob("*.deb")):
        said = subprocess.run(["dpkg-deb", "-W", "--showformat=${Package} ${Version} ${Architecture}", package], check=True, stdout=subprocess.PIPE, text=True)
        told.append(tuple(said.stdout.split()))
        subprocess.run(["dpkg-deb", "-x", package, place / "root"], check=True)
    root = place / "root"
    for path in sorted(root.rglob("*")):
        name = path.relative_to(root)
        if any(part.startswith(LEFT_OUT) for part in name.parts) or name.parts[:2] == ("usr", "bin") or name.parts[0] in ("sbin", "etc"):
            continue
        if path.is_symlink():
            layer.add(str(name), tarfile.SYMTYPE, 0o777, link=str(path.readlink()))
        elif path.is_dir():
            layer.add(str(name), tarfile.DIRTYPE, 0o755)
        else:
            layer.add(str(name), tarfile.REGTYPE, path.stat().st_mode & 0o755, path.read_bytes())
    return layer.end(), told


def program(epoch: int, binary: Path, licences: bytes) -> bytes:
    """The layer of the binary, its user and its directories."""
    layer = Layer(epoch)
    for name, (owner, mode) in DIRECTORIES.items():
        layer.add(name, tarfile.DIRTYPE, mode, owner=owner)
    for name, text in FILES.items():
        layer.add(name, tarfile.REGTYPE, 0o644, text.encode())
    layer.add("usr/bin/outlast", tarfile.REGTYPE, 0o755, binary.read_bytes())
    layer.add("usr/share/doc/outlast/licences-of-dependencies.txt", tarfile.REGTYPE, 0o644, licences)
    return layer.end()


def write(build, out: Path, binary: Path, licences: bytes, architecture: str) -> list[tuple[str, str, str]]:
    """Writes the archive; which packages of Debian are in it."""
    blobs: dict[str, bytes] = {}

    def blob(kind: str, content: bytes) -> dict:
        digest = hashlib.sha256(content).hexdigest()
        blobs[f"blobs/sha256/{digest}"] = content
        return {"mediaType": f"application/vnd.oci.image.{kind}", "digest": f"sha256:{digest}", "size": len(content)}

    library, packages = c_library(build.work, build.epoch)
    layers = [library, program(build.epoch, binary, licences)]
    created = datetime.fromtimestamp(build.epoch, timezone.utc).isoformat().replace("+00:00", "Z")
    labels = {
        "org.opencontainers.image.title": "outlast",
        "org.opencontainers.image.version": build.version,
        "org.opencontainers.image.revision": build.env["OUTLAST_BUILD_COMMIT"],
        "org.opencontainers.image.licenses": "Apache-2.0",
    }
    config = {
        "created": created,
        "architecture": architecture,
        "os": "linux",
        "config": {
            "User": f"{USER}:{USER}",
            "Env": ["PATH=/usr/bin", "HOME=/var/lib/outlast", "OUTLAST_STORE=/var/lib/outlast/outlast.db"],
            "Entrypoint": ["/usr/bin/outlast"],
            "Cmd": ["--help"],
            "WorkingDir": "/var/lib/outlast",
            "Volumes": {"/var/lib/outlast": {}},
            "ExposedPorts": {"7077/tcp": {}},
            "Labels": labels,
        },
        "rootfs": {"type": "layers", "diff_ids": [f"sha256:{hashlib.sha256(layer).hexdigest()}" for layer in layers]},
        "history": [{"created": created, "created_by": "scripts/dist_image.py"} for _ in layers],
    }
    manifest = {
        "schemaVersion": 2,
        "mediaType": "application/vnd.oci.image.manifest.v1+json",
        "config": blob("config.v1+json", as_json(config)),
        "layers": [blob("layer.v1.tar+gzip", deflate.gzip_compress(layer, 12)) for layer in layers],
    }
    described = blob("manifest.v1+json", as_json(manifest))
    described["annotations"] = {"org.opencontainers.image.ref.name": build.version, "io.containerd.image.name": f"outlast:{build.version}"}
    described["platform"] = {"architecture": architecture, "os": "linux"}
    index = {"schemaVersion": 2, "mediaType": "application/vnd.oci.image.index.v1+json", "manifests": [described]}
    archive = Layer(build.epoch)
    # Docker's classic store reads this list, and nothing of OCI's.
    blob_of = lambda described: f"blobs/sha256/{described['digest'].removeprefix('sha256:')}"
    classic = {"Config": blob_of(manifest["config"]), "RepoTags": [f"outlast:{build.version}"], "Layers": [blob_of(layer) for layer in manifest["layers"]]}
    lists = {"oci-layout": b'{"imageLayoutVersion":"1.0.0"}', "index.json": as_json(index), "manifest.json": as_json([classic])}
    contents = lists | dict(sorted(blobs.items()))
    for name, content in contents.items():
        archive.add(name, tarfile.REGTYPE, 0o644, content)
    out.write_bytes(archive.end())
    return packages


def as_json(value: object) -> bytes:
    return json.dumps(value, separators=(",", ":")).encode()
