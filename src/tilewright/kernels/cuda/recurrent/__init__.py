"""Recurrent layers on CUDA: weights of a layer stay on the chip while a cluster does all of its steps."""
