# problem: norm
# refused: does_not_load
"""Does not load."""

import no_such_package_anywhere  # noqa: F401


class ModelNew:
    pass
