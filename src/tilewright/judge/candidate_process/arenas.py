"""The arenas that a cell has mapped: what lies in them is read, written and laid over here."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from ..memory import driver
from ..memory.mapped import Mapped, Opened
from ..wire import calls as wire
from ..wire import walks
from ..wire.parts import TensorRef


class MappedArenas:
    """By name. `descriptor`: of the memory that came with the request at hand; -1: none did."""

    __slots__ = ("_device", "_opened", "descriptor")  # no method can be hidden in an instance

    def __init__(self, device: str) -> None:
        self._device = device
        self._opened: dict[str, Opened] = {}
        self.descriptor = -1

    def map(self, request: wire.MapArena) -> None:
        self._opened[request.name] = Opened(request, self.descriptor)

    def unmap(self, name: str) -> None:
        self._opened.pop(name).close()

    def read(self, refs: Sequence[TensorRef]) -> tuple[Tensor, ...]:
        """Views of all refs, each in its arena."""
        return tuple(self._opened[r.arena].tensor(r) for r in refs)

    def write(self, refs: Sequence[TensorRef], tensors: Sequence[Tensor]) -> None:
        for ref, tensor in zip(refs, tensors, strict=True):
            self._opened[ref.arena].write(ref, tensor)
        if self._device == "cuda":
            driver.synchronize()

    def lay(self, offset: int, size_bytes: int) -> None:
        """Lay the memory that came with the request over a part of the shared arena."""
        self._opened["shared"].lay(self.descriptor, offset, size_bytes)

    @property
    def block(self) -> Mapped | None:
        """The judge's block, by which caches are evicted; None on a GPU."""
        return self._opened.get(walks.BLOCK)
