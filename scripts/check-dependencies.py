"""Holds what Outlast is compiled with to what is allowed: licences, sources, and versions that are there twice.

    python scripts/check-dependencies.py

It reads Cargo.lock and the manifests of the crates, and no network. Advisories are known by the network alone: the release
workflow asks for them.
"""

import platform
import re
import sys
from pathlib import Path

import dist_sbom

ROOT = Path(__file__).resolve().parent.parent
# Terms under which a binary may be handed out by anybody, with its licences beside it.
ALLOWED = {"0BSD", "Apache-2.0", "Apache-2.0 WITH LLVM-exception", "BSD-2-Clause", "BSD-3-Clause", "BSL-1.0", "CC0-1.0", "CDLA-Permissive-2.0", "ISC", "MIT", "MIT-0", "Unicode-3.0", "Unlicense", "Zlib"}
# Crates of which two versions are compiled, since crates of others ask for different ones. One less is a gain: take it out.
# What only the compiler of the gRPC protocol asks for (protox) is in no binary.
DOUBLED = {
    "base64", "const-oid", "fallible-iterator", "foldhash", "getrandom", "hashbrown", "logos", "logos-codegen", "logos-derive",
    "signal-hook", "syn", "unicode-width",
}


def is_allowed(expression: str) -> bool:
    """Whether one of the alternatives is allowed; where several count together, each of them has to be."""
    terms = re.split(r" AND | OR ", expression.translate({ord("("): None, ord(")"): None}))
    return (all if " AND " in expression else any)(term in ALLOWED for term in terms)


def main() -> int:
    crates = dist_sbom.crates(ROOT, f"{platform.machine()}-unknown-linux-gnu")
    others = [crate for crate in crates if not crate.is_ours]
    faults = [f"{crate.name} {crate.version} is under {crate.licence}" for crate in others if not is_allowed(crate.licence)]
    faults += [f"{crate.name} {crate.version} is not from the registry" for crate in others if not crate.checksum]
    names = [crate.name for crate in others]
    doubled = {name for name in names if names.count(name) > 1}
    faults += [f"{name} is there in two versions" for name in sorted(doubled - DOUBLED)]
    faults += [f"{name} is there in one version only: take it out of DOUBLED" for name in sorted(DOUBLED - doubled)]
    for fault in faults:
        print(f"dependencies: {fault}")
    print(f"{len(others)} crates of others, {len(doubled)} of them in two versions")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
