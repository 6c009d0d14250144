"""The JSON Schema of `outlast.toml`: it takes the settings that the documents show, and no key that the program refuses."""

import json
import re
import tomllib
from pathlib import Path

import jsonschema
import pytest

ROOT = Path(__file__).resolve().parents[2]
SCHEMA = jsonschema.Draft7Validator(json.loads((ROOT / "docs/reference/outlast.schema.json").read_text()))
SHOWN = [
    pytest.param(block, id=f"{page.stem}-{number}")
    for page in sorted((ROOT / "docs").rglob("*.md"))
    for number, block in enumerate(re.findall(r"^```toml\n(.*?)^```", page.read_text(), re.M | re.S))
]


@pytest.mark.parametrize("block", SHOWN)
def test_settings_of_the_documents_are_taken(block):
    assert [error.message for error in SCHEMA.iter_errors(tomllib.loads(block))] == []


@pytest.mark.parametrize(
    "text",
    [
        'admit_wiat = "20s"',
        "add_usd = 5",
        '[run]\ndefault_usd = 2',
        'no_progress = "perhaps"',
        '[budgets.team]\nper = "week"',
        '[upstreams.groq]\nbase_uri = "x"',
        '[notify.phone]\nheartbeat = "https://x"',
        "[serve]\nusd = { a = 1 }",
    ],
)
def test_what_the_program_refuses_by_its_name_is_refused(text):
    assert list(SCHEMA.iter_errors(tomllib.loads(text)))
