"""How to search: generators of moves. No I/O, no clock: they learn of time through the events that they receive."""

from collections.abc import Callable, Generator
from types import MappingProxyType

from ..facts.move import Event, Move
from ..facts.run import Brief
from .catalog import catalog
from .given import given
from .tuning import tune

Moves = Generator[Move | tuple[Move, ...], Event | tuple[Event, ...], None]

STRATEGIES: MappingProxyType[str, Callable[[Brief], Moves]] = MappingProxyType({"catalog": catalog})

__all__ = ["Moves", "STRATEGIES", "given", "tune"]
