"""Composed files as prompts show them: checks of signatures are left out, what may be edited stays to the letter."""

from __future__ import annotations

from tilewright.facts.candidate import Candidate, SourceFile
from tilewright.search.strategies.abridged import abridged
from tilewright.search.strategies.asking import shown
from tilewright.search.strategies.edits import edited

CHECKS = "\n".join(f"                and x{n}.shape == (4, {n}) and x{n}.dtype is torch.float32" for n in range(40))
STATES = "\n".join(f'    {{ "layer{n}.weight": ((4, 8), torch.float32, True), }},' for n in range(40))
TEXT = f"""_STATES = (  # of each case
{STATES}
)
_STATES = (
{STATES}
)


class ModelNew(Model):
    def forward(self, *args):
            if (
                isinstance(x, Tensor)
{CHECKS}
            ):
                return self._tilewright_fall_back(x)

    def _case_0(self, x):
        return fused_0.run(x)
"""


def test_checks_of_signatures_are_left_out_and_edits_still_fit() -> None:
    told = abridged(TEXT)
    assert len(told) < len(TEXT) / 2 and "[40 lines of signature checks are not shown here" in told
    assert "x7.shape" not in told and "fused_0.run(x)" in told
    candidate = Candidate(files=(SourceFile(path="model.py", text=TEXT),))
    assert shown(candidate)["files"][0].text == told and shown(candidate, whole=True)["files"][0].text == TEXT
    line = "        return fused_0.run(x)"
    reply = f"FILE: model.py\n<<<<<<< SEARCH\n{line}\n=======\n        return 2 * fused_0.run(x)\n>>>>>>> REPLACE"
    made = edited(candidate, reply).candidate
    assert made is not None and "2 * fused_0.run" in made.files[0].text and "x7.shape" in made.files[0].text


def test_what_was_not_composed_stays_whole() -> None:
    plain = TEXT.replace("_tilewright_", "_own_")
    assert abridged(plain) == plain
    short = "_tilewright_\n                and x.shape == (4,)\n"
    assert abridged(short) == short


FRAME = """class ModelNew(Model):
    def forward(self, x):
        return self._case_0(x)

    def _tilewright_differs(self, case, *tensors):
%s
        return ""

    def _tilewright_fall_back(self, reason, args, kwargs):
        return super().forward(*args, **kwargs)

    def _case_0(self, x):
%s
        return x
"""


def test_guards_are_left_out_and_of_a_long_case_its_middle() -> None:
    guard = "\n".join(f"        why_{n} = self._tilewright_structure()" for n in range(20))
    for calls, shows in ((100, True), (400, False)):
        body = "\n".join(f"        x = fused_{n}.run(x)" for n in range(calls))
        told = abridged(FRAME % (guard, body))
        assert "why_7" not in told and "lines of guards and fallback are not shown here" in told
        assert "fused_5.run" in told and f"fused_{calls - 5}.run" in told and "return self._case_0(x)" in told
        assert ("fused_70.run" in told) == shows == ("lines of calls like those above" not in told)
    broken = FRAME % (guard, "        x = = 1")
    assert abridged(broken) == broken, "what a model has broken it sees whole"


def test_a_whole_block_of_checks_goes_with_its_types_and_devices() -> None:
    checks = "\n".join(
        f"                and isinstance(x{n}, Tensor)\n                and not x{n}.is_nested\n"
        f"                and x{n}.shape == (4, {n})\n                and x{n}.is_cpu"
        for n in range(8)
    )
    told = abridged(TEXT.replace(CHECKS, checks))
    assert "x5" not in told and "[32 lines of signature checks are not shown here" in told
