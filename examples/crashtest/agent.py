"""Three questions, a note of each answer, and one line in a ledger: an agent to test with `outlast crashtest`.

    outlast crashtest --mock -- python examples/crashtest/agent.py

SOUND=1 in the environment keeps the ledger right over any death: it is written whole, beside, and renamed.
"""

import http.client
import json
import os
import urllib.parse


def ask(question: str) -> str:
    base = urllib.parse.urlsplit(os.environ["OPENAI_BASE_URL"])
    body = {"model": "gpt-4o-mini", "max_tokens": 50, "messages": [{"role": "user", "content": question}]}
    headers = {"Content-Type": "application/json", "Authorization": f"Bearer {os.environ['OPENAI_API_KEY']}"}
    connection = http.client.HTTPConnection(base.hostname, base.port, timeout=60)
    connection.request("POST", f"{base.path}/chat/completions", json.dumps(body), headers)
    return json.loads(connection.getresponse().read())["choices"][0]["message"]["content"]


def write(name: str, text: str) -> None:
    with open(f"{name}.part", "w") as part:
        part.write(text)
    os.replace(f"{name}.part", name)


lines = []
for number in (1, 2, 3):
    write(f"answer-{number}.txt", ask(f"question {number}"))
    lines.append(f"invoice {number}\n")
    if os.environ.get("SOUND"):
        write("ledger.txt", "".join(lines))
    else:
        with open("ledger.txt", "a") as ledger:
            ledger.write(lines[-1])
