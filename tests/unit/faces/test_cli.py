"""The command line on bad input: one line that names the value and the way out, exit 2, nothing on stdout."""

from __future__ import annotations

import errno
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest

from fakes.command import in_process
from fakes.facts import context
from tilewright.edges.ledger import Ledger
from tilewright.faces import config
from tilewright.faces.benches import BenchRequest
from tilewright.faces.exits import Interruptible, exit_code
from tilewright.facts.errors import HarnessError, TooBusy, UserError
from tilewright.facts.problem import Problem
from tilewright.facts.run import Request

GOOD = "class Model: ...\ndef get_inputs(): ...\ndef get_init_inputs(): ...\n"


def refused(*args: object, cwd: Path) -> str:
    code, out, err = in_process(*args, cwd=cwd)
    assert (code, out) == (2, ""), err
    lines = err.strip().splitlines()
    assert len(lines) == 1, err
    return lines[0]


def test_no_such_file(tmp_path: Path) -> None:
    """In a process of its own, as a user starts it."""
    command = [sys.executable, "-m", "tilewright", "optimize", "none.py", "--target", "cpu"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=300, check=False)
    assert (done.returncode, done.stdout) == (2, ""), done.stderr
    (line,) = done.stderr.strip().splitlines()
    assert "none.py: no such file" in line
    assert not (tmp_path / "runs").exists()


def test_a_mistake_does_not_wait_for_torch() -> None:
    commands = "audits", "benches", "discoveries", "winners", "cli"
    imports = "; ".join(f"import tilewright.faces.{name}" for name in commands)
    code = f"{imports}; import sys; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_not_python_and_no_model(tmp_path: Path) -> None:
    (tmp_path / "broken.py").write_text("def f(:\n")
    (tmp_path / "empty.py").write_text("x = 1\n")
    assert "not Python, line 1" in refused("optimize", "broken.py", "--target", "cpu", cwd=tmp_path)
    assert "no `Model`" in refused("evaluate", "empty.py", "empty.py", "--target", "cpu", cwd=tmp_path)


@pytest.mark.parametrize("command", ["bench .", "compare 1_good.py --strategies catalog,oneshot"])
def test_of_many_problems_a_model_without_a_key_is_told_before_any_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: str
) -> None:
    monkeypatch.setattr(config, "key", lambda names: None)
    (tmp_path / "1_good.py").write_text(GOOD)
    said = refused(*command.split(), "--model", "anthropic:x", "--target", "cpu", cwd=tmp_path)
    assert "no key; set ANTHROPIC_API_KEY" in said
    assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize(("flags", "algebra"), [([], True), (["--no-algebra"], False)])
def test_whether_the_amount_of_work_may_change_reaches_the_run_and_each_problem_of_many(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, flags: list[str], algebra: bool
) -> None:
    asked: list[bool] = []

    def one(request: Request, **__: object) -> None:
        asked.append(request.algebra)
        raise UserError("so far")

    def many(*_: object, settings: list[str], **__: object) -> None:
        asked.append("--no-algebra" not in settings)
        raise UserError("so far")

    monkeypatch.setattr("tilewright.run.optimize.optimize", one)
    monkeypatch.setattr("tilewright.faces.benches.campaign_of", many)
    (tmp_path / "good.py").write_text(GOOD)
    for command in ("optimize good.py", "bench ."):
        assert "so far" in refused(*command.split(), "--target", "cpu", *flags, cwd=tmp_path)
    assert asked == [algebra, algebra]


def test_an_unknown_precision(tmp_path: Path) -> None:
    (tmp_path / "good.py").write_text(GOOD)
    said = refused("evaluate", "good.py", "good.py", "--target", "cpu", "--precision", "tf31", cwd=tmp_path)
    assert "'tf31'" in said
    assert "'tf32'" in said


def test_a_bad_budget_a_bad_option_and_a_bad_command(tmp_path: Path) -> None:
    (tmp_path / "good.py").write_text(GOOD)
    assert "--budget: 'soon' is none; write 30m, 5usd" in refused(
        "optimize", "good.py", "--budget", "soon", cwd=tmp_path
    )
    assert "--timing: '0' is not a duration" in refused("optimize", "good.py", "--timing", "0", cwd=tmp_path)
    said = refused("optimize", "good.py", "--target", "tpu", cwd=tmp_path)
    assert "'--target': 'tpu' is not one of 'auto', 'cuda', 'cpu'" in said
    assert "optimise" in refused("optimise", "good.py", cwd=tmp_path)


def test_a_folder_that_holds_another_run(tmp_path: Path) -> None:
    (tmp_path / "good.py").write_text(GOOD)
    problem = Problem(name="other", path="/nowhere", source="", target="cpu")
    with Ledger(tmp_path / "run" / "run.db") as ledger:
        ledger.write(Request(run="abc", problem=problem, strategy="catalog", seed=0, budget_s=1.0))
        ledger.write(context())
    line = refused("optimize", "good.py", "--target", "cpu", "--out", "run", cwd=tmp_path)
    assert "holds run abc of problem 'other'" in line
    assert "tilewright resume run" in line


