"""Permits to compile: how many work at a time, in one process and in several."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from pathlib import Path

from tilewright.run.children import _place, most, permit


def test_a_quarter_of_many_cores_is_left_to_others_and_few_are_shared_as_they_come() -> None:
    assert [most(n) for n in (1, 2, 8, 16, 32)] == [0, 0, 0, 12, 24]
    with permit(0), permit(0):
        pass


def test_no_more_hold_one_than_there_are(tmp_path: Path) -> None:
    lock, inside, seen = threading.Lock(), 0, []

    def work() -> None:
        nonlocal inside
        with permit(2, folder=tmp_path):
            with lock:
                inside += 1
                seen.append(inside)
            time.sleep(0.05)
            with lock:
                inside -= 1

    threads = [threading.Thread(target=work) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert max(seen) == 2 and len(seen) == 6


def test_another_process_counts_and_gives_back_when_it_dies(tmp_path: Path) -> None:
    source = (
        "import pathlib, sys, time\nfrom tilewright.run.children import permit\n"
        "with permit(1, folder=pathlib.Path(sys.argv[1])):\n    print('held', flush=True)\n    time.sleep(600)\n"
    )
    with subprocess.Popen([sys.executable, "-c", source, str(tmp_path)], stdout=subprocess.PIPE, text=True) as other:
        assert other.stdout is not None and other.stdout.readline() == "held\n"
        got = threading.Event()

        def wait() -> None:
            with permit(1, folder=tmp_path):
                got.set()

        waiting = threading.Thread(target=wait)
        waiting.start()
        assert not got.wait(0.3)
        other.kill()
        assert got.wait(20.0)
        waiting.join()


def test_nobody_waits_for_ever(tmp_path: Path) -> None:
    with permit(1, folder=tmp_path):
        started = time.monotonic()
        with permit(1, folder=tmp_path, wait_s=0.2):
            assert 0.2 <= time.monotonic() - started < 20


def test_where_nothing_can_be_written_nobody_waits(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with permit(1, folder=tmp_path / "file"), permit(1, folder=tmp_path / "file"):
        pass


def test_runs_on_cores_of_their_own_wait_for_nobody() -> None:
    assert _place({0, 1}) == _place({1, 0}) != _place({2, 3})
