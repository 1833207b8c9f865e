# problem: norm
# line: loose-equality
# refused: no_entry
# guards: none
"""ModelNew is no nn.Module."""


class ModelNew:
    def __init__(self, width):
        self.width = width
