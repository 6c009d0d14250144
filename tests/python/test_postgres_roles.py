"""Roles of a PostgreSQL store: one that reads and one that writes, as docs/guides/postgres.md grants them."""

import json
import os
import re
import subprocess
from pathlib import Path

import pytest

from conftest import outlast_program

POSTGRES = os.environ.get("OUTLAST_TEST_POSTGRES", "")
GUIDE = Path(__file__).parents[2] / "docs" / "guides" / "postgres.md"


def psql(sql):
    """Runs statements as the owner of the server, and gives what they return."""
    done = subprocess.run(
        ["psql", "--no-psqlrc", "--quiet", "--tuples-only", "--no-align", "--set=ON_ERROR_STOP=1", POSTGRES],
        input=sql,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def statements(heading):
    """The SQL that the guide gives under a heading."""
    part = GUIDE.read_text().split(f"## {heading}\n")[1].split("\n## ")[0]
    return "\n".join(re.findall(r"```sql\n(.*?)```", part, re.DOTALL))


@pytest.fixture
def store(tmp_path):
    """A store in a schema of its own, and the address of somebody who may only read it."""
    schema, reader = f"roles_{os.getpid()}", f"reader_{os.getpid()}"
    yield f"{POSTGRES}&schema={schema}", schema, reader
    psql(f"DROP SCHEMA IF EXISTS {schema} CASCADE")
    for role in psql(f"SELECT rolname FROM pg_roles WHERE rolname LIKE '%!_{os.getpid()}' ESCAPE '!'").split():
        psql(f"DROP OWNED BY {role}; DROP ROLE {role}")


def outlast(home, place, *arguments):
    env = {"HOME": str(home), "PATH": os.environ["PATH"], "OUTLAST_STORE": place}
    return subprocess.run([outlast_program(), *arguments], env=env, capture_output=True, text=True, timeout=120)


def test_a_role_that_may_only_read_lists_and_shows_runs(tmp_path, store):
    place, schema, reader = store
    done = outlast(tmp_path, place, "run", "--run", "nightly", "--usd", "1", "--", "true")
    assert done.returncode == 0, done.stderr
    sql = statements("A role that only reads")
    assert "outlast_reader" in sql
    psql(sql.replace("outlast_reader", reader).replace(" outlast", f" {schema}"))
    theirs = place.replace("postgres@", f"{reader}@")
    for command in (["ls"], ["show", "nightly"], ["journal", "nightly"], ["spend"]):
        told = outlast(tmp_path, theirs, *command)
        assert told.returncode == 0, (command, told.stderr)
    runs = json.loads(outlast(tmp_path, theirs, "--json", "ls").stdout)["runs"]
    assert [run["run"] for run in runs] == ["nightly"]
    # Whatever changes something is refused by the database.
    for command in (["budget", "nightly", "--add-usd", "1"], ["run", "--", "true"]):
        told = outlast(tmp_path, theirs, *command)
        assert told.returncode != 0, command
        assert "permission denied" in told.stderr, (command, told.stderr)
    shown = json.loads(outlast(tmp_path, place, "--json", "show", "nightly").stdout)
    assert shown["status"] == "completed", shown
    # The key that signs run tokens is not theirs to read.
    seen = psql(f"SET ROLE {reader}; SELECT string_agg(key, ',') FROM {schema}.meta")
    assert seen == "format"


def test_a_role_that_owns_nothing_runs_agents_beside_readers(tmp_path, store):
    place, schema, reader = store
    server = f"server_{os.getpid()}"
    theirs = place.replace("postgres@", f"{server}@")
    made = outlast(tmp_path, place, "migrate")
    assert made.returncode == 0 and "has format" in made.stdout, made.stderr
    assert outlast(tmp_path, place, "run", "--run", "first", "--", "true").returncode == 0
    for heading, name, role in [
        ("A role that writes", "outlast_server", server),
        ("A role that only reads", "outlast_reader", reader),
    ]:
        sql = statements(heading)
        assert name in sql
        psql(sql.replace(name, role).replace(" outlast", f" {schema}"))
    for command in (
        ["budgets", "set", "all", "--usd", "1", "--per", "day"],
        ["run", "--run", "nightly", "--usd", "1", "--", "true"],
        ["budget", "nightly", "--add-usd", "1"],
        ["show", "nightly"],
    ):
        told = outlast(tmp_path, theirs, *command)
        assert told.returncode == 0, (command, told.stderr)
    runs = json.loads(outlast(tmp_path, theirs, "--json", "ls").stdout)["runs"]
    assert sorted((run["run"], run["status"]) for run in runs) == [("first", "completed"), ("nightly", "completed")]
    refused = subprocess.run(
        ["psql", "--no-psqlrc", POSTGRES],
        input=f"SET ROLE {server}; DROP TABLE {schema}.runs",
        capture_output=True,
        text=True,
    )
    assert "must be owner of table runs" in refused.stderr
