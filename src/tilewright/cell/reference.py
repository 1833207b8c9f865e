"""The reference's side of a cell: the user's module, its inputs and state by seed, its float64 truth, its facts."""

from __future__ import annotations

import copy
import gc
import json
import time
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from ..facts import codec
from . import values, work
from .arena import spec_of
from .families import OWN, perturb_state, redistribute
from .load import CodeRaised, ProblemModule, blaming, load_problem
from .subject import Subject, named_state, output_facts, seed_all
from .wire import Described

_RANDOM_SHARE = 0.02  # of the norm: dropout moves far more, the order of a sum far less


class Reference:
    """A problem file, open in a cell: one case at a time is constructed."""

    def __init__(self, path: str, source: str, cases: Sequence[str], *, subject: Subject, compiled: bool) -> None:
        self._problem: ProblemModule = load_problem(path, source)
        self._cases = tuple(json.loads(c) for c in cases)
        self._subject = subject
        self._device = subject.device
        self._compiled = compiled
        self._case: dict[str, Any] = {}
        self._init: Any = []
        self._double: torch.nn.Module | None = None

    def construct(self, case: int, seed: int) -> None:
        self._double = None
        self._case = self._cases[case]
        seed_all(seed)
        with blaming("raised", "get_init_inputs raised"):
            self._init = self._problem.get_init_inputs(**self._case)
        if not isinstance(self._init, list | tuple | dict):
            raise CodeRaised(
                "bad_arguments", f"get_init_inputs returns a {type(self._init).__name__}, not a list or dict"
            )
        model, init = self._problem.model, self._init
        self._subject.construct(lambda: model(**init) if isinstance(init, dict) else model(*init), seed,
                                compiled=self._compiled)  # fmt: skip

    def init_tensors(self) -> tuple[Tensor, ...]:
        tensors: list[Tensor] = []
        values.encode(self._init, tensors)
        return tuple(tensors)

    # ---- inputs

    def inputs(self, seed: int, family: str) -> tuple[str, tuple[Tensor, ...]]:
        """The encoded arguments and their tensors on the device, drawn with this seed and family."""
        with blaming("raised", "get_inputs raised"):
            args = self._draw(seed)
        if not isinstance(args, list | tuple | dict):
            raise CodeRaised("bad_arguments", f"get_inputs returns a {type(args).__name__}, not a list or dict")
        tensors: list[Tensor] = []
        try:
            text = values.encode(list(args) if isinstance(args, tuple) else args, tensors)
        except values.CannotTravel as error:
            raise CodeRaised(
                "bad_arguments", f"get_inputs returns {error}, which can't be handed to a module"
            ) from error
        placed = [t.detach().to(self._device) for t in tensors]
        tensors.clear()
        del args
        if family != OWN:
            for i, tensor in enumerate(placed):
                if tensor.is_floating_point():
                    placed[i] = redistribute(tensor, family, seed + i)
        return text, tuple(placed)

    def _draw(self, seed: int) -> Any:
        """get_inputs under the device's context; on the CPU where that does not work (it is moved then)."""
        seed_all(seed)
        if self._device == "cpu":
            return self._problem.get_inputs(**self._case)
        try:
            with torch.device(self._device):
                return self._problem.get_inputs(**self._case)
        except Exception:  # some draw with NumPy or with CPU generators: only the second refusal counts
            seed_all(seed)
            return self._problem.get_inputs(**self._case)

    def redraw(self, seed: int) -> None:
        self._double = None
        source = torch.Generator(device=self._device).manual_seed(seed)
        module = self._subject.built
        parameters = {n for n, _ in module.named_parameters(remove_duplicate=False)}
        seen: set[int] = set()
        with torch.no_grad():
            for name, tensor in named_state(module).items():
                if id(tensor) not in seen:
                    seen.add(id(tensor))
                    perturb_state(name, tensor, is_parameter=name in parameters, source=source)

    # ---- truth

    def truth(self, args_text: str, inputs: Sequence[Tensor], seed: int) -> tuple[Tensor, ...]:
        """Outputs of the module in float64 on the same inputs and state. Raises CodeRaised("no_truth") where an
        operation has no float64, and for lack of memory."""
        self._subject.drop()
        seed_all(seed)
        wide = [t.double() if t.is_floating_point() else t.to(torch.complex128) if t.is_complex() else t.clone()
                for t in inputs]  # fmt: skip
        before = torch.get_default_dtype()
        try:
            with blaming("raised", "in float64 the module raised"), torch.no_grad():
                torch.set_default_dtype(torch.float64)
                module = self._double = self._double or copy.deepcopy(self._subject.built).double()
                args = values.decode(args_text, wide)
                del wide
                result = module(**args) if isinstance(args, dict) else module(*args)
                del args
        finally:
            torch.set_default_dtype(before)
            if self._subject.built.training:
                self._double = None  # it may have moved its buffers
        tensors: list[Tensor] = []
        values.encode(result, tensors)
        return tuple(tensors)

    def truth_in_parts(
        self, args_text: str, inputs: Sequence[Tensor], places: Sequence[Tensor], *, seed: int, parts: int
    ) -> None:
        """Write the truth into `places`, computed for a part of the rows of the first dimension at a time: what is left
        when the whole does not fit. Right only where rows do not depend on one another; the judge sees where they do,
        since the reference's own result then lies far off."""
        rows = places[0].shape[0] if places[0].ndim else 0
        if rows < parts or any(p.ndim == 0 or p.shape[0] != rows for p in places) or self._subject.built.training:
            raise CodeRaised("no_truth", "float64 does not fit into memory")
        for start in range(0, rows, -(-rows // parts)):
            stop = min(rows, start + -(-rows // parts))
            mine = [t[start:stop] if t.ndim and t.shape[0] == rows else t for t in inputs]
            found = self.truth(args_text, mine, seed)
            for place, part in zip(places, found, strict=True):
                if place[start:stop].shape != part.shape:
                    raise CodeRaised("no_truth", "float64 does not fit into memory, and rows depend on one another")
                place[start:stop].copy_(part)
            del found

    def release_truth(self) -> None:
        self._double = None
        gc.collect()

    # ---- description

    def describe(self, seed: int, *, trace: bool) -> Described:
        """Run the case and say what is known of it; the state is as before afterwards."""
        text, inputs = self.inputs(seed, OWN)
        subject = self._subject
        state = named_state(subject.built)
        kept = {k: v.detach().clone() for k, v in state.items()}
        originals = tuple(t.clone() for t in inputs)
        first, call_s = self._first_run(text, inputs)
        for i, (now, then) in enumerate(zip(inputs, originals, strict=True)):
            if not torch.equal(_bits(now), _bits(then)):
                raise CodeRaised("bad_module", f"forward changes its tensor input {i} in place; give it a copy instead")
        del originals
        mutated = tuple(k for k, v in kept.items() if not torch.equal(_bits(state[k].detach()), _bits(v)))
        subject.write_state(mutated, [kept[k] for k in mutated])
        seed_all(seed + 1)
        with blaming("raised", "forward raised under observation"):
            measured, second = work.measure(lambda: subject.run(text, inputs), [*inputs, *state.values()], _tensors)
        random = any(_far(a, b) for a, b in zip(_tensors(first), _tensors(second), strict=True))
        tree = values.encode(second, [])
        outputs = tuple(output_facts(t, inputs) for t in _tensors(second))
        del first, second
        subject.drop()
        subject.write_state(mutated, [kept[k] for k in mutated])
        graph, failure = self._trace(text, inputs) if trace else ("", "")
        subject.write_state(mutated, [kept[k] for k in mutated])
        init: list[Tensor] = []
        try:
            init_text = values.encode(self._init, init)
        except values.CannotTravel as error:
            raise CodeRaised(
                "bad_arguments", f"get_init_inputs returns {error}, which can't be sent to a candidate"
            ) from error
        return Described(
            init=init_text, init_tensors=tuple(spec_of(t) for t in init), args=text,
            inputs=tuple(spec_of(t) for t in inputs), outputs_tree=tree, outputs=outputs,
            state=subject.state_specs(), mutated_state=mutated, random=random, work=measured, graph=graph,
            trace_failure=failure, call_s=call_s,
        )  # fmt: skip

    def _first_run(self, text: str, inputs: Sequence[Tensor]) -> tuple[Any, float]:
        """What the module returns, known to be tensors, and the seconds it took."""
        start = time.perf_counter()
        with blaming("raised", "forward raised"):
            result = self._subject.run(text, inputs)
            if self._device == "cuda":
                torch.cuda.synchronize()
        call_s = time.perf_counter() - start
        tensors: list[Tensor] = []
        try:
            tree = values.encode(result, tensors)
        except values.CannotTravel as error:
            raise CodeRaised("bad_module", f"forward returns {error}; only tensors can be judged") from error
        if not values.only_tensors(tree):
            raise CodeRaised("bad_module", "forward returns something that is not a tensor; only tensors can be judged")
        if not tensors:
            raise CodeRaised("bad_module", "forward returns no tensor")
        return result, call_s

    def _trace(self, text: str, inputs: Sequence[Tensor]) -> tuple[str, str]:
        from .trace import trace

        args = values.decode(text, inputs)
        positional, named = ((), args) if isinstance(args, dict) else (tuple(args), {})
        try:
            return codec.dumps(trace(self._subject.built, positional, named)), ""
        except Exception as error:  # whatever torch's tracers raise, the module then stays torch's
            lines = str(error).strip().splitlines()
            return "", f"{type(error).__name__}: {lines[0] if lines else ''}"[:300]
        finally:
            gc.collect()
            gc.freeze()  # tracing imports a great deal, which later collections need not walk


def _tensors(result: Any) -> list[Tensor]:
    found: list[Tensor] = []
    values.encode(result, found)
    return found


def _far(a: Tensor, b: Tensor) -> bool:
    """Whether two results differ by more than another order of summation could explain."""
    if a.shape != b.shape:
        return True
    if not a.is_floating_point():
        return not torch.equal(a, b)
    a, b = torch.nan_to_num(a), torch.nan_to_num(b)
    return float((a - b).norm()) > _RANDOM_SHARE * float(a.norm())


def _bits(tensor: Tensor) -> Tensor:
    """Something on which equality is bitwise: NaN equals itself."""
    if tensor.dtype in (torch.bool, torch.uint8) or not (tensor.is_floating_point() or tensor.is_complex()):
        return tensor
    as_int = {2: torch.int16, 4: torch.int32, 8: torch.int64, 16: torch.int64, 1: torch.uint8}[tensor.element_size()]
    return tensor.contiguous().view(as_int)
