"""Which knob settings win: the memory of winners with their evidence, and its files."""
