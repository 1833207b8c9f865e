"""What is foreseen of points: what spills, can't run or is another's kernel is not measured, and that is told."""

from __future__ import annotations

import json
from dataclasses import asdict, replace
from pathlib import Path

import pytest

from fakes import kernel_programs as kp
from fakes.facts import pattern
from fakes.realisers import CPU, H200, cpu, cuda
from tilewright.facts.candidate import Candidate
from tilewright.facts.demand import Demand
from tilewright.facts.pattern import Choice, Pattern
from tilewright.facts.run import Matched
from tilewright.facts.space import Point, Space, point
from tilewright.ir.program import Program
from tilewright.realise.cpu import renderer as cpu_rows
from tilewright.realise.realiser import Fit
from tilewright.run import ahead, foresee
from tilewright.run.ahead import Objects


def fused(program: Program, points: tuple[Point, ...]) -> Pattern:
    space = Space(knobs=cuda.space(program).knobs, points=points)
    return replace(pattern("fused_0"), program=program, space=space)


@pytest.mark.slow
def test_points_are_foreseen_without_a_gpu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def setting(threads: int, unroll: int) -> Point:
        return point(threads=threads, unroll=unroll, row_storage="auto", cta_split="auto")

    spills, good, small = setting(1024, 8), setting(256, 4), setting(256, 2)
    given = (Matched(case=0, patterns=(fused(kp.sum_of_matrices(12), (spills, good, small)),), unmatched=()),)
    said: list[str] = []
    objects, folder = Objects(), tmp_path / "libraries"
    (found,) = foresee.foreseen(
        given, H200, known=(), say=said.append, folder=folder, objects=objects
    )  # fmt: skip
    assert set(found.patterns[0].space.points) == {good, small}
    assert said == ["fused_0: 2 of 3 points to measure (1 spilling registers)"]
    kept = foresee.foreseen(
        given, H200, known={"fused_0"}, say=said.append, folder=folder, objects=objects
    )  # fmt: skip
    assert kept == given, "its winner is remembered"
    # What was compiled to be foreseen is what a candidate runs, whatever settings its file begins with.
    monkeypatch.setattr(ahead, "shared_out", lambda *a, **k: pytest.fail("a child compiles again"))
    program = given[0].patterns[0].program
    for first in (good, small):
        files = (*cuda.skeleton_files([program]), *cuda.render(program, "fused_0", first))
        choices = [Choice(pattern="fused_0", point=p) for p in (good, small)]
        made = ahead.compiled_ahead(
            Candidate(files=files), choices, folder=folder, jobs=2, device=H200, objects=objects
        )  # fmt: skip
        assert len(made) == 2 and all(path.is_file() for path in made)
    assert len(list(folder.glob("*.o"))) == 3, "one a point"
    # Nor does what is the same kernel under another number, as where a pattern is a problem of its own.
    other = (replace(given[0], patterns=(replace(given[0].patterns[0], id="fused_7"),)),)
    (again,) = foresee.foreseen(
        other, H200, known=(), say=said.append, folder=folder, objects=objects
    )  # fmt: skip
    assert again.patterns[0].space == found.patterns[0].space
    files = (*cuda.skeleton_files([program]), *cuda.render(program, "fused_7", good))
    choice = Choice(pattern="fused_7", point=good)
    (path,) = ahead.compiled_ahead(
        Candidate(files=files), [choice], folder=folder, jobs=2, device=H200, objects=objects
    )  # fmt: skip
    assert path in made


def test_equal_kernels_are_compiled_once_and_the_longest_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    softmax, product = kp.softmax((64, 256)), kp.product(256, 256, 256)
    of_rows, of_product = cuda.space(softmax).points[0], cuda.space(product).points[0]
    programs = {"fused_0": softmax, "fused_1": softmax, "fused_2": product}
    points = {"fused_0": of_rows, "fused_1": of_rows, "fused_2": of_product}
    files = [*cuda.skeleton_files([softmax, product])]
    for name, program in programs.items():
        files += cuda.render(program, name, points[name])
    asked: list[str] = []

    def answered(module: str, facts: object, tasks: list[tuple[str, object]], **_: object) -> list[str]:
        asked.extend(Path(path).stem for path, _ in tasks)
        return [json.dumps({"objects": [str(tmp_path / f"{Path(path).stem}.o")]}) for path, _ in tasks]

    monkeypatch.setattr(ahead, "shared_out", answered)
    for name in programs:
        (tmp_path / f"{name}.o").touch()
    choices = [Choice(pattern=name, point=points[name]) for name in programs]
    made = ahead.compiled_ahead(Candidate(files=tuple(files)), choices, folder=tmp_path, jobs=2, device=H200)
    assert asked == ["fused_2", "fused_0"]
    assert [path.name for path in made] == ["fused_0.o", "fused_2.o"], "that of fused_0 is fused_1's"


DEMAND = Demand(
    plan="a", registers=32, local_bytes=0, shared_bytes=0, threads=256, ctas=10**5, in_flight_bytes=64,
    moved_bytes=10**9,
)  # fmt: skip


def chosen(*demands: Demand | str) -> tuple[list[int], list[str]]:
    """Which points (by number) are kept, in their order, and what was said."""
    given = pattern("fused_0", points=len(demands))
    known = {("fused_0", p): d for p, d in zip(given.space.points, demands, strict=True) if d != "not known"}
    said: list[str] = []
    found = foresee._for_cuda(given, known, H200, said.append, ranked=False)
    return [p[0][1] for p in found.space.points], said


