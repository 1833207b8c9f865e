"""The file of keys: whose token it is, what it limits, and that nobody else can read it."""

from __future__ import annotations

from pathlib import Path

import pytest

from tilewright.faces.serving.keys import KeyFile, KeyLimits, add_key
from tilewright.facts.errors import UserError

USUAL = KeyLimits(rate=60, queued=10)


def test_a_key_is_known_by_its_token_and_the_file_holds_none(tmp_path: Path) -> None:
    path = tmp_path / "keys"
    ann, bob = add_key(path, "ann"), add_key(path, "bob")
    keys = KeyFile(path, USUAL)
    names = [holder.name if (holder := keys.holder(token)) else "" for token in (ann, bob, ann[:-1], "", "x" * 10_000)]
    assert names == ["ann", "bob", "", "", ""]
    text = path.read_text()
    assert ann not in text and ann.removeprefix("tw_") not in text and path.stat().st_mode & 0o077 == 0
    assert keys.holder(text.split("sha256:")[1][:64]) is None, "a digest is no token"


def test_limits_stand_beside_a_key_and_a_changed_file_counts_at_once(tmp_path: Path) -> None:
    path = tmp_path / "keys"
    token = add_key(path, "ann")
    keys = KeyFile(path, USUAL)
    assert (found := keys.holder(token)) and found.limits == USUAL
    path.write_text(f"# ours\n\n{path.read_text().strip()} rate=5 priority=9\n")
    assert (found := keys.holder(token)) and found.limits == KeyLimits(rate=5, queued=10, priority=9)
    path.write_text("# nobody\n")
    assert keys.holder(token) is None


@pytest.mark.parametrize(
    "text",
    ["ann", "ann sha256:12", "ann sha256:" + "0" * 64 + " rate=-1", "ann sha256:" + "0" * 64 + " admin=1",
     "ann sha256:" + "0" * 64 + " priority=10", ("ann sha256:" + "0" * 64 + "\n") * 2],
)  # fmt: skip
def test_a_file_of_anything_else_is_the_operators_line(tmp_path: Path, text: str) -> None:
    path = tmp_path / "keys"
    path.write_text(text)
    path.chmod(0o600)
    with pytest.raises(UserError, match="--keys"):
        KeyFile(path, USUAL)


def test_a_file_that_others_can_read_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "keys"
    add_key(path, "ann")
    path.chmod(0o640)
    with pytest.raises(UserError, match="mode 0600"):
        KeyFile(path, USUAL)
    with pytest.raises(UserError, match="mode 0600"):
        add_key(path, "bob")
    with pytest.raises(UserError, match="--new-key NAME"):
        KeyFile(tmp_path / "none", USUAL)


def test_a_name_is_given_once(tmp_path: Path) -> None:
    add_key(tmp_path / "keys", "ann")
    for name in ("ann", "a b", "", "a\nb", "x" * 61):
        with pytest.raises(UserError, match="--new-key"):
            add_key(tmp_path / "keys", name)
