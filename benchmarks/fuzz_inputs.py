"""What `fuzz.py` makes its inputs of: valid ones of every kind, nasty words and values, and how they come together."""

from __future__ import annotations

import json
import random
import re
from typing import Any

WORDS = (
    "9**9**9", "10**4400", "-" * 5000 + "1", "'a'*10**12", "[0]*10**10", "1<<10**9", "range(10**12)", "(" * 300,
    "[" * 3000,
    "{" * 200, "\0", "\ud800", "\ufeff", "\u202e", "\x1b[31m", "nan", "inf", "-inf", "-1", "0", "1e999", "9" * 400,
    "9" * 5000,
    "None", "true", "null", "NaN", "Infinity", "''", '""', "\n", "\r\n", "\t", "'''", "\\", "%s", "{}", "../../x",
    "/dev/zero",
    "/dev/full", "a" * 5000, "é" * 300, "$", "*", ";", "import os", "lambda: 0", "f'{x!r:>{10**9}}'",
    "class ModelNew: pass",
    "<<<<<<< SEARCH", "=======", ">>>>>>> REPLACE", "```python", "FILE: model.py", "---", "END OF REPLY",
    "CASES = [{}]",
)  # fmt: skip
VALUES: tuple[Any, ...] = (
    None, True, False, 0, -1, 2**63, 10**300, 1.5, float("nan"), float("inf"), -0.0, "", "x", "\0", "\ud800",
    "a" * 5000, [], {},
    [[]], {"": {}}, {"$": "Order"}, {"$": "Nobody"}, {"$": []}, [None] * 50, "9" * 400, "../..", "cpu", "cuda",
)  # fmt: skip


def mutated(text: str, dice: random.Random) -> str:
    """The text after a few changes."""
    for _ in range(dice.choice((1, 1, 2, 3, 6))):
        a, b = sorted((dice.randint(0, len(text)), dice.randint(0, len(text))))
        b = min(b, a + dice.choice((1, 5, 40, 10**6)))
        match dice.randrange(7):
            case 0:
                text = text[:a] + text[b:]
            case 1:
                text = text[:b] + text[a:b] * dice.choice((1, 2, 30)) + text[b:]
            case 2:
                text = text[:a] + dice.choice(WORDS) + text[b if dice.random() < 0.3 else a :]
            case 3:
                text = text[:a]
            case 4:
                text = text[:a] + chr(dice.choice((0, 7, 10, 34, 39, 92, 127, 255, 0xD800, 0xFFFF, 0x1F600))) + text[a:]
            case 5:
                text = _replaced(r"\d+(?:\.\d+)?", text, dice)
            case 6:
                text = _replaced(r"[A-Za-z_]{2,}", text, dice)
        text = text[:2_000_000]
    return text


def _replaced(pattern: str, text: str, dice: random.Random) -> str:
    """One of the places that a pattern matches holds something nasty in its place."""
    places = list(re.finditer(pattern, text))
    if not places:
        return text + dice.choice(WORDS)
    place = dice.choice(places)
    return text[: place.start()] + dice.choice(WORDS) + text[place.end() :]


def mutated_tree(tree: Any, dice: random.Random) -> Any:
    """A tree of JSON with something else in one of its places, or with a field that it had not."""
    if isinstance(tree, dict) and tree and dice.random() < 0.9:
        key = dice.choice(list(tree))
        if dice.random() < 0.1:
            return {k: v for k, v in tree.items() if k != key} | (
                {str(dice.choice(VALUES)): 1} if dice.random() < 0.5 else {}
            )
        return {**tree, key: mutated_tree(tree[key], dice)}
    if isinstance(tree, list) and tree and dice.random() < 0.9:
        at = dice.randrange(len(tree))
        return [*tree[:at], mutated_tree(tree[at], dice), *tree[at + 1 :]]
    if dice.random() < 0.05:
        return json.loads("[" * 400 + "]" * 400)
    return dice.choice(VALUES)


def as_bytes(text: str, dice: random.Random) -> bytes:
    encoding = dice.choice(("utf-8",) * 8 + ("utf-16", "latin-1"))
    return text.encode(encoding, errors=dice.choice(("surrogatepass", "replace", "ignore"))
                       if encoding != "latin-1" else "replace")  # fmt: skip


# ---- valid inputs

