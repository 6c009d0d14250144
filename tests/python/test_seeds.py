"""The programs of published articles, as they stand but for their import line. agent-resume's is in test_jsonl.py."""

RISKKERNEL = """
from outlast import Runtime
rt = Runtime()
rt.resume_run("run_abc123")     # same run ID
"""


def test_riskkernels_resume_acts_on_the_same_run(life):
    before = """
    import outlast
    rt = outlast.connect()
    with rt.run("run_abc123", budget=outlast.Budget(usd=5, loops=50)) as run:
        for i in range(47):
            run.loop(i)
        import os
        os.kill(os.getpid(), 9)
    """
    assert life(before).returncode == -9
    life(RISKKERNEL, ok=True)
    after = RISKKERNEL + """
view = rt.get("run_abc123")
print(view.loops, view.budget.loops.limit, view.status)
"""
    assert life(after, ok=True).stdout.startswith("47 50 ")


def test_riskkernels_resume_of_no_run_is_told(life):
    told = life(RISKKERNEL, ok=False).stderr
    assert "UnknownRun" in told and "run_abc123" in told
