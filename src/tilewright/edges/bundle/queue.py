"""The queue of a campaign on a folder that several machines share: orders, claims, results and signs of life as files.

    FOLDER/orders/NAME.order      written by the driver, once
    FOLDER/claims/NAME            made by the node that takes the order, or by the driver that withdraws it: one of them
    FOLDER/results/NAME.result    written by that node
    FOLDER/nodes/NODE.node        written anew by each node every few seconds; FOLDER/driver.node by the driver
    FOLDER/over                   nodes leave

Files with content are whole or not there, as in a bundle. No clock of one machine is compared with another's: who
watches a sign of life sees it change, or not.
"""

from __future__ import annotations

import os
import re
from contextlib import suppress
from pathlib import Path

from .folder import whole, write_whole

_PLAIN = re.compile(r"[\w.:@-]{1,200}")
DRIVER = "driver"


class NodeQueue:
    """The folder as a node uses it, made where it is not there yet. An order's `name`: letters, digits and `._-`."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._orders, self._claims = folder / "orders", folder / "claims"
        self._results, self._nodes = folder / "results", folder / "nodes"
        self.logs = folder / "logs"
        for place in (self._orders, self._claims, self._results, self._nodes, self.logs):
            place.mkdir(parents=True, exist_ok=True)

    def waiting(self) -> tuple[str, ...]:
        """Orders that nobody has claimed: further attempts first, else as they were posted."""
        claimed = {p.name for p in self._claims.iterdir()}
        left = [p for p in self._orders.glob("*.order") if p.stem not in claimed]
        return tuple(p.stem for p in sorted(left, key=lambda p: (p.stem.endswith(".0"), _age(p), p.name)))

    def claim(self, name: str, node: str) -> bool:
        """Whether the order is this node's now: of all that ask, one gets it, on NFS too."""
        mine = self._claims / f".{_named(node)}.{name}"
        mine.write_text(node, encoding="utf-8")
        try:
            os.link(mine, self._claims / name)
        except FileExistsError:
            return False
        finally:
            mine.unlink()
        return True

    def order(self, name: str) -> str | None:
        return _text(self._orders / f"{name}.order")

    def reply(self, name: str, result: str) -> None:
        write_whole(self._results / f"{name}.result", result)

    def beat(self, node: str, text: str) -> None:
        """Give a sign of life."""
        place = self.folder if node == DRIVER else self._nodes
        write_whole(place / f"{_named(node)}.node", text)

    def driver(self) -> str | None:
        """What the driver last wrote of itself."""
        return _text(self.folder / f"{DRIVER}.node")

    def over(self) -> bool:
        return (self.folder / "over").exists()


class SharedQueue(NodeQueue):
    """The folder as the driver uses it."""

    def post(self, name: str, order: str) -> None:
        """See to it that the order lies there whole."""
        place = self._orders / f"{name}.order"
        if whole(place) is None:
            write_whole(place, order)

    def remove(self, name: str) -> None:
        """Remove the order with its claim, so that it may be posted anew."""
        for place in (self._orders / f"{name}.order", self._results / f"{name}.result", self._claims / name):
            place.unlink(missing_ok=True)

    def names(self) -> tuple[str, ...]:
        return tuple(sorted(p.stem for p in self._orders.glob("*.order")))

    def result(self, name: str) -> str | None:
        """None while it is not there whole."""
        return _text(self._results / f"{name}.result")

    def claimant(self, name: str) -> str:
        """The node that took the order; "" where none has."""
        with suppress(OSError):
            return (self._claims / name).read_text(encoding="utf-8")
        return ""

    def signs(self) -> dict[str, str]:
        """By node what it last wrote of itself."""
        found = {p.stem: _text(p) for p in self._nodes.glob("*.node")}
        return {name: text for name, text in found.items() if text is not None}

    def set_over(self, over: bool) -> None:
        """Have the nodes leave; or let them stay again."""
        if over:
            (self.folder / "over").touch()
        else:
            (self.folder / "over").unlink(missing_ok=True)


def _named(node: str) -> str:
    if not _PLAIN.fullmatch(node):
        raise ValueError(f"{node!r}: no name of a node")
    return node


def _age(path: Path) -> int:
    with suppress(OSError):
        return path.stat().st_mtime_ns
    return 0


def _text(path: Path) -> str | None:
    found = whole(path)
    return None if found is None else found[1].decode()
