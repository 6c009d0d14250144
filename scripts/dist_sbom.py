"""SBOMs of the files of `make dist`: a CycloneDX 1.6 document of each and one within them, and the licences of all dependencies.

Made from what `cargo metadata` and Cargo.lock say, so that no further program is compiled for it: a crate's checksum is
the one that Cargo held it to.
"""

import json
import subprocess
import tomllib
import uuid
from datetime import datetime, timezone
from pathlib import Path

PRODUCT = "outlast-python"
# Files of a crate that say on which terms it is given.
TERMS = ("licen", "copying", "notice", "copyright", "unlicense")


class Crate:
    """One crate that is compiled into the product."""

    def __init__(self, package: dict, needs: list[str], checksum: str | None):
        self.id, self.name, self.version = package["id"], package["name"], package["version"]
        self.licence = " ".join((package["license"] or "see its files").replace("/", " OR ").split())
        self.is_ours = package["source"] is None
        self.directory = Path(package["manifest_path"]).parent
        self.needs, self.checksum = needs, checksum

    @property
    def purl(self) -> str:
        return f"pkg:cargo/{self.name}@{self.version}"


def crates(root: Path, target: str) -> list[Crate]:
    """The crates that the product is made of on the target, those of its build included and those of tests not."""
    words = ["cargo", "metadata", "--format-version", "1", "--locked", "--filter-platform", target]
    told = json.loads(subprocess.run(words, cwd=root, check=True, stdout=subprocess.PIPE).stdout)
    packages = {package["id"]: package for package in told["packages"]}
    needs = {
        node["id"]: [d["pkg"] for d in node["deps"] if any(kind["kind"] != "dev" for kind in d["dep_kinds"])]
        for node in told["resolve"]["nodes"]
    }
    locked = tomllib.loads((root / "Cargo.lock").read_text())["package"]
    checksums = {(package["name"], package["version"]): package.get("checksum") for package in locked}
    wanted, seen = [next(id for id, package in packages.items() if package["name"] == PRODUCT)], set()
    while wanted:
        one = wanted.pop()
        if one not in seen:
            seen.add(one)
            wanted += needs[one]
    found = [Crate(packages[id], needs[id], checksums.get((packages[id]["name"], packages[id]["version"]))) for id in seen]
    return sorted(found, key=lambda crate: (crate.name, crate.version))


def licences(crates: list[Crate]) -> bytes:
    """The terms of each dependency; a text that several have is printed once."""
    texts: dict[str, list[str]] = {}
    out = ["Outlast is under the Apache License 2.0. What it is compiled with, and on which terms:\n"]
    for crate in crates:
        if crate.is_ours:
            # What is not a crate: the page's libraries, the table of prices.
            for file in sorted(crate.directory.rglob("*")):
                if file.name.startswith(("LICENSE.", "NOTICE-")):
                    texts.setdefault(file.read_text().strip(), []).append(file.name)
            continue
        out.append(f"{crate.name} {crate.version}: {crate.licence}")
        for file in sorted(crate.directory.iterdir()):
            if file.is_file() and file.name.lower().startswith(TERMS):
                texts.setdefault(file.read_text(errors="replace").strip(), []).append(f"{crate.name} {crate.version}")
    for text, of in texts.items():
        out.append(f"\n{'=' * 100}\n{', '.join(of)}\n{'=' * 100}\n\n{text}")
    return ("\n".join(out) + "\n").encode()


def debian(packages: list[tuple[str, str, str]]) -> list[dict]:
    """The components of an image that are Debian's: name, version and architecture of each."""
    return [
        {"type": "library", "bom-ref": purl, "name": name, "version": version, "purl": purl}
        for name, version, architecture in packages
        for purl in [f"pkg:deb/debian/{name}@{version.replace('+', '%2B')}?arch={architecture}"]
    ]


def component(crate: Crate) -> dict:
    about = {"type": "library", "bom-ref": crate.purl, "name": crate.name, "version": crate.version, "purl": crate.purl}
    about["licenses"] = [{"expression": crate.licence}]
    if crate.checksum:
        about["hashes"] = [{"alg": "SHA-256", "content": crate.checksum}]
    return about


def sbom(name: str, digest: str | None, crates: list[Crate], parts: list[dict], version: str, epoch: int) -> bytes:
    """The CycloneDX document of one file: its crates, with who needs whom, and its other parts. A document that lies within
    its file has no digest of it."""
    purls = {crate.id: crate.purl for crate in crates}
    product = next((crate.purl for crate in crates if crate.name == PRODUCT), None)
    top = [*([product] if product else []), *(part["bom-ref"] for part in parts)]
    about = {"type": "file" if digest else "application", "bom-ref": name, "name": name, "version": version}
    if digest:
        about["hashes"] = [{"alg": "SHA-256", "content": digest}]
    document = {
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "serialNumber": f"urn:uuid:{uuid.uuid5(uuid.NAMESPACE_URL, digest or f'{name} {version} {epoch}')}",
        "version": 1,
        "metadata": {
            "timestamp": datetime.fromtimestamp(epoch, timezone.utc).isoformat().replace("+00:00", "Z"),
            "component": about,
        },
        "components": [*map(component, crates), *parts],
        "dependencies": [
            {"ref": name, "dependsOn": top},
            *({"ref": crate.purl, "dependsOn": sorted({purls[need] for need in crate.needs})} for crate in crates),
        ],
    }
    return (json.dumps(document, indent=1) + "\n").encode()
