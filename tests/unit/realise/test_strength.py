"""What gives way to cheaper operations, and what must not."""

from __future__ import annotations

from fakes import kernel_programs as kp
from tilewright.ir.program import Program, Statement
from tilewright.ir.schedule import schedule
from tilewright.realise.float8 import rounded_once
from tilewright.realise.strength import reduced_in_strength, shares


def operations(program: Program) -> list[str]:
    return [item.op for item in reduced_in_strength(rounded_once(program)).body]


def test_a_softmax_of_16_bits_takes_the_hardwares_exp_and_one_of_32_the_librarys():
    narrow, wide = (operations(kp.softmax((64, 1000), dtype=dtype)) for dtype in ("bf16", "f32"))
    assert narrow == ["softmax_stats", "sub", "approx_exp", "ordinary_divisor", "approx_quotient", "to"]
    assert wide == ["softmax_stats", "sub", "exp", "ordinary_divisor", "quotient", "to"]


def test_what_is_written_in_16_bits_and_in_32_stays_exact():
    b = kp.Builder((8, 64), (1,))
    x = b.read("x", dtype="bf16")
    e = b.op("exp", x, dtype="f32")
    b.write(b.op("to", e, dtype="bf16"))
    b.write_row(b.reduce("sum", e, "f32")[0])
    assert operations(b.done()) == ["exp", "to", "sum"]


def test_a_sum_of_exponentials_that_ends_in_16_bits_is_approximated_and_a_logarithm_is_not():
    for op, wanted in (("neg", "approx_exp"), ("log", "exp")):
        b = kp.Builder((8, 64), (1,))
        (total,) = b.reduce("sum", b.op("exp", b.read("x", dtype="f16"), dtype="f32"), "f32")
        b.write_row(b.op("to", b.op(op, total, dtype="f32"), dtype="f16"))
        assert operations(b.done())[0] == wanted, op


def test_comparisons_and_whole_numbers_are_no_numbers_of_16_bits():
    for op, dtype in (("gt", "bool"), ("to", "i8"), ("round", "f32")):
        b = kp.Builder((8, 64))
        e = b.op("sigmoid", b.read("x", dtype="bf16"), dtype="f32")
        found = b.op(op, e, 0.5, dtype=dtype) if op == "gt" else b.op(op, e, dtype=dtype)
        b.write(found if dtype != "f32" else b.op("to", found, dtype="bf16"))
        assert "approx_sigmoid" not in operations(b.done()), op
    b = kp.Builder((8, 64))
    b.write(b.op("to", b.op("sigmoid", b.read("x", dtype="bf16"), dtype="f32"), dtype="bf16"))
    assert operations(b.done())[0] == "approx_sigmoid"


def test_rows_divide_once_for_all_who_divide_by_the_same():
    b = kp.Builder((8, 64), (1,))
    x, t = b.read("x"), b.read("t", (8, 1))
    (total,) = b.reduce("sum", b.op("div", x, t))
    b.write(b.op("div", b.op("div", x, t), total))
    b.write_row(b.op("div", total, t))
    found = operations(b.done())
    assert found == ["divisor", "quotient", "sum", "quotient", "divisor", "quotient", "div"]


def test_divisions_of_elements_by_elements_and_of_rows_by_rows_stay():
    b = kp.Builder((8, 64), (1,))
    x, y = b.read("x"), b.read("y")
    (total,) = b.reduce("sum", b.op("div", x, y))
    b.write_row(b.op("div", total, 64.0))
    assert operations(b.done()) == ["div", "sum", "div"]
    assert "quotient" not in operations(kp.cumulative("cumsum", (8, 64)))


def test_divisions_that_end_in_16_bits_are_the_hardwares():
    for dtype, wanted in (("bf16", "approx_div"), ("f32", "div")):
        b = kp.Builder((8, 64))
        x = b.read("x", dtype=dtype)
        silu = b.op("div", x, b.op("add", b.op("exp", b.op("neg", x, dtype="f32"), dtype="f32"), 1.0, dtype="f32"))
        b.write(b.op("to", silu, dtype=dtype))
        assert wanted in operations(b.done())


def test_an_error_function_beside_one_is_approximated_and_one_that_is_small_is_not():
    for one, dtype, wanted in (
        (1.0, "bf16", "approx_erf"),
        (0.5, "bf16", "erf"),
        (1, "f16", "approx_erf"),
        (1.0, "f32", "erf"),
    ):
        b = kp.Builder((8, 64))
        x = b.read("x", dtype=dtype)
        bell = b.op("add", b.op("erf", b.op("mul", x, 0.7, dtype="f32"), dtype="f32"), one, dtype="f32")
        b.write(b.op("to", b.op("mul", x, bell, dtype="f32"), dtype=dtype))
        assert wanted in operations(b.done()), (one, dtype)
    b = kp.Builder((8, 64))
    e = b.op("erf", b.read("x", dtype="bf16"), dtype="f32")
    b.write(b.op("to", b.op("mul", e, b.op("add", e, 1.0, dtype="f32"), dtype="f32"), dtype="bf16"))
    assert "approx_erf" not in operations(b.done()), "something else reads it"


def test_the_share_of_an_element_in_its_softmax_is_found_and_what_is_not_one_is_none():
    found = shares(schedule(reduced_in_strength(kp.softmax((64, 1000)))))
    assert found is not None and (found.name, found.sweep, found.reduction, found.exact) == ("v3", 0, 0, True)
    assert [item.result for item in found.final] == ["v4"]
    narrow = shares(schedule(reduced_in_strength(rounded_once(kp.softmax((64, 1000), dtype="bf16")))))
    assert narrow is not None and not narrow.exact
    assert shares(schedule(reduced_in_strength(kp.softmax((64, 1000), log=True)))) is None
    b = kp.Builder((8, 64), (1,))
    x, y = b.read("x"), b.read("y")
    top, total = b.reduce("softmax_stats", x)
    b.write(b.op("div", b.op("exp", b.op("sub", y, top)), total))
    assert shares(schedule(reduced_in_strength(b.done()))) is None, "of another than what was summed"


def test_labels_are_compared_with_positions_in_32_bits():
    program = reduced_in_strength(kp.cross_entropy_rows(64, 1000))
    found = {item.result: item for item in program.body if isinstance(item, Statement)}
    (compared,) = (item for item in found.values() if item.op == "eq")
    assert [(found[a].op, found[a].dtype) for a in compared.args] == [("index", "i32"), ("place", "i32")]
    assert schedule(program).head == (found[compared.args[1]],), "once a row"


def test_mish_is_one_exponential_unless_what_lies_between_is_wanted():
    for wanted in (False, True):
        b = kp.Builder((8, 64))
        x = b.read("x")
        between = b.op("log1p", b.op("exp", x))
        b.write(b.op("mul", x, b.op("tanh", between)))
        if wanted:
            b.write(between)
        assert operations(b.done()) == (["exp", "log1p", "tanh", "mul"] if wanted else ["tanh_of_softplus", "mul"])
