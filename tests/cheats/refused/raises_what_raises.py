# problem: norm
# line: forged
# refused: raised
# guards: none
"""Raises something that is no Exception, and raises again where it is asked what it says."""

from torch import nn


class _Odd(BaseException):
    def __str__(self):
        raise ValueError("\x1b[2Jaccepted")


class ModelNew(nn.Module):
    def __init__(self, width):
        super().__init__()
        raise _Odd
