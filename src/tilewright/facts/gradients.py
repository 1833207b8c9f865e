"""What a call in training takes gradients of."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Gradients:
    """What a call in training takes gradients of: input tensors by position, parameters by name. `outputs`: positions
    of the returned tensors that get an upstream gradient; none: inference."""

    outputs: tuple[int, ...] = ()
    inputs: tuple[int, ...] = ()
    parameters: tuple[str, ...] = ()

    @property
    def names(self) -> tuple[str, ...]:
        """Of the gradients, in the order in which a step gives them."""
        return tuple(f"input {i}" for i in self.inputs) + self.parameters


NO_GRADIENTS = Gradients()
