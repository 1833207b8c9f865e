"""Which knob settings win: the memory of earlier winners."""
