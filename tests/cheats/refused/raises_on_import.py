# problem: norm
# line: breaks-out
# refused: does_not_load
# guards: none
"""Does not load."""

import no_such_package_anywhere  # noqa: F401


class ModelNew:
    pass
