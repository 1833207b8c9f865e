# problem: norm
# refused: no_entry
"""ModelNew is no nn.Module."""


class ModelNew:
    def __init__(self, width):
        self.width = width
