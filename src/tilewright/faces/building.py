"""What a node of a cluster runs to build ahead: `build DEVICE` reads an order and writes an archive of kernels, `take`
reads one into this machine's cache."""

from __future__ import annotations

import os
import sys

from ..facts.errors import HarnessError, UserError
from ..run.cluster.building import kernels_of, take
from ..run.cluster.task import TaskOrder
from ..run.places import Places
from . import config


def main() -> int:
    action, *names = sys.argv[1:]
    given, cache = sys.stdin.buffer.read(), config.cache_dir()
    try:
        if action == "take":
            take(given, Places(out=cache, cache=cache).libraries)
            return 0
        with os.fdopen(os.dup(1), "wb") as out:
            os.dup2(2, 1)  # what a problem prints is no archive
            order = TaskOrder.loads(given.decode())
            out.write(kernels_of(order, *names, say=lambda text: print(text, file=sys.stderr)))
    except (HarnessError, UserError) as error:
        print(error, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
