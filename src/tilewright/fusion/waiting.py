"""Which nodes one kernel may compute together, among those that others do: none may wait for what waits for it."""

from __future__ import annotations

from collections.abc import Iterable

from .region import Flow


class Waiting:
    """Nodes in the kernels that compute them; what stands in none is by itself."""

    def __init__(self, flow: Flow, kernels: Iterable[tuple[str, ...]]) -> None:
        self._flow = flow
        self._kernels: dict[str, set[str]] = {}
        for nodes in kernels:
            self.add(nodes)

    def add(self, nodes: tuple[str, ...]) -> None:
        """One kernel computes all of these."""
        for name in nodes:
            self._kernels.setdefault(name, set()).update(nodes)

    def for_itself(self, nodes: tuple[str, ...]) -> bool:
        """Whether a kernel of these nodes would read what is only there once it has run."""
        inside, seen = set(nodes), set[str]()
        todo = self._read(inside)
        while todo:
            name = todo.pop()
            if name in inside:
                return True
            if name not in seen:
                together = self._kernels.get(name, {name})
                seen |= together
                todo += self._read(together)
        return False

    def _read(self, nodes: set[str]) -> list[str]:
        found = (root for name in nodes for root in self._flow.roots(self._flow.nodes[name]))
        return [root for root in found if root not in nodes]
