"""Products as Programs under construction: factors, what their operators add, and what is computed of them."""

from __future__ import annotations

from dataclasses import replace

from tilewright.facts.pattern import Bind, Match
from tilewright.ir.access import ALL_DIAGONALS, Diagonals, Position, Quotient
from tilewright.ir.matrices import Matrices, product_of
from tilewright.ir.program import Contraction, Operand, Output, Program, Reduction, Statement

from .contract import Multiplication

Found = tuple[Program, Match]


class Body:
    """Operands and statements of a product's Program, named in order, so that equal work gives equal Programs."""

    def __init__(self, whole: Multiplication, *beside: Multiplication) -> None:
        """`beside`: others of the same left factor; matrices come before all other operands."""
        self.whole = whole
        self.operands: list[Operand] = []
        self.binds: list[Bind] = []
        self.body: list[Contraction | Statement | Reduction] = []
        self.left = self.operand(whole.left.bind, whole.element, whole.left.shape, indexed=True, order=whole.left.order)
        rights = [
            self.operand(c.right.bind, c.element, c.right.shape, indexed=True, order=c.right.order)
            for c in (whole, *beside)
        ]
        self.ends = "" if whole.ends is None else self.operand(whole.ends, "i32", whole.ends.split, indexed=True)
        self.values = [self._multiplied(c, right) for c, right in zip((whole, *beside), rights, strict=True)]
        self.last = self.values[0]

    def _product(self, result: str, right: str, whole: Multiplication, *, wanted: Diagonals = ALL_DIAGONALS,
                 domain: tuple[int, ...] = ()) -> Contraction:  # fmt: skip
        """Of the left factor and this one, over another domain perhaps; `wanted`: the diagonals that are read."""
        zeros, each = (whole.left.diagonals, whole.right.diagonals), (whole.left.each, whole.right.each)
        of = Matrices(ends=self.ends) if self.ends else Matrices(zeros=zeros, each=each, wanted=wanted)
        named = {o.name: o for o in self.operands}
        dtype = "f32" if whole.scales else whole.node.dtype
        made = product_of(result, named[self.left], named[right], domain=domain or whole.domain, dtype=dtype, of=of)
        return replace(made, allow_tf32=whole.allow_tf32)

    def again(self, *, wanted: Diagonals = ALL_DIAGONALS, domain: tuple[int, ...] = ()) -> None:
        """The first product as `_product` has it with these."""
        first = self.body[0]
        assert isinstance(first, Contraction)
        self.body[0] = self._product(first.result, first.right.operand, self.whole, wanted=wanted, domain=domain)

    def _multiplied(self, whole: Multiplication, right: str) -> str:
        """What a contraction gives, with what its operator adds to it."""
        made = self._product(f"v{len(self.body)}", right, whole)
        last, dtype = made.result, made.dtype
        self.body.append(made)
        if whole.scale != 1.0:
            last = self.state("mul", (last, whole.scale), dtype)
        for by in whole.scales:
            last = self.state("mul", (last, self.operand(by.bind, "f32", by.shape, order=by.order)), "f32")
        if whole.addend is not None:
            added = self.operand(whole.addend.bind, whole.node.dtype, whole.addend.shape, order=whole.addend.order)
            if dtype != whole.node.dtype:
                added = self.state("to", (added,), dtype)
            if whole.addend.scale != 1.0:
                added = self.state("mul", (added, whole.addend.scale), dtype)
            last = self.state("add", (last, added), dtype)
        return last if dtype == whole.node.dtype else self.state("to", (last,), whole.node.dtype)

    def operand(
        self, bind: Bind, dtype: str, shape: tuple[int, ...], *, indexed: bool = False, order: tuple[int, ...] = (),
        at: tuple[Position | Quotient, ...] = (),
    ) -> str:  # fmt: skip
        name = f"x{len(self.operands)}"
        self.operands.append(Operand(name=name, dtype=dtype, shape=shape, indexed=indexed, order=order, at=at))
        self.binds.append(bind)
        return name

    def state(self, op: str, args: tuple[str | float, ...], dtype: str) -> str:
        result = f"v{len(self.body)}"
        self.body.append(Statement(result=result, op=op, args=args, dtype=dtype))
        return result

    def reduction(self, item: Reduction, arg: str) -> tuple[str, ...]:
        results = tuple(f"v{len(self.body)}_{i}" for i in range(len(item.results)))
        self.body.append(Reduction(results=results, op=item.op, arg=arg, dtype=item.dtype, count=item.count))
        return results

    def of_region(self, region: Program, names: dict[str, str]) -> None:
        """The statements and reductions of a region; `names`: what its operands are here, to which its values come."""
        for item in region.body:
            if isinstance(item, Reduction):
                names.update(zip(item.results, self.reduction(item, names[item.arg]), strict=True))
            elif isinstance(item, Statement):
                args = tuple(names[a] if isinstance(a, str) else a for a in item.args)
                names[item.result] = self.state(item.op, args, item.dtype)

    def found(
        self,
        nodes: tuple[str, ...],
        outputs: tuple[Output, ...],
        binds: tuple[Bind, ...],
        reduced: tuple[int, ...] = (),
    ) -> Found:
        program = Program(
            domain=self.whole.domain, reduced=reduced, operands=tuple(self.operands), body=tuple(self.body),
            outputs=outputs,
        )  # fmt: skip
        return program, Match(nodes=nodes, operands=tuple(self.binds), outputs=binds, spared=self.whole.spared)

    def in_groups(self, node: str, region: Found, names: dict[str, str]) -> Found:
        """The same, with its columns in two dimensions, of which the region reduces the second; of whole rows the first
        has one place."""
        (output,), size = region[0].outputs, region[0].inner_size
        *outer, columns = self.whole.domain
        domain = (*outer, columns // size, size)
        self.again(domain=domain)
        self.operands = [o if o.indexed or len(o.shape) == len(domain) else _in_two(o, domain) for o in self.operands]
        shape = domain if output.shape == region[0].domain else (*domain[:-1], 1)
        made = Output(name=names[output.name], dtype=output.dtype, shape=shape)
        program = Program(
            domain=domain, reduced=(len(domain) - 1,), operands=tuple(self.operands), body=tuple(self.body),
            outputs=(made,),
        )  # fmt: skip
        nodes = (node, *region[1].nodes)
        return program, Match(nodes=nodes, operands=tuple(self.binds), outputs=region[1].outputs)


def _in_two(operand: Operand, domain: tuple[int, ...]) -> Operand:
    """An operand over a product's domain where the last dimension is in two."""
    last = len(operand.shape) - 1
    columns = domain[-2:] if operand.shape[-1] > 1 else (1, 1)
    order = tuple(new for d in operand.order for new in ((d, d + 1) if d == last else (d,)))
    return replace(operand, shape=(*operand.shape[:-1], *columns), order=order)


def in_order(outputs: tuple[Output, ...], binds: tuple[Bind, ...]) -> tuple[tuple[Output, ...], tuple[Bind, ...]]:
    """Results with those of 16 bits first, then fp32's: the first leaves a kernel by way of shared memory, and what has
    fewer bytes is written by less."""
    ranks = {"f16": 0, "bf16": 0, "f32": 1}
    order = sorted(range(len(outputs)), key=lambda i: ranks.get(outputs[i].dtype, 2))
    return tuple(outputs[i] for i in order), tuple(binds[i] for i in order)
