"""The sweep of precision: lower classes, constants and wrong bounds against the judge's verdict on values, beside
honest orders of summation, over every kind of result that jumps. `python -m benchmarks.precision_sweep --help`."""
