"""Ratios that say how far this software is from what its parts could do.

`docs/benchmarks.md` is the guide. `row` is what every measurement returns, `pairing` how two arms
are compared, `context` what a measurement is given. One `*_rows` file per family of ratios;
`catalogue` lists them. `engine_bench` alone starts the engine, once a run.
"""
