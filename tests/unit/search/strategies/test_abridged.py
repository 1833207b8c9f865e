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