def test_equal_kernels_spills_and_what_cannot_run_are_left_out_and_told() -> None:
    other, slow = replace(DEMAND, plan="b"), replace(DEMAND, plan="c", moved_bytes=2 * 10**9)
    huge = replace(DEMAND, plan="d", shared_bytes=10**6)
    points, said = chosen(slow, DEMAND, other, DEMAND, replace(other, local_bytes=8, plan="e"), huge, "no such op")
    assert points == [2, 3, 1], "the likeliest first"
    assert said == [
        "fused_0: 3 of 7 points to measure (1 the same kernel as another, 1 spilling registers, "
        "1 too large for a multiprocessor, 1 not compiled)"
    ]


def test_what_is_not_known_changes_nothing() -> None:
    points, said = chosen(replace(DEMAND, local_bytes=8), "not known", DEMAND)
    assert points == [1, 2, 3] and "not known here" in said[0]


def test_a_child_that_died_answers_for_what_it_finished() -> None:
    jobs = [("fused_0", point(unroll=u)) for u in range(4)]
    told = json.dumps({"objects": [], "demand": asdict(DEMAND)})
    lines = [told, json.dumps({"failure": "no such op"}), told[:40]]
    assert foresee.answered(jobs, [*lines, ""]) == {jobs[0]: DEMAND, jobs[1]: "no such op"}
    assert foresee.answered(jobs, ['{"demand": {"registers": 1}}', "{}", "", ""]) == {}


def test_on_the_cpu_the_model_alone_orders_them() -> None:
    program = kp.chain((128, 128))
    space = cpu.space(program)
    assert [dict(p)["grain"] for p in space.points] == [16384, 4096]
    given = (Matched(case=0, patterns=(replace(pattern("fused_0"), program=program, space=space),), unmatched=()),)
    (found,) = foresee.foreseen(given, CPU, known=(), say=print, folder=Path("none"), objects=Objects())
    assert [dict(p)["grain"] for p in found.patterns[0].space.points] == [4096, 16384]


@pytest.mark.thorough
@pytest.mark.slow
def test_products_keep_the_order_of_their_own_model(tmp_path: Path) -> None:
    """And what their kernels take is learnt as of any other pattern."""
    program = kp.product(512, 512, 512)

    def setting(tile: str, split_k: int, stages: int | str = "auto") -> Point:
        return point(tile=tile, cluster="1x1", stages=stages, split_k=split_k)

    wide, small, refused = setting("128x64", 1), setting("64x64", 2), setting("64x256", 1)
    given = (
        Matched(case=0, patterns=(fused(program, (wide, refused, small, setting("128x64", 1, 4))),), unmatched=()),
    )
    said: list[str] = []
    (found,) = foresee.foreseen(
        given, H200, known=(), say=said.append, folder=tmp_path, objects=Objects()
    )  # fmt: skip
    assert found.patterns[0].space.points == (wide, small)
    assert said == ["fused_0: 2 of 4 points to measure (1 not compiled, 1 the same kernel as another)"]


def test_on_a_cpu_too_the_points_of_a_realiser_with_a_model_of_its_own_keep_their_order(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They need have none of the knobs that the model of bytes reads."""
    program = kp.chain((64, 64))
    points = tuple(point(tall=n) for n in (4, 16, 8))
    given = (Matched(case=0, patterns=(fused(program, points),), unmatched=()),)
    monkeypatch.setattr(cpu_rows, "fits", lambda program, device: Fit(ranked=True))
    (found,) = foresee.foreseen(given, CPU, known=(), say=print, folder=tmp_path, objects=Objects())
    assert found.patterns[0].space.points == points


@pytest.mark.parametrize("runs", [True, False])
def test_what_nobody_measures_is_not_compiled(runs: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a product whose first point can run, the others; rows have no order of their own, and need them all."""
    product, rows = kp.product(512, 512, 512), kp.sum_of_matrices(12)
    points = cuda.space(product).points[:3]
    few = tuple(point(threads=t, unroll=2, row_storage="auto", cta_split="auto") for t in (256, 512))
    whole = fused(product, points), replace(fused(rows, few), id="fused_1")
    asked: list[tuple[str, Point]] = []

    def answered(module: str, texts: object, wanted: list[Choice], **rest: object) -> list[str]:
        asked.extend((choice.pattern, choice.point) for choice in wanted)
        demands = [replace(DEMAND, plan=str(c.point), local_bytes=0 if runs or c.point != points[0] else 8)
                   for c in wanted]  # fmt: skip
        return [json.dumps({"objects": [], "demand": asdict(demand)}) for demand in demands]

    monkeypatch.setattr(foresee, "answers_of", answered)
    given = (Matched(case=0, patterns=whole, unmatched=()),)
    (found,) = foresee.foreseen(
        given, H200, known=(), say=lambda line: None, folder=tmp_path, objects=Objects(), tuned=False
    )  # fmt: skip
    first, *others = (("fused_0", p) for p in points)
    assert asked == [first, *(("fused_1", p) for p in few), *([] if runs else others)]
    assert found.patterns[0].space.points == (points if runs else points[1:])
    assert set(found.patterns[1].space.points) == set(few)
