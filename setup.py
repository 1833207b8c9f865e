"""What pyproject.toml can't say: the description of the package is README.md with links that work outside a checkout.

Links to files lead to `Repository` of [project.urls], at the tag of this version. Where no such address is named they
become plain text: a reader finds those files in share/doc/tilewright, where an installation puts them.
"""

import re
import tomllib
from pathlib import Path

from setuptools import setup

_RELATIVE = re.compile(r"\[([^\]]+)\]\((?!https?://|mailto:|#)([^)]+)\)")


def description(text: str, repository: str, version: str) -> str:
    """The text of README.md for whoever has it alone."""
    if repository:
        return _RELATIVE.sub(rf"[\1]({repository.rstrip('/')}/blob/v{version}/\2)", text)
    return _RELATIVE.sub(lambda link: f"{link[1]} (`{link[2].partition('#')[0]}`)", text)


if __name__ == "__main__":
    root = Path(__file__).parent
    urls = tomllib.loads((root / "pyproject.toml").read_text())["project"].get("urls", {})
    facts = (root / "src" / "tilewright" / "facts" / "version.py").read_text()
    (number,) = re.findall(r'^VERSION = "([^"]+)"', facts, flags=re.MULTILINE)
    setup(
        long_description=description((root / "README.md").read_text(), urls.get("Repository", ""), number),
        long_description_content_type="text/markdown",
    )
