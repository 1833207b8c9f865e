"""Attention on Hopper: two products of wgmma with a map of scores and an online softmax between them."""
