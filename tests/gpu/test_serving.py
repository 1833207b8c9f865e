"""`tilewright serve` with the real judge on a GPU: a verdict with its reward, a refusal, and a process that dies."""

from __future__ import annotations

from pathlib import Path

import pytest

from fakes.server_process import COSINES, RIGHT, WRONG, server_process
from tilewright.client import JudgeClient, RewardFormula, Submitted

for needed in ("starlette", "uvicorn", "pydantic"):
    pytest.importorskip(needed)


def test_candidates_are_judged_on_the_gpu_over_http(tmp_path: Path) -> None:
    (tmp_path / "problems").mkdir()
    (tmp_path / "problems" / "cosines.py").write_text(COSINES.format(shape="2048, 4096"))
    told = ("--root", "problems", "--target", "cuda", "--timing", "1s", "--no-compile")
    with server_process(tmp_path, "serve", "--port", "0", *told) as (url, _):
        client = JudgeClient(url, rule=RewardFormula(formula="ratio", cap=100.0))
        texts = [RIGHT, WRONG, RIGHT + "\nimport os\nos.kill(os.getpid(), 9)\n"]
        sent = [client.submit(Submitted(problem="cosines", files={"model.py": text})) for text in texts]
        right, wrong, dead = (client.wait(ticket.id, timeout_s=600) for ticket in sent)
    assert right.accepted and right.reward is not None and right.reward > 5.0, right.told
    assert right.reward == right.told["ratio"]["eager"]["low"]
    assert (wrong.accepted, wrong.reward, wrong.told["verdict"]["reason"]) == (False, 0.0, "wrong_values")
    assert (dead.accepted, dead.told["verdict"]["reason"]) == (False, "crashed")
