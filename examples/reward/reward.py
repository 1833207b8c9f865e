"""A reward from the judge, in the shapes that verl and NeMo-Gym call; nothing is trained, and neither is imported.

    tilewright serve --root examples/problems --target cpu --timing 1s --no-compile
    python examples/reward/reward.py focal_loss REPLY.md

A model's reply holds a candidate: its last block of Python code, with a class ModelNew. What the judge could not judge
has no reward: verl's functions raise then, NeMo-Gym's mask the sample.
"""

from __future__ import annotations

import asyncio
import os
import re
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tilewright.client import JudgeClient, JudgeRefused, RewardFormula, ServedTicket, Submitted

RULE = RewardFormula(formula="right_log_ratio", against="eager", cap=3.0)
TRIES = 3  # of a candidate that the machine was at fault for
_CODE = re.compile(r"```(?:python|py)?\n(.*?)```", re.DOTALL)


@dataclass(frozen=True, slots=True, kw_only=True)
class Scored:
    """`reward` of None: the candidate could not be judged, and `why` says for what reason."""

    reward: float | None
    why: str


def judge() -> JudgeClient:
    url = os.environ.get("JUDGE_URL", "http://127.0.0.1:8765")
    return JudgeClient(url, token=os.environ.get("JUDGE_TOKEN", ""), rule=RULE)


def scored(replies: Sequence[tuple[str, str]]) -> list[Scored]:
    """The reward of each (problem, reply): all are submitted by one request, and then waited for."""
    client = judge()
    codes = [(_CODE.findall(reply) or [reply])[-1] for _, reply in replies]
    wanted = [Submitted(problem=name, files={"model.py": code}) for (name, _), code in zip(replies, codes, strict=True)]
    found = client.submit_all(wanted)
    return [_scored(client, one, ticket) for one, ticket in zip(wanted, found, strict=True)]


def _scored(client: JudgeClient, wanted: Submitted, ticket: ServedTicket | JudgeRefused) -> Scored:
    for _ in range(TRIES):
        if isinstance(ticket, JudgeRefused):
            if ticket.reason in ("wrong_candidate", "malformed"):  # no ModelNew, or no text
                return Scored(reward=0.0, why=str(ticket))
            return Scored(reward=None, why=str(ticket))
        ended = client.wait(ticket.id)
        if ended.state == "judged":
            return Scored(reward=ended.reward, why=ended.told["verdict"]["summary"])
        ticket = client.submit(wanted)  # the machine was at fault: once more
    return Scored(reward=None, why=str(ended.told.get("fault", ended.state)))


# ---- verl: custom_reward_function.path=examples/reward/reward.py


def compute_score(
    data_source: str, solution_str: str, ground_truth: str, extra_info: Mapping[str, Any] | None = None, **_: Any
) -> float:
    """`ground_truth` names the problem."""
    return compute_scores([data_source], [solution_str], [ground_truth], [extra_info])[0]


def compute_scores(
    data_sources: Sequence[str], solution_strs: Sequence[str], ground_truths: Sequence[str],
    extra_infos: Sequence[Mapping[str, Any] | None], **_: Any,
) -> list[float]:  # fmt: skip
    """The same for a batch (`reward_model.reward_manager=batch`, `custom_reward_function.name=compute_scores`)."""
    found = scored(list(zip(ground_truths, solution_strs, strict=True)))
    if lost := [one.why for one in found if one.reward is None]:
        raise RuntimeError(f"{len(lost)} of {len(found)} could not be judged: {lost[0]}")
    return [one.reward for one in found if one.reward is not None]


# ---- NeMo-Gym: the fields of a verify response, for `verify` of a SimpleResourcesServer


async def verify(problem: str, output_text: str) -> dict[str, Any]:
    """In a resources server: `return BaseVerifyResponse(**body.model_dump(), **await verify(problem, text))`."""
    (found,) = await asyncio.to_thread(scored, [(problem, output_text)])
    if found.reward is None:
        return {"reward": 0.0, "mask_sample": True, "failure_reason": found.why}
    return {"reward": found.reward}


if __name__ == "__main__":
    problem, path = sys.argv[1:3]
    sys.stdout.write(f"{scored([(problem, Path(path).read_text())])[0]}\n")
