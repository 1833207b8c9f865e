"""The rules and what else is known of patterns, shown: tables, one entry whole, and the page docs/patterns.md."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from rich.markup import escape
from rich.table import Table

from ..facts.document import Document, Hit
from ..facts.rule import Limit, Rule
from .ruled import ruled

_FEATURES = {
    "ranked": "that keep the first k of a row in order", "gathers": "that gather by index",
    "weighted": "that sum what they read at positions of their own, times weights",
    "loads": "that read at their own positions (windows, joins)", "turned": "with a transposed operand",
}  # fmt: skip


def rules_table(rules: Sequence[Rule]) -> Table:
    """One line a rule, in the order in which they are tried."""
    drawn = ruled("rule", "kinds", "cuda", "cpu")
    for rule in rules:
        skeletons = [r.skeleton if (r := rule.on(target)) else "" for target in ("cuda", "cpu")]
        drawn.add_row(escape(rule.name), ", ".join(rule.kinds), *skeletons)
    return drawn


def hits_table(hits: Sequence[Hit]) -> Table:
    drawn = ruled("", "name", "what")
    for hit in hits:
        found = hit.document
        drawn.add_row(found.kind, escape(found.name), f"{escape(found.title)}\n[dim]{escape(_flat(hit.excerpt))}[/]")
    return drawn


def hit_object(hit: Hit) -> dict[str, Any]:
    return {**asdict(hit.document), "score": hit.score, "excerpt": _flat(hit.excerpt)}


def _flat(text: str) -> str:
    return " ".join(text.split())


def document_text(document: Document) -> str:
    """A document as a reader wants it: title, tags, text."""
    tags = [
        f"{name}: {', '.join(values)}"
        for name, values in (
            ("architectures", document.architectures), ("operations", document.operations), ("dtypes", document.dtypes),
        )
        if values
    ]  # fmt: skip
    return "\n".join([f"{document.kind} {document.name}: {document.title}", *tags, "", document.text])


def rule_markdown(rule: Rule, families: Mapping[str, Sequence[str]]) -> str:
    """One rule whole. `families`: the operators of each family of lowerings."""
    kinds = " or ".join(f"`{kind}`" for kind in rule.kinds)
    which = f" {_FEATURES[rule.feature]}" if rule.feature else ""
    lines = [f"## {rule.name}", "", f"Patterns of kind {kinds}{which}. {rule.about}", "", "```python"]
    lines += [f"# {'; '.join(rule.example.inputs)}", rule.example.code.strip(), "```", ""]
    lines += ["| target | skeleton | architectures | dtypes |", "|---|---|---|---|"]
    lines += [
        f"| {r.target} | `kernels/{r.skeleton}` | {', '.join(r.architectures)} | {', '.join(r.dtypes)} |"
        for r in rule.realised
    ]
    lines += ["", *_limits(rule.limits)]
    for family in rule.lowerings:
        lines += [f"Operators ({family}): {', '.join(f'`{name}`' for name in families[family])}.", ""]
    lines += [f"Evidence: {'; '.join(map(_evidence, rule.evidence))}.", ""]
    return "\n".join(lines)


def _limits(limits: Sequence[Limit]) -> list[str]:
    if not limits:
        return []
    return ["Left to torch all the same:", "", *(f"- {m.text} ({', '.join(m.targets)})" for m in limits), ""]


def _evidence(text: str) -> str:
    page, _, heading = text.partition("#")
    anchor = re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-")
    return f"[{heading}]({page.removeprefix('docs/')}#{anchor})" if heading else f"`{page}`"


_HEAD = """\
# Patterns

This page lists what can be fused, by which kernel, and what is left to torch. `tilewright patterns page` writes it
from the table of rules, `src/tilewright/search/retrieve/rules.toml`. A test
(`tests/unit/search/retrieve/test_rules.py`) traces every example and every limit, so the page says what the code
does.

A pattern belongs to the first rule that has its kind and feature. An operator that several rules name goes where the
result of its reduction leads. Inputs of the examples: `x 64 256` is a tensor of the dtype in question, `i64<64 300`
integers below 64, `bool 64` booleans.

`--strategy fact` also keeps what the judge accepted on this machine and finds it again for the same computation on
the same shapes, strides and dtypes: `tilewright patterns list|show|check|export|import` ([cli.md](cli.md#patterns)).
"""


def rules_page(rules: Sequence[Rule], families: Mapping[str, Sequence[str]]) -> str:
    """docs/patterns.md."""
    return "\n".join([_HEAD, *(rule_markdown(rule, families) for rule in rules)]).rstrip() + "\n"
