#!/usr/bin/env python3
"""Makes crates/core/data/prices.json from a LiteLLM wheel.

    pip download --no-deps --dest DIR litellm
    scripts/vendor-prices.py DIR/litellm-*.whl

Writes three files to crates/core/data/: `prices.json` (integer pico-USD per token, one model a line,
sorted by name, so that a lookup can search the lines and a diff can be read), `prices.sha256` (its hash)
and `NOTICE-litellm.txt` (the wheel's licence). The same wheel always gives the same bytes.

What is left out is unknown to Outlast, and a call to an unknown model is refused under a dollar limit.
So an entry is left out when its price would be too low rather than when it is merely odd: see `skip`.
"""

import argparse
import collections
import hashlib
import json
import pathlib
import re
import sys
import zipfile
from decimal import Decimal

DATA = pathlib.Path(__file__).resolve().parent.parent / "crates" / "core" / "data"
SOURCE = "litellm/model_prices_and_context_window_backup.json"
MODES = {"chat", "responses", "completion", "embedding"}

# LiteLLM's field -> our column. Its two long cache lifetimes (1 h at Anthropic, 12 h and more at OpenAI)
# are never priced for one model together, so they share the column of the long lifetime.
COLUMNS = {
    "input_cost_per_token": "input",
    "output_cost_per_token": "output",
    "output_cost_per_reasoning_token": "reasoning",
    "cache_read_input_token_cost": "cache_read",
    "cache_creation_input_token_cost": "cache_write_5m",
    "cache_creation_input_token_cost_above_1hr": "cache_write_1h",
    "cache_creation_input_token_cost_above_12hr": "cache_write_1h",
}
FIELD = re.compile(
    "^(" + "|".join(sorted(COLUMNS, key=len, reverse=True)) + r")(?:_above_(\d+)k_tokens)?(?:_(flex|priority|batches))?$"
)
# Dearest real one so far: 600 USD per million tokens. What is listed above 1,000 was meant per thousand tokens.
HIGHEST_PICO = 10**9
ROW_ORDER = ["standard", "flex", "priority", "batch"]

# Billed beside or instead of the columns above, in ways a usage report does not let us tell apart.
UNPRICEABLE = [
    "output_cost_per_audio_token",
    "output_cost_per_image_token",
    "output_cost_per_video_token",
    "citation_cost_per_token",
    "input_cost_per_request",
]


def pico(usd):
    """USD to whole pico-USD: exact, else up. Under a millionth of a pico-dollar is float noise."""
    value = Decimal(repr(usd)) * 10**12
    whole = value.to_integral_value(rounding="ROUND_FLOOR")
    return int(whole) + (value - whole >= Decimal("1e-6"))


def rows_of(entry):
    """The price rows: `standard`, `priority`, `standard>200000` (input above that many tokens), ..."""
    rows = collections.defaultdict(dict)
    for field, usd in entry.items():
        if match := FIELD.match(field):
            base, above_k, suffix = match.groups()
            tier = {None: "standard", "batches": "batch"}.get(suffix, suffix)
            row = rows[f"{tier}>{int(above_k) * 1000}" if above_k else tier]
            row[COLUMNS[base]] = max(pico(usd), row.get(COLUMNS[base], 0))
    for band in entry.get("tiered_pricing", []):
        above = int(band["range"][0])
        row = {COLUMNS[field]: pico(usd) for field, usd in band.items() if field in COLUMNS}
        if above:
            rows[f"standard>{above}"].update(row)
        else:
            rows["standard"].update(row)
    standard = rows["standard"]
    if entry["mode"] == "embedding":
        standard.setdefault("output", 0)
    for row in rows.values():
        # Some entries list a read price, or zero, where a write price belongs; no provider writes below input.
        for column in ("cache_write_5m", "cache_write_1h"):
            if row.get(column, 0) < row.get("input", standard.get("input", 0)):
                row.pop(column, None)
    return {name: row for name, row in rows.items() if row}