def test_a_folder_that_cannot_be_made(tmp_path: Path) -> None:
    (tmp_path / "good.py").write_text(GOOD)
    said = refused("optimize", "good.py", "--target", "cpu", "--out", "good.py", cwd=tmp_path)
    assert "good.py: can't be written (file exists); choose another --out" in said


def test_nothing_to_resume_or_report(tmp_path: Path) -> None:
    assert "no run here" in refused("resume", "nothing", cwd=tmp_path)
    assert "no run here" in refused("report", "nothing", cwd=tmp_path)


def test_bench_without_problems(tmp_path: Path) -> None:
    assert "no such folder" in refused("bench", "nothing", "--target", "cpu", cwd=tmp_path)
    assert "no problem file" in refused("bench", ".", "--target", "cpu", cwd=tmp_path)
    assert "'x'" in refused("bench", ".", "--only", "x", "--target", "cpu", cwd=tmp_path)


def test_winners_that_are_not_there(tmp_path: Path) -> None:
    assert "name the file, as in `tilewright winners merge winners.db`" in refused("winners", "merge", cwd=tmp_path)
    assert "nothing.db: no such file of winners" in refused("winners", "merge", "nothing.db", cwd=tmp_path)
    assert "takes no file" in refused("winners", "list", "some.db", cwd=tmp_path)


@pytest.mark.parametrize(("text", "value"), [("90", 90.0), ("90s", 90.0), ("5m", 300.0), ("1.5h", 5400.0)])
def test_durations(text: str, value: float) -> None:
    assert config.seconds(text, "--budget") == value


@pytest.mark.parametrize("text", ["", "5 minutes", "-3s", "0"])
def test_no_durations(text: str) -> None:
    with pytest.raises(UserError):
        config.seconds(text, "--budget")


def test_numbers() -> None:
    assert config.numbers("19-21,5,20,1") == (19, 20, 21, 5, 1)
    with pytest.raises(UserError, match="'9-3'"):
        config.numbers("9-3")


def test_an_evaluation_is_not_resumed(tmp_path: Path) -> None:
    problem = Problem(name="other", path="/nowhere", source="", target="cpu")
    with Ledger(tmp_path / "run" / "run.db") as ledger:
        ledger.write(Request(run="abc", problem=problem, strategy="given", seed=0, budget_s=0.0))
    assert "holds a single evaluation" in refused("resume", "run", cwd=tmp_path)


@pytest.mark.parametrize(
    ("error", "code", "said"),
    [
        (OSError(errno.ENOSPC, "No space left on device"), 2, "the disk is full"),
        (sqlite3.OperationalError("database or disk is full"), 2, "free some space, then continue"),
        (PermissionError(errno.EACCES, "Permission denied", "/x"), 2, "/x: permission denied; choose another --out"),
        (TooBusy("others had it"), 3, "too busy to judge: others had it; nothing was accepted and nobody accused"),
        (HarnessError("a cell would not start"), 3, "internal: a cell would not start"),
        (ZeroDivisionError("ours"), 3, "internal error (above)"),
        (
            ModuleNotFoundError("No module named 'jinja2'", name="jinja2"),
            2,
            "tilewright: jinja2 is not installed for /",
        ),
        (ModuleNotFoundError("no tilewright.x", name="tilewright.x"), 3, "internal error (above)"),
        (KeyboardInterrupt(), 130, ""),
    ],
)
def test_every_end_has_its_exit_code_and_line(
    error: BaseException, code: int, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    def run() -> None:
        raise error

    assert exit_code(run) == code
    written = capsys.readouterr()
    assert written.out == "" and said in written.err


def test_what_left_a_run_says_how_that_run_goes_on(capsys: pytest.CaptureFixture[str]) -> None:
    def busy() -> None:
        with Interruptible(Path("runs/mine")):
            raise TooBusy("others had it")

    def early() -> None:
        raise TooBusy("others had it")

    assert exit_code(busy) == 3
    assert "(OMP_NUM_THREADS); then continue with `tilewright resume runs/mine`\n" in capsys.readouterr().err
    assert exit_code(early) == 3  # of no run, and none of the run before
    assert "`tilewright resume DIR`" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "model"),
    [("--strategy cutegen", "vllm:mine"), ("--model fast", "ollama:small"), ("--strategy catalog", None)],
)
def test_a_users_own_model_and_its_aliases_reach_the_run_and_each_problem_of_many(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: str, model: str | None
) -> None:
    (tmp_path / "config.toml").write_text('model = "vllm:mine"\n[aliases]\nfast = "ollama:small"\n')
    monkeypatch.setenv("TILEWRIGHT_CONFIG", str(tmp_path / "config.toml"))
    asked: list[str | None] = []

    def one(request: Request, **__: object) -> None:
        asked.append(request.model.name if request.model else None)
        raise UserError("so far")

    def many(*_: object, asked: BenchRequest, **__: object) -> None:
        seen.append(asked.model)
        raise UserError("so far")

    seen = asked
    monkeypatch.setattr("tilewright.run.optimize.optimize", one)
    monkeypatch.setattr("tilewright.faces.benches.campaign_of", many)
    (tmp_path / "good.py").write_text(GOOD)
    for command in ("optimize good.py", "bench ."):
        assert "so far" in refused(*command.split(), "--target", "cpu", *words.split(), cwd=tmp_path)
    assert asked == [model, model]
