"""KernelBench's problems in other precisions: files whose module and inputs are the same in fp16 or bf16.

    python benchmarks/in_precisions.py PATH/level1 --only 1,3,6 --dtypes float32,float16,bfloat16 --out FOLDER
    tilewright bench FOLDER --strategy fact ...

A file keeps its number, with 10000 more for fp16 and 20000 more for bf16, by which `--only` chooses.
"""

from __future__ import annotations

import argparse
import re
from pathlib import Path

_MORE = {"float32": 0, "float16": 10000, "bfloat16": 20000}
# Its class stays the one that its own `super(Model, self)` names.
_TEXT = """


_made_in_fp32, _inputs_in_fp32 = Model.__init__, get_inputs


def _made(self, *args, **kwargs):
    _made_in_fp32(self, *args, **kwargs)
    self.to(torch.{dtype})


def get_inputs():
    return [x.to(torch.{dtype}) if torch.is_tensor(x) and x.is_floating_point() else x for x in _inputs_in_fp32()]


Model.__init__ = _made
"""


def written(file: Path, dtype: str) -> tuple[str, str]:
    """The name and the text of the problem in this precision."""
    found = re.match(r"(\d+)_(.*)", file.name)
    if found is None:
        raise SystemExit(f"{file.name}: no number in front")
    text = file.read_text(encoding="utf-8")
    name = f"{int(found[1]) + _MORE[dtype]}_{dtype}_{found[2]}"
    return name, text if dtype == "float32" else text.rstrip() + _TEXT.format(dtype=dtype)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--only", required=True)
    parser.add_argument("--dtypes", default=",".join(_MORE))
    parser.add_argument("--out", type=Path, required=True)
    asked = parser.parse_args()
    asked.out.mkdir(parents=True, exist_ok=True)
    for number in asked.only.split(","):
        (file,) = asked.folder.glob(f"{number}_*.py")
        for dtype in asked.dtypes.split(","):
            name, text = written(file, dtype)
            (asked.out / name).write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
