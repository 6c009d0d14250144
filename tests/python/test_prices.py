"""Prices beside another table of them: what `genai-prices` says of the same models, and where it differs."""

import json
import subprocess
from datetime import datetime, timezone

from genai_prices import Usage, calc_price
from genai_prices.data import providers

from conftest import outlast_program

#: Prices of theirs begin and end; ours are of the day they were taken.
THEN = datetime(2026, 11, 20, tzinfo=timezone.utc)
TOKENS = 1000


def ours(model):
    """Pico-dollars a token, asked and answered; `None` for a model without a price."""
    done = subprocess.run([outlast_program(), "prices", model, "--json"], capture_output=True, text=True)
    if done.returncode:
        return None
    row = json.loads(done.stdout)["rows"][0]
    return [row["input_pico_usd_per_token"], row["output_pico_usd_per_token"]]


def theirs(provider, model):
    usages = Usage(input_tokens=TOKENS), Usage(output_tokens=TOKENS)
    prices = [calc_price(u, model, provider_id=provider, genai_request_timestamp=THEN) for u in usages]
    return [int(p.total_price * 10**12 / TOKENS) for p in prices]


def test_our_prices_are_those_of_another_table_but_where_it_is_told():
    models = [(p.id, m.id) for p in providers if p.id in ("openai", "anthropic", "google") for m in p.models]
    found = {(provider, model): price for provider, model in models if (price := ours(model))}
    other = {key: (price, theirs(*key)) for key, price in found.items() if price != theirs(*key)}
    for (provider, model), (mine, their) in other.items():
        print(f"{provider} {model}: ours {mine}, genai-prices {their} (pico-usd a token, asked and answered)")
    print(f"{len(found)} of {len(models)} models are in both tables; {len(other)} differ")
    assert len(found) >= 80 and other == {}
