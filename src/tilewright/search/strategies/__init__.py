"""How to search: generators of moves. No I/O, no clock: they learn of time through the events that they receive."""

from collections.abc import Callable, Generator
from types import MappingProxyType

from ...facts.move import Event, Move
from ...facts.run import SearchContext
from .catalog import PARTS as CATALOG_PARTS
from .catalog import catalog
from .conversing import converse
from .cutegen import PARTS as CUTEGEN_PARTS
from .cutegen import cutegen, cutegen_paper
from .evolve import PARTS as EVOLVE_PARTS
from .evolve import evolve, evolve_paper
from .fact import PARTS as FACT_PARTS
from .fact import fact
from .given import given
from .oneshot import best_of_n, oneshot
from .tuning import tune

Moves = Generator[Move | tuple[Move, ...], Event | tuple[Event, ...], None]

STRATEGIES: MappingProxyType[str, Callable[[SearchContext], Moves]] = MappingProxyType(
    {
        "catalog": catalog, "fact": fact, "oneshot": oneshot, "best_of_n": best_of_n, "cutegen": cutegen,
        "cutegen_paper": cutegen_paper, "evolve": evolve, "evolve_paper": evolve_paper,
        "agent": converse,
    }
)  # fmt: skip
PARTS: MappingProxyType[str, tuple[str, ...]] = MappingProxyType(
    {  # what can be switched off
        "catalog": CATALOG_PARTS,
        "agent": CUTEGEN_PARTS,
        "cutegen": CUTEGEN_PARTS,
        "fact": FACT_PARTS,
        "evolve": EVOLVE_PARTS,
        "evolve_paper": EVOLVE_PARTS,
    }
)
MAY_ASK = ("fact",)  # those that put prompts to a model where one is named
WITH_ALGEBRA = ("catalog",)  # those that also try the module as declared algebra has it
WITH_TOOLS = ("cutegen", "evolve", "agent")  # whose model may call tools between two submissions
ASKING = tuple(name for name in STRATEGIES if name not in ("catalog", *MAY_ASK))  # those that can't do without

__all__ = ["ASKING", "MAY_ASK", "Moves", "PARTS", "STRATEGIES", "WITH_ALGEBRA", "WITH_TOOLS", "given", "tune"]
