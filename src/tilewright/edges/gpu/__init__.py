"""The device at hand: what it is, how fast it is, and the lease under which one process at a time measures."""
