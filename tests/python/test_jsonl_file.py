"""The file of results of `resume_or_start`: torn, damaged, old, deleted, full."""

import json
import os
from collections import Counter

import pytest

import outlast
from outlast import JsonlStore
from jsonl_bed import DOCUMENTS, WHOLE, bed, unsynced  # noqa: F401


def test_a_torn_last_line_is_cut_and_said(bed, capfd):
    bed.life(fail_at=7)
    whole = bed.path.read_bytes()
    for torn in (b'{"job_id": "docs", "ind', b"{", b"\0\0\0\0", b'{"job_id": "docs", "index": 7, "result": {"of"'):
        bed.path.write_bytes(whole + torn)
        capfd.readouterr()
        assert bed.life(fail_at=7) == WHOLE[:7]
        assert f"a torn last line of {len(torn)} bytes is cut" in capfd.readouterr().err
        assert bed.path.read_bytes() == whole


def test_a_line_that_its_record_has_and_the_file_lost_is_appended(bed):
    bed.life(fail_at=7)
    whole = bed.lines()
    for kept in (6, 3, 0):
        bed.path.write_text("".join(json.dumps(line) + "\n" for line in whole[:kept]))
        assert bed.life(fail_at=7) == WHOLE[:7]
        assert [{**line, "at": 0} for line in bed.lines()] == [{**line, "at": 0} for line in whole]
    assert bed.calls[3] == 1


def test_a_last_line_without_its_end_is_whole(bed):
    bed.old(5)
    bed.path.write_bytes(bed.path.read_bytes()[:-1])
    assert bed.life() == WHOLE
    assert [line["index"] for line in bed.lines()] == list(range(20))
    assert set(bed.calls) == set(range(5, 20))


def test_a_line_glued_to_a_torn_one_is_read(bed, capfd):
    bed.old(5)
    lines = bed.path.read_text().splitlines()
    bed.path.write_text("\n".join([*lines[:3], '{"job_id": "docs", "index": 3, "resu' + lines[3], lines[4]]) + "\n")
    assert bed.life() == WHOLE
    assert set(bed.calls) == set(range(5, 20))
    assert "1 lines stand behind the torn beginning of another" in capfd.readouterr().err


@pytest.mark.parametrize(
    "damage", [b"garbage\n", b"\0\0\0\n", b'{"job_id": "docs"}\n', b'{"job_id": "docs", "index": -1, "result": 1}\n', b"[1]\n", b"\xff\xfe\n"]
)
def test_damage_in_the_middle_is_refused_and_nothing_is_changed(bed, damage):
    bed.old(5)
    lines = bed.path.read_bytes().splitlines(keepends=True)
    bed.path.write_bytes(b"".join([*lines[:2], damage, *lines[2:]]))
    before = bed.path.read_bytes()
    with pytest.raises(outlast.StoreError, match="line 3 of .* is damaged") as told:
        bed.start()
    assert told.value.code == "jsonl_damaged"
    assert bed.path.read_bytes() == before
    assert [p.name for p in bed.path.parent.iterdir()] == [bed.path.name], "no record is made"


def test_a_file_of_the_older_library_is_imported(bed, capfd):
    bed.old(9)
    assert bed.life(fail_at=12) == WHOLE[:12]
    assert "9 results imported" in capfd.readouterr().err
    assert bed.life() == WHOLE
    assert bed.calls == Counter({i: 2 if i == 12 else 1 for i in range(9, 20)})
    assert [line["index"] for line in bed.lines()] == list(range(20)), "no line is there twice"


def test_a_line_is_imported_once_for_the_input_it_was_of(bed):
    bed.old(5)
    bed.life(DOCUMENTS[:5])
    # Another document in its place is no reason to believe the old line of the place.
    assert bed.life([DOCUMENTS[9], *DOCUMENTS[1:5]]) == [{"of": 9}, *WHOLE[1:5]]
    assert bed.calls == Counter({9: 1})


def test_a_deleted_file_starts_the_job_over_and_keeps_its_history(bed, capfd):
    bed.life()
    bed.path.unlink()
    assert bed.life() == WHOLE
    assert set(bed.calls.values()) == {2}
    assert "20 results of before are history" in capfd.readouterr().err
    with outlast.connect(JsonlStore(bed.path).record) as rt:
        assert [rt.get(id).status for id in ("docs", "docs:2")] == ["completed", "completed"]


def test_a_full_disk_leaves_no_half_line(bed, monkeypatch):
    import errno
    import os

    results = bed.start()
    next(results)
    whole, write = bed.path.read_bytes(), os.write

    def full(file, data):
        if b'"job_id"' in data:
            write(file, data[:9])
            raise OSError(errno.ENOSPC, "No space left on device")
        return write(file, data)

    monkeypatch.setattr(os, "write", full)
    with pytest.raises(outlast.StoreError) as told:
        next(results)
    assert told.value.code == "store_full"
    monkeypatch.setattr(os, "write", write)
    assert bed.path.read_bytes() == whole
    assert bed.life() == WHOLE
    assert bed.calls[1] == 1, "its record had it"
