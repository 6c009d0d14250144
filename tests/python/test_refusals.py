"""Refusals of the proxy, as the clients of others read them: RiskKernel's programs, and the official SDKs."""

import json
import urllib.error
import urllib.request

import anthropic
import openai
import pytest
from google import genai
from google.genai import errors

from test_riskkernel import Server

CODE = "dollar_budget_exceeded"


@pytest.fixture
def poor(tmp_path):
    """A server whose runs have no money."""
    server = Server(tmp_path, "--default-usd", "0.0000001")
    yield server
    server.close()


def test_a_402_has_code_and_message_beside_error(poor):
    """Bug: a refused call's body had its code below `error` only.

    Consequence: RiskKernel's own `benchmark/recovery.py` exited 1 with "http 402" though its numbers were right.
    Cause: the proxy answered in the provider's shape alone, and RiskKernel's proxy answers `{"code", "message"}`.
    """
    body = json.dumps({"model": "gpt-4o", "messages": [{"role": "user", "content": "continue"}]}).encode()
    headers = {"Content-Type": "application/json", "X-RiskKernel-Run-Id": "bench-recovery"}
    request = urllib.request.Request(f"{poor.url}/v1/chat/completions", body, headers)
    with pytest.raises(urllib.error.HTTPError) as refused:
        urllib.request.urlopen(request)
    told = json.loads(refused.value.read())
    assert (refused.value.code, told["code"]) == (402, CODE)
    assert told["message"] == told["error"]["message"]


def test_the_official_sdks_still_read_a_402(poor):
    with pytest.raises(openai.APIStatusError) as error:
        openai.OpenAI(base_url=f"{poor.url}/v1", api_key="k").chat.completions.create(
            model="gpt-4o", messages=[{"role": "user", "content": "hello"}]
        )
    assert (error.value.status_code, error.value.code, error.value.type) == (402, CODE, "insufficient_quota")
    assert "would exceed the run's budget" in error.value.message

    with pytest.raises(anthropic.APIStatusError) as error:
        anthropic.Anthropic(base_url=poor.url, api_key="k").messages.create(
            model="claude-haiku-4-5", max_tokens=9, messages=[{"role": "user", "content": "hello"}]
        )
    assert (error.value.status_code, error.value.body["error"]["code"]) == (402, CODE)

    client = genai.Client(api_key="k", http_options={"base_url": poor.url})
    with pytest.raises(errors.ClientError) as error:
        client.models.generate_content(model="gemini-2.5-flash", contents="hello")
    assert (error.value.code, error.value.status) == (402, "RESOURCE_EXHAUSTED")
    assert error.value.details["error"]["details"][0]["reason"] == CODE
