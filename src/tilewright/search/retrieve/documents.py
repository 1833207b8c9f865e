"""What comes with the package, as Documents: the skeletons' own words, the rules, and our notes on techniques.

A note is a Markdown file under notes/. Its first line is its title; then come the tags that it has, a line each
("architectures: sm_90a", "operations: product, attention", "dtypes: f16, bf16"); after an empty line, the text.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import cache
from importlib.resources import files
from importlib.resources.abc import Traversable

from tilewright.facts.devices import ARCHITECTURES, DEVICES
from tilewright.facts.document import Document
from tilewright.facts.rule import Rule

from .rules import rules

_TAGS = ("architectures", "operations", "dtypes")
# Of skeletons for tensor cores.
_OPERATIONS = {
    "cuda/gemm": ("product",), "cuda/conv": ("convolution",), "cuda/attention": ("attention",),
    "cuda/attention_backward": ("attention_backward",),
}  # fmt: skip
_ARCHITECTURES = {**ARCHITECTURES, **dict.fromkeys(_OPERATIONS, (DEVICES["h200"].architecture,))}


@cache
def packaged() -> tuple[Document, ...]:
    """Rules, notes and skeletons."""
    return (*map(_of_rule, rules()), *_notes(), *_skeletons())


def _of_rule(rule: Rule) -> Document:
    lines = [rule.about, f"Realised by {', '.join(r.skeleton for r in rule.realised)}."]
    lines += [f"Left to torch: {limit.text}." for limit in rule.limits]
    return Document(
        kind="rule", name=rule.name, title=rule.name, text="\n".join([*lines, rule.example.code.strip()]),
        architectures=_joined(r.architectures for r in rule.realised), operations=rule.lowerings,
        dtypes=_joined(r.dtypes for r in rule.realised),
    )  # fmt: skip


def _joined(parts: Iterator[tuple[str, ...]]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(item for part in parts for item in part))


def _notes() -> Iterator[Document]:
    for file in _sorted(files(__package__).joinpath("notes")):
        yield note(file.name.removesuffix(".md"), file.read_text(encoding="utf-8"))


def note(name: str, source: str) -> Document:
    """Raises ValueError, which names the note, where it is not of the form above."""
    head, _, text = source.partition("\n\n")
    title, *lines = head.splitlines()
    tags = {
        key: tuple(v.strip() for v in values.split(",")) for key, _, values in (line.partition(": ") for line in lines)
    }
    if not title.startswith("# ") or not text.strip() or not tags.keys() <= set(_TAGS) or ("",) in tags.values():
        raise ValueError(f"note {name}: a title, tags ({', '.join(_TAGS)}), an empty line and a text are expected")
    return Document(kind="note", name=name, title=title.removeprefix("# "), text=text.strip(), **tags)


def _skeletons() -> Iterator[Document]:
    """Of every kernel file its first comment or docstring: what it does and how."""
    root = files("tilewright.kernels")
    for target in ("cuda", "cpu"):
        for path, file in _all_of(root.joinpath(target), target):
            text, of = _head(file), next((own for own in _OPERATIONS if path.startswith(f"{own}/")), target)
            if text:
                yield Document(
                    kind="skeleton", name=path, title=text.partition("\n")[0], text=text,
                    architectures=_ARCHITECTURES[of], operations=_OPERATIONS.get(of, ()),
                )  # fmt: skip


def _all_of(folder: Traversable, path: str) -> Iterator[tuple[str, Traversable]]:
    """Every file below a folder, with its path."""
    for item in sorted(folder.iterdir(), key=lambda one: one.name):
        if item.is_dir():
            yield from _all_of(item, f"{path}/{item.name}")
        else:
            yield f"{path}/{item.name}", item


def _head(file: Traversable) -> str:
    if file.name.endswith(".py"):
        return ast.get_docstring(ast.parse(file.read_text(encoding="utf-8"))) or ""
    if not file.name.endswith(".h"):
        return ""
    lines = file.read_text(encoding="utf-8").splitlines()
    end = next((i for i, line in enumerate(lines) if not line.startswith("//")), len(lines))
    return "\n".join(line.removeprefix("//").strip() for line in lines[:end])


def _sorted(folder: Traversable) -> list[Traversable]:
    return sorted((file for file in folder.iterdir() if file.is_file()), key=lambda file: file.name)