def uplifts_of(entry):
    """Factors, in percent, for what a request or an endpoint can ask: `fast`, `us`, `eu`, `regional`."""
    found = collections.Counter()
    for name in ("fast", "us"):
        if factor := entry.get("provider_specific_entry", {}).get(name):
            found[name] = int(Decimal(repr(factor)) * 100)
    for name in ("eu", "us"):
        if factor := entry.get(f"regional_processing_uplift_multiplier_{name}"):
            found[name] = max(found[name], int(Decimal(repr(factor)) * 100))
    if factor := entry.get("regional_endpoint_uplift_multiplier"):
        found["regional"] = int(Decimal(repr(factor)) * 100)
    return {name: percent for name, percent in sorted(found.items()) if percent > 100}


def skip(entry, rows):
    """Why an entry is left out, or None."""
    if any(field in entry for field in UNPRICEABLE):
        return "billed by more than tokens"
    standard = rows.get("standard", {})
    if "input" not in standard or "output" not in standard:
        return "no price per token"
    if not any(price for row in rows.values() for price in row.values()):
        # Hosted models are listed at zero before their price is known; what is truly free a user can say.
        return "all zero"
    if not standard["input"] or (not standard["output"] and entry["mode"] != "embedding"):
        return "half zero"
    if any(price > HIGHEST_PICO for row in rows.values() for price in row.values()):
        return "implausible"
    return None


def line_of(entry, rows):
    out = {}
    for field in ("max_input_tokens", "max_output_tokens"):
        if isinstance(entry.get(field), int) and entry[field] > 0:
            out[field] = entry[field]
    if searches := entry.get("search_context_cost_per_query"):
        out["web_search"] = max(pico(usd) for usd in searches.values())
    if uplifts := uplifts_of(entry):
        out["uplift_percent"] = uplifts
    def order(name):
        tier, _, above = name.partition(">")
        return ROW_ORDER.index(tier), int(above or 0)
    columns = list(dict.fromkeys(COLUMNS.values()))
    out["rows"] = {name: {c: rows[name][c] for c in columns if c in rows[name]} for name in sorted(rows, key=order)}
    return out


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("wheel", type=pathlib.Path, help="litellm-VERSION-....whl")
    wheel = parser.parse_args().wheel
    version = wheel.name.split("-")[1]
    with zipfile.ZipFile(wheel) as archive:
        source = archive.read(SOURCE)
        licence = archive.read(f"litellm-{version}.dist-info/licenses/LICENSE").decode()

    models, skipped = {}, collections.Counter()
    for name, entry in json.loads(source).items():
        if entry.get("mode") not in MODES:
            skipped["other modes"] += 1
            continue
        rows = rows_of(entry)
        if reason := skip(entry, rows):
            skipped[reason] += 1
        else:
            models[name] = line_of(entry, rows)

    header = {
        "source": f"LiteLLM, {SOURCE}",
        "version": version,
        "sha256": hashlib.sha256(source).hexdigest(),
        "licence": "MIT. " + re.search(r"^Copyright .*$", licence, re.M).group() + ". See NOTICE-litellm.txt",
        "unit": "pico-USD per token; web_search: pico-USD per search",
    }
    dump = lambda value: json.dumps(value, separators=(",", ":"), ensure_ascii=False)
    # Sorted as bytes: a lookup compares bytes.
    lines = [f"{dump(name)}:{dump(models[name])}" for name in sorted(models, key=str.encode)]
    text = '{"header":' + dump(header) + ',"models":{\n' + ",\n".join(lines) + "\n}}\n"
    assert json.loads(text)["models"] == models and not any(set('"\\') & set(name) for name in models)

    DATA.mkdir(exist_ok=True)
    (DATA / "prices.json").write_text(text, encoding="utf-8")
    (DATA / "prices.sha256").write_text(hashlib.sha256(text.encode()).hexdigest() + "\n")
    notice = f"crates/core/data/prices.json is made from a file of LiteLLM {version} by scripts/vendor-prices.py.\nLiteLLM's licence:\n\n"
    (DATA / "NOTICE-litellm.txt").write_text(notice + licence, encoding="utf-8")
    print(f"{len(models)} models, {len(text)} bytes; left out: {dict(skipped)}", file=sys.stderr)


if __name__ == "__main__":
    main()
