"""The bodies that clients send: bounded before they are parsed, then strict, by pydantic."""

from __future__ import annotations

import json
import re
from typing import Annotated, Any, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from ...facts.errors import UserError
from ...facts.problem import Mode, Precision
from ...facts.ticket import Submission
from ...judge.build import candidate_of
from .gate import Refusal
from .keys import MOST_PRIORITY
from .roots import ProblemRoots

T = TypeVar("T", bound=BaseModel)

MOST_BATCH = 256
MOST_FILES = 64
_MOST_NESTED = 12
_STRING = re.compile(rb'"(?:[^"\\]|\\.)*+"', re.DOTALL)
_BRACKETS = re.compile(rb"[\[{\]}]")
_SAFE_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.+-]*(?:/[A-Za-z0-9_][A-Za-z0-9_.+-]*)*")


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)


class PostedProblem(_Strict):
    """The text of a problem file. It is run by the server's user, with that user's rights."""

    source: Annotated[str, Field(min_length=1)]
    name: Annotated[str, Field(pattern="^[A-Za-z_][A-Za-z0-9_]{0,59}$")] = "problem"


class PostedSubmission(_Strict):
    """A candidate for a problem: `files` maps names to texts, with a class ModelNew in `model.py`."""

    problem: Annotated[str, Field(max_length=600)] | PostedProblem
    files: Annotated[dict[str, str], Field(min_length=1, max_length=MOST_FILES)]
    mode: Mode | None = None
    precision: Precision = "reference"
    priority: Annotated[int, Field(ge=0, le=MOST_PRIORITY)] = 0
    repeat: Annotated[int, Field(ge=0, le=1_000_000)] = 0


class PostedBatch(_Strict):
    """Submissions, each of which is taken or refused by itself."""

    submissions: Annotated[list[PostedSubmission], Field(min_length=1, max_length=MOST_BATCH)]


class RewardOptions(_Strict):
    """How a verdict becomes a reward: parameters of the query."""

    formula: Literal["log_ratio", "right_log_ratio", "ratio", "right"] = "log_ratio"
    against: Literal["eager", "compile", "best"] = "eager"
    cap: Annotated[float, Field(gt=0, le=1e6, allow_inf_nan=False)] = 3.0


def posted(body: bytes, kind: type[T]) -> T:
    """The body as this kind of model. Raises Refusal for what is nested too deeply, no JSON, or anything else."""
    if _nested(body) > _MOST_NESTED:
        raise Refusal(400, "too_deep", f"the body is nested more than {_MOST_NESTED} levels deep")
    try:
        found = json.loads(body, object_pairs_hook=_once, parse_constant=_no_constant)
    except (ValueError, RecursionError) as error:
        raise Refusal(400, "malformed", f"not JSON: {str(error)[:200]}") from None
    return fitting(found, kind)


def fitting(value: object, kind: type[T], *, strict: bool = True) -> T:
    """The value as this kind of model; Refusal for what does not fit, with the first field that does not."""
    try:
        return kind.model_validate(value, strict=strict)
    except ValidationError as error:
        first = error.errors(include_input=False, include_url=False)[0]
        where = ".".join(str(part)[:60] for part in first["loc"][:6])
        raise Refusal(400, "malformed", f"{where or 'body'}: {first['msg'][:200]}") from None


def submission_of(sent: PostedSubmission, roots: ProblemRoots, *, posted_problems: bool) -> Submission:
    """The submission. Raises Refusal for an unknown problem, a problem's text where none may be sent, and for names of
    files that can be none."""
    for name in sent.files:
        if not _SAFE_NAME.fullmatch(name):
            raise Refusal(
                400, "wrong_file_name",
                f"{name[:80]!r}: files are named by paths in the candidate's folder, of letters, digits and '_.+-'",
            )  # fmt: skip
    try:
        candidate = candidate_of(sent.files)
    except UserError as error:
        raise Refusal(400, "wrong_candidate", str(error)[:400]) from None
    if isinstance(sent.problem, PostedProblem):
        if not posted_problems:
            raise Refusal(403, "no_posted_problems", "this server judges problems under its roots alone")
        if any("\ud800" <= c <= "\udfff" or c == "\0" for c in sent.problem.source):
            raise Refusal(400, "malformed", "problem.source: holds what no text file can")
        name, source, version = sent.problem.name, sent.problem.source, ""
    else:
        try:
            name, source, version = sent.problem, "", roots.version(sent.problem)
        except KeyError:
            text = f"no problem {sent.problem[:80]!r} here; GET /v1/problems lists them"
            raise Refusal(404, "unknown_problem", text) from None
    return Submission(
        problem=name, source=source, version=version, candidate=candidate, mode=sent.mode, precision=sent.precision,
        repeat=sent.repeat,
    )  # fmt: skip


def _nested(body: bytes) -> int:
    """How deep the brackets outside of strings go."""
    deepest = depth = 0
    for bracket in _BRACKETS.finditer(_STRING.sub(b"", body)):
        depth += 1 if bracket[0] in b"[{" else -1
        deepest = max(deepest, depth)
        if deepest > _MOST_NESTED:
            break
    return deepest


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ValueError("a name stands twice in an object")
    return found


def _no_constant(name: str) -> Any:
    raise ValueError(f"{name} is no JSON")
