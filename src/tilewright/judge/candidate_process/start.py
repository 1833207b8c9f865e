"""Run a module of the Tilewright that this file belongs to: `python -P .../candidate_process/start.py MODULE
ARGUMENTS`.

The process finds this very copy wherever it lies (site-packages, a checkout, the folder of `pip install --target`), and
its folder comes last on the path. On PYTHONPATH it would come before the standard library, and of site-packages that
puts every module in the place of a standard one that happens to have its name.
"""

from __future__ import annotations

import importlib.util
import runpy
import sys
from pathlib import Path


def main() -> None:
    package = Path(__file__).resolve().parents[2]
    spec = importlib.util.spec_from_file_location(package.name, package / "__init__.py")
    assert spec is not None and spec.loader is not None
    module = sys.modules[package.name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    if str(package.parent) not in sys.path:
        sys.path.append(str(package.parent))
    del sys.argv[0]
    runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
