"""Edits are read tolerantly, applied exactly, and refused with the reason and the nearest text."""

from __future__ import annotations

import re

import pytest

from tilewright.facts.candidate import Candidate, SourceFile
from tilewright.search.strategies.edits import edited
from tilewright.search.strategies.knobs import knobs_of, turned

MODEL = "import torch\n\n\nclass ModelNew:\n    def a(self):\n        return 1\n\n    def b(self):\n        return 1\n"
NOW = Candidate(
    files=(SourceFile(path="model.py", text=MODEL), SourceFile(path="k.cpp", text="int x = 1;\nint y = 2;\n"))
)


def text(reply: str, path: str = "model.py", start: Candidate | None = NOW) -> str:
    made = edited(start, reply)
    assert made.candidate is not None, made.problem
    return {f.path: f.text for f in made.candidate.files}[path]


def swap(old: str, new: str, head: str = "") -> str:
    return f"{head}<<<<<<< SEARCH\n{old}\n=======\n{new}\n>>>>>>> REPLACE\n"


@pytest.mark.parametrize("head", ["", "FILE: model.py\n", "### `model.py`\n", "**File: model.py**\n", "model.py:\n"])
@pytest.mark.parametrize("fence", ["{}", "```python\n{}```\n", "```diff\n{}```\nThat is all."])
def test_a_block_is_found_however_it_is_dressed(head: str, fence: str) -> None:
    old = "    def b(self):\n        return 1"
    reply = "IDEA: two\n\n" + head + fence.format(swap(old, "    def b(self):\n        return 2"))
    assert text(reply) == MODEL[: MODEL.index("    def b")] + "    def b(self):\n        return 2\n"


def test_blocks_apply_in_order_to_several_files_and_white_space_at_ends_is_nothing() -> None:
    reply = swap("int x = 1;  ", "int x = 3;", "FILE: k.cpp\n") + swap("int y = 2;", "", "FILE: k.cpp\n").replace(
        "\n", "\r\n"
    )
    assert text(reply, "k.cpp") == "int x = 3;\n"
    assert text(swap("int y = 2;", "int y = 5;"), "k.cpp") == "int x = 1;\nint y = 5;\n"  # the only place there is
    assert text(swap("import torch", "import torch\nimport math")).startswith("import torch\nimport math\n\n\nclass")


@pytest.mark.parametrize(
    ("reply", "says"),
    [
        (swap("        return 1", "        return 2", "FILE: model.py\n"), r"stands 2 times \(lines 6, 9\)"),
        (swap("    def b(self, x):", "x", "FILE: model.py\n"), r"the nearest there is:\n    def b\(self\):"),
        (swap("  def b(self):", "x", "FILE: model.py\n"), "no such SEARCH text"),  # indentation counts
        (swap("x", "y", "FILE: other.py\n"), "no file other.py; there are k.cpp, model.py"),
        (swap("", "y", "FILE: model.py\n"), "a SEARCH block is empty"),
        ("<<<<<<< SEARCH\nimport torch\n", "has no ======="),
        ("<<<<<<< SEARCH\nimport torch\n=======\nimport math\n", "no >>>>>>> REPLACE"),
        ("I would try a larger tile.", "no edit and no whole file"),
        ("", "no edit and no whole file"),
        ("```python\nprint('an example')\n```", "no edit and no whole file"),
        (swap("import torch", "import torch"), "leave every file as it was"),
        ("FILE: model.py\n```python\nimport torch\nclass ModelNew:\n", "it was cut off"),
        ("FILE: model.py\n```python\nimport torch\n```", "with a class ModelNew"),
    ],
)
def test_what_cannot_be_applied_is_explained(reply: str, says: str) -> None:
    made = edited(NOW, reply)
    assert made.candidate is None
    assert re.search(says, made.problem), made.problem


def test_one_bad_block_spoils_the_reply() -> None:
    assert edited(NOW, swap("int x = 1;", "int x = 2;") + swap("nowhere", "y")).candidate is None


@pytest.mark.parametrize(
    "reply",
    [
        "Here:\n```python\nclass ModelNew:\n    pass\n```\nDone.",
        "FILE: model.py\n```\nclass ModelNew:\n    pass\n```",
        "```python model.py\nclass ModelNew:\n    pass\n```",
        "````python\nclass ModelNew:\n    pass\n````",
        "~~~py\nclass ModelNew:\n    pass\n~~~",
    ],
)
def test_whole_files_are_taken_with_or_without_a_name(reply: str) -> None:
    assert text(reply) == "class ModelNew:\n    pass\n"
    assert text(reply, start=None) == "class ModelNew:\n    pass\n"


def test_new_files_may_come_and_none_may_lie_outside() -> None:
    reply = "FILE: model.py\n```\nclass ModelNew: ...\n```\nFILE: sub/k.cpp\n```cpp\nint z;\n```\n"
    made = edited(None, reply + "FILE: ../evil.py\n```\nx\n```\nFILE: /etc/evil.py\n```\nx\n```\n")
    assert made.candidate is not None
    assert [f.path for f in made.candidate.files] == ["model.py", "sub/k.cpp"]


def test_knobs_are_read_and_turned_and_nothing_else_changes() -> None:
    source = (
        "TILE = 64  # knob: 32, 64, 128\nother = 64\nclass ModelNew: ...\nC = '''\n"
        "constexpr int UNROLL = 4;  // knob: 4, 8\n'''\n"
        "ALONE = 1  # knob: 1\n"
    )
    candidate = Candidate(files=(SourceFile(path="model.py", text=source),))
    knobs = knobs_of(candidate)
    assert [(k.name, k.value, k.others) for k in knobs] == [("TILE", "64", ("32", "128")), ("UNROLL", "4", ("8",))]
    made = turned(candidate, knobs[1], "8")
    assert made.files[0].text == source.replace("UNROLL = 4", "UNROLL = 8")
    assert turned(candidate, knobs[0], "128").files[0].text == source.replace("TILE = 64", "TILE = 128")
