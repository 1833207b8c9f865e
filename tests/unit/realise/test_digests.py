"""Digests of what makes kernels: what changes a kernel changes them, what says something of it does not."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from types import SimpleNamespace
from typing import Any

import pytest

from tilewright.facts.version import VERSION
from tilewright.realise import digests
from tilewright.realise.digests import meaning, skeleton_digests
from tilewright.realise.gemm import renderer as gemm
from tilewright.realise.table import REALISERS
from tilewright.search.tune.memory import SHIPPED

PYTHON = '''"""A kernel."""

def body(x):
    """What it does."""
    name = "kept"
    if x:
        return 2 * x  # twice
    return name
'''
CPP = """// A kernel.
inline float body(float x) {  /* twice,
as it says */ return 2 * x;
}
"""


def test_words_do_not_count_and_code_does() -> None:
    told = PYTHON.replace("A kernel.", "Another.").replace("  # twice", "\n\n").replace("What it does.", "Tells.")
    assert meaning("a.py", told) == meaning("a.py", PYTHON) != meaning("a.py", PYTHON.replace("2 *", "3 *"))
    assert meaning("a.py", PYTHON.replace('"kept"', '"other"')) != meaning("a.py", PYTHON)
    outside = PYTHON.replace("    return name", "return name")
    assert meaning("a.py", outside) != meaning("a.py", PYTHON), "where a block ends counts"
    told = CPP.replace("as it says", "or so").replace("// A kernel.\n", "").replace("}", "\n}")
    assert meaning("a.h", told) == meaning("a.h", CPP) != meaning("a.h", CPP.replace("2 *", "3 *"))


def test_the_same_is_said_under_every_python() -> None:
    """Newer ones put fields into a syntax tree that older ones have not: what is empty says nothing."""
    assert meaning("a.py", "def f(x): return x") == (
        "('Module', ('body', [('FunctionDef', ('name', 'f'), "
        "('args', ('arguments', ('args', [('arg', ('arg', 'x'))]))), "
        "('body', [('Return', ('value', ('Name', ('id', 'x'), ('ctx', ('Load',)))))]))]))"
    )


def under(realiser: Any, *, digest: str) -> SimpleNamespace:
    """A realiser of the same skeletons, whose winners are kept under another name."""
    return SimpleNamespace(
        target=realiser.target, digest=digest, writers=realiser.writers, skeleton_files=realiser.skeleton_files
    )  # fmt: skip


def test_each_target_has_its_own_and_products_of_matrices_theirs(monkeypatch: pytest.MonkeyPatch) -> None:
    cuda, cpu = dict(skeleton_digests("cuda")), dict(skeleton_digests("cpu"))
    assert cuda.keys() >= {"kernels", "products"} and "kernels" in cpu
    assert len({*cuda.values(), *cpu.values()}) == len(cuda) + len(cpu)
    more = under(gemm, digest="attentions")
    monkeypatch.setattr(digests, "REALISERS", (*REALISERS, more))
    grown = dict(skeleton_digests.__wrapped__("cuda"))
    assert grown.keys() - cuda.keys() == {"attentions"} and grown.items() >= cuda.items(), "winners stay valid"
    monkeypatch.undo()
    read: list[str] = []
    monkeypatch.setattr(digests, "meaning", lambda name, text: read.append(name) or "")
    skeleton_digests.__wrapped__("cuda")
    assert {"cta.py", "team.py", "ops.py", "text.py"} <= set(read) and not {"cache.py", "demand.py"} & set(read)
    counts = read.count("cta.py"), read.count("streamed.py"), read.count("window.py")
    why = "products, recurrent layers and attention's gradients take others' files too, convolutions products'"
    assert counts == (8, 6, 4), why


def test_winners_that_are_shipped_are_of_these_skeletons() -> None:
    """Else every first run tunes for minutes. Where machine code is the same, `benchmarks/restamped.py` takes winners
    over; else they are tuned anew."""
    with closing(sqlite3.connect(f"{SHIPPED.absolute().as_uri()}?immutable=1", uri=True)) as file:
        made_by = {text for (text,) in file.execute("SELECT DISTINCT tilewright FROM winners")}
    digests = dict(skeleton_digests("cuda"))
    for name in ("convolutions", "convolution weights", "depthwise", "attention", "attention_backward", "recurrent"):
        del digests[name]  # none is shipped
    assert made_by == {f"{VERSION} {digest}" for digest in digests.values()}
