"""Runs in a browser under `/site/` of `tilewright serve`, for whoever may submit."""

from __future__ import annotations

import base64
from collections.abc import Iterator
from pathlib import Path

import pytest

from fakes.served import Served, served


@pytest.fixture(scope="module")
def house(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    folder = tmp_path_factory.mktemp("served")
    (folder / "runs").mkdir()
    with served(folder, names=("ann",), site=(folder / "runs",)) as found:
        yield found


def basic(token: str) -> str:
    return "Basic " + base64.b64encode(f"anybody:{token}".encode()).decode()


def test_a_browser_gives_a_token_as_the_password(house: Served) -> None:
    ann = basic(house.tokens["ann"])
    status, told = house.raw("GET", "/site/", Authorization=ann)
    assert status == 200 and "<title>" in told["text"] and "http-equiv" in told["text"]
    assert house.raw("GET", "/site", Authorization=ann)[0] == 307
    assert house.raw("GET", "/site/nothing.html", Authorization=ann)[0] == 404
    for path in ("/site/..%2f..%2fkeys", "/site/../keys", "/site//etc/passwd"):
        assert house.raw("GET", path, Authorization=ann)[0] in (401, 404)


@pytest.mark.parametrize("sent", ["", "Basic", "Basic !", "Basic YW5u", "Bearer x", basic("x"), basic("")])
def test_without_a_token_there_are_no_pages(house: Served, sent: str) -> None:
    status, told = house.raw("GET", "/site/", **({"Authorization": sent} if sent else {}))
    assert (status, told["error"]) in ((401, "no_token"), (401, "wrong_token"))


def test_a_password_opens_the_pages_alone(house: Served) -> None:
    status, told = house.raw("GET", "/v1/status", Authorization=basic(house.tokens["ann"]))
    assert (status, told["error"]) == (401, "no_token")
    assert house.raw("GET", "/site/", token=house.tokens["ann"])[0] == 401


def test_pages_from_elsewhere_see_nothing(house: Served) -> None:
    ann = basic(house.tokens["ann"])
    assert house.raw("GET", "/site/", Authorization=ann, Sec_Fetch_Site="cross-site")[0] == 403
    assert house.raw("GET", "/site/", Authorization=ann, Host="evil.example")[0] == 421


def test_a_server_without_runs_to_show_has_no_pages(tmp_path: Path) -> None:
    with served(tmp_path) as plain:
        assert plain.raw("GET", "/site/")[0] == 404
