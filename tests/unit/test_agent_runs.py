"""benchmarks/agent_runs.py: the ten problems laid out, what waits for whom, and the table that journals give."""

from __future__ import annotations

import argparse
import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import pytest

from fakes.asked import START, asking, ran, whole
from tilewright.edges.ledger import Ledger
from tilewright.facts.run import Limits

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "agent_runs.py"


@pytest.fixture
def script() -> ModuleType:
    spec = importlib.util.spec_from_file_location("agent_runs", SCRIPT)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["agent_runs"] = module  # its dataclass looks there
    spec.loader.exec_module(module)
    return module


def test_ten_problems_are_laid_out_once(script: ModuleType, tmp_path: Path) -> None:
    level = tmp_path / "KernelBench" / "level1"
    level.mkdir(parents=True)
    for name in script.KERNELBENCH:
        (level / f"{name}.py").write_text(f"# {name}\n")
    script.laid_out(tmp_path, tmp_path / "problems")
    names = [p.name for p in sorted((tmp_path / "problems").iterdir())]
    assert names[0].startswith("01_conv_transposed_3D") and names[9] == "10_lamb_step.py" and len(names) == 10
    (tmp_path / "problems" / names[0]).write_text("# mine\n")
    script.laid_out(tmp_path, tmp_path / "problems")
    assert (tmp_path / "problems" / names[0]).read_text() == "# mine\n"


def test_a_step_of_all_is_one_command_of_bench(script: ModuleType, tmp_path: Path) -> None:
    asked = argparse.Namespace(
        folder=tmp_path, strategy="cutegen", target="cuda", budget="2h", jobs="2", only="1,4", timing="2s",
        here=False, no_compile=False, devices="", without="tuning", wait=False,
    )  # fmt: skip
    command = " ".join(script.bench_command(asked))
    assert f"--model mailbox:{tmp_path}/mail --no-wait --timing 2s --evaluator bundle:{tmp_path}/bundle" in command
    assert command.endswith("--only 1,4")
    assert "--without tuning" in command
    asked.here = True
    assert "bundle" not in " ".join(script.bench_command(asked))
    asked.wait = True
    assert "--no-wait" not in script.bench_command(asked)
    asked.strategy = "catalog"
    assert "mailbox" not in " ".join(script.bench_command(asked))


def test_what_waits_is_what_has_no_whole_reply(script: ModuleType, tmp_path: Path) -> None:
    mail, bundle = tmp_path / "mail", tmp_path / "bundle"
    for folder in (mail, bundle / "orders", bundle / "answers"):
        folder.mkdir(parents=True)
    for name in ("a", "b", "c"):
        (mail / f"{name}.prompt.md").write_text("?")
        (bundle / "orders" / f"{name}.order").write_text("{}")
    (mail / "a.reply.md").write_text("yes\nEND OF REPLY\n")
    (mail / "b.reply.md").write_text("half")
    (bundle / "answers" / "c.answer").write_text("{}")
    assert script.waiting(tmp_path) == (["b.prompt.md", "c.prompt.md"], 2)


def test_the_table_is_read_from_journals(script: ModuleType, tmp_path: Path) -> None:
    place = tmp_path / "runs" / "cutegen" / "toy"
    place.mkdir(parents=True)
    on = asking(start=START, limits=Limits(calls=4))
    ran(place / "run.db", "cutegen", [whole("ns 800"), "Hm.", whole("bad hung"), whole("ns 500")], on=on)
    with Ledger(place / "run.db") as ledger:
        ledger.write(on)
    (row,) = script.rows(tmp_path / "runs" / "cutegen")
    assert (row.start, row.best, row.gain, row.steps, row.fixes, row.calls) == (1000.0, 500.0, 2.0, 2, 1, 4)
    assert row.tokens == (4 * 900, 4 * 100)
    assert row.refused == 1 and row.end.startswith("the calls are used up (4)")
    (line,) = [line for line in script.table(tmp_path) if row.problem in line]
    assert "| 1 us | 0.5 us | 2.00 |" in line and "| 2 | 1 | 1 | 4 | 3600 in, 400 out | the calls" in line
    found = script.numbers(tmp_path)
    assert found["strategies"]["cutegen"][0]["best"] == 500.0 and found["devices"] == [on.machine.device]
