"""`tilewright patterns`: the rules, what was realised and what won here, notes and skeletons; shown and exchanged."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, Literal

from ..facts.document import Document
from ..facts.errors import UserError
from ..facts.pattern import ANY_BATCH
from ..facts.winner import Winner
from ..ir.contraction import OPERATORS
from ..report import words
from ..report.realisations import realisations_table
from ..report.rules import document_text, hit_object, hits_table, rule_markdown, rules_page, rules_table
from ..search.retrieve import Index, packaged, rules
from ..search.tune import exchange, memory
from . import realisations
from .printing import Shown
from .winners import winner_object, winners_table

Action = Literal["list", "show", "search", "check", "remove", "export", "import", "page"]


def known(action: Action, text: str, *, cache: Path, say: Callable[[str], None]) -> Shown:
    """What the command shows; UserError where the text is missing, is one too much, or names nothing."""
    if action != "check" and bool(text) != (action not in ("list", "page")):
        needs = "takes no name" if text else "needs a name, words or a file, as in `tilewright patterns search softmax`"
        raise UserError(f"patterns {action}: {needs}")
    if action == "check":
        checked = realisations.checked(cache, text, seed=0, say=say)
        return Shown(object=checked, drawn=tuple(map(_fate, checked)) or ("nothing to check: all is trusted",))
    if action == "remove":
        removed = realisations.removed(cache, text)
        return Shown(object=removed, drawn=tuple(f"removed: {r['title']} ({r['target']}, {r['key']})" for r in removed))
    if action in ("export", "import"):
        counts = (realisations.exported if action == "export" else realisations.imported)(cache, Path(text))
        return Shown(object=counts, drawn=(", ".join(f"{n} {what}" for what, n in counts.items()),))
    path = cache / memory.FILE
    kept = exchange.winners(path) if path.exists() else ()
    winners = [winner for winner in kept if not winner.shape_class.startswith(ANY_BATCH)]  # each stands there twice
    if action == "list":
        found, realised = [winner_object(w) for w in winners], realisations.realised(cache)
        tables = [*([realisations_table(realised)] if realised else []), *([winners_table(found)] if found else [])]
        listed = {"rules": [asdict(r) for r in rules()], "realised": realised, "winners": found}
        return Shown(object=listed, drawn=(rules_table(rules()), *tables))
    if action == "page":
        page = rules_page(rules(), operators())
        return Shown(object=page, drawn=(page.rstrip(),))
    documents = [*packaged(), *map(_of_winner, winners), *realisations.documents(cache)]
    if action == "show" and (entry := realisations.whole(cache, text)) is not None:
        return Shown(object=entry[0], drawn=(entry[1],))
    return _whole(text, documents) if action == "show" else _searched(text, documents)


def _fate(result: Mapping[str, Any]) -> str:
    ratio = result.get("ratio")
    told = f"{ratio['mid']:.2f}x as fast as torch" if ratio else result["why"]
    return f"{result['fate']}: {result['title']} ({result['target']}, {result['key']}): {told}"


def _whole(name: str, documents: Sequence[Document]) -> Shown:
    """A rule, a note, a skeleton's words or a winner."""
    for rule in rules():
        if rule.name == name:
            return Shown(object=asdict(rule), drawn=(rule_markdown(rule, operators()).rstrip(),))
    for document in documents:
        if document.name == name:
            return Shown(object=asdict(document), drawn=(document_text(document),))
    raise UserError(f"{name}: no rule, note, skeleton or winner of this name; try `tilewright patterns search {name}`")


def _searched(text: str, documents: Sequence[Document]) -> Shown:
    hits = Index(documents).search(text)
    return Shown(object=[hit_object(h) for h in hits], drawn=(hits_table(hits) if hits else "nothing found",))


def operators() -> Mapping[str, Sequence[str]]:
    """The operators of each family that rules name."""
    from ..frontend.lowering.lowerings import LOWERING_FAMILIES

    families = {family: sorted(table) for family, table in LOWERING_FAMILIES.items()}
    return {**families, "products": sorted(OPERATORS)}


def _of_winner(winner: Winner) -> Document:
    chain = winner.toolchain
    text = (
        f"{words.settings(winner.point)} won among {len(winner.tried)} points on {winner.device} "
        f"({chain.driver} {chain.torch} {chain.dsl}) at {winner.found_at}: {words.duration(winner.time_ns.mid)} a call "
        f"of the whole module, {words.percent(winner.floor_share)} of the floor"
    )
    return Document(kind="winner", name=winner.shape_class, title=winner.title, text=text)