PROBLEMS = (
    'import torch\nN = 4\nM = N * 2 + 1\nCASES = [{"rows": 64, "n": M}, dict(rows=3, n=N ** 2)]\n'
    'CPU_CASES = [{"rows": 2 << 3}]\n'
    'MODE = "training"\n\n\nclass Model(torch.nn.Module):\n    def forward(self, x):\n        return x * 2\n\n\n'
    "def get_inputs(**k): ...\n\n\ndef get_init_inputs(**k): ...\n",
    "class Model: ...\nA = [1, 2]\nB = {'x': A * 3, 'y': -1.5}\nCASES: list = [B]\n"
    "from m import get_inputs, get_init_inputs\n",
)
TASK = "class Model:\n    def __init__(self, n): ...\n\n\ndef get_inputs(rows, n): ...\n"
CONFIG: Any = {
    "single_init_configs": [{"n": 3}], "single_input_configs": [{"rows": 64}], "single_shared_configs": [{}],
    "multi_init_configs": [{"n": 3}, {"n": 9}], "multi_input_configs": [{"rows": 5}], "multi_shared_configs": [{}],
}  # fmt: skip
CANDIDATES = (
    "import torch\nfrom torch import nn\n\nTILE = 64  # knob: 32, 64, 128\n\n\nclass ModelNew(nn.Module):\n"
    "    def __init__(self, n):\n        super().__init__()\n        self.w = nn.Parameter(torch.ones(n))\n\n"
    "    def forward(self, x):\n        y = x.to(torch.bfloat16) @ self.w\n"
    "        return torch.where(y > 0, y, 0 * y).float()\n",
    'import torch\nfrom torch.utils.cpp_extension import load_inline\nsource = """\n'
    "__global__ void k(float* x, int n) {\n"
    '  int i = blockIdx.x * 256 + threadIdx.x;\n  if (i < n) x[i + 1] = 2;\n}\n"""\n\n\n'
    "class ModelNew(torch.nn.Module):\n    pass\n",
)
REPLIES = (
    "I think that it is bound by memory.\n\nFILE: model.py\n```python\n" + CANDIDATES[0] + "```\n",
    "IDEA: fewer bytes\nmodel.py\n<<<<<<< SEARCH\nTILE = 64  # knob: 32, 64, 128\n=======\nTILE = 128\n"
    ">>>>>>> REPLACE\n",
    '```json\n[{"nodes": ["a", "b"], "why": "x"}]\n```\n',
)  # fmt: skip
TOOLS: dict[str, dict[str, Any]] = {
    "open_problem": {"problem": "p.py", "folder": "runs/x", "budget": "30m", "precision": "reference", "mode": "auto",
    "wait_s": 1.0},
    "read_problem": {"run": "runs/open"}, "read_skeletons": {"run": "", "files": ["model.py"]},
    "attempts": {"run": "runs/open"},
    "attempt": {"number": 1, "run": "runs/open", "source": True}, "finish": {"why": "done", "run": "runs/none"},
    "submit": {"idea": "i", "run": "runs/open", "files": {"model.py": CANDIDATES[0]}, "path": "", "base": "1",
    "wait_s": 1.0},
    "profile": {"run": "runs/open", "attempt": 1, "question": "auto", "wait_s": 1.0}, "wait": {"run": "runs/open",
    "wait_s": 0.5},
    "tune": {"attempt": 1, "run": "runs/open", "wait_s": 1.0},
}  # fmt: skip
COMMANDS: tuple[list[str], ...] = (
    ["optimize", "p.py", "--target", "cpu"], ["evaluate", "p.py", "c.py", "--target", "cpu"], ["resume", "run"],
    ["report", "run"],
    ["bench", ".", "--target", "cpu"], ["compare", "run"], ["compare", "p.py", "--strategies", "catalog"], ["profile",
    "p.py"],
    ["audit", "p.py"], ["audit", "."], ["discover", "p.py"], ["tune", "p.py", "--budget", "5m"], ["winners", "list"],
    ["patterns", "list"], ["patterns", "search", "softmax"], ["patterns", "show", "x"], ["worker", "box"], ["mcp"],
    ["doctor"], [],
)  # fmt: skip
FLAGS = (
    "--target", "--mode", "--precision", "--sanitize", "--no-sanitize", "--out", "--budget", "--timing", "--no-compile",
    "--no-algebra", "--strategy", "--without", "--model", "--base-url", "--effort", "--evaluator", "--no-wait",
    "--seed", "--json",
    "--only", "--jobs", "--devices", "--by", "--strategies", "--repeats", "--svg", "--trials", "--ahead", "--http",
    "--root",
    "--runs", "--watch", "--question", "--version", "--help", "--env", "--", "-x",
)  # fmt: skip
