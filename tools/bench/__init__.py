"""Ratios that show how close this software comes to what its parts can do.

`docs/benchmarks.md` is the guide. `row` is what every measurement returns, `pairing` compares two
arms, and `context` is the input of a measurement. There is one `*_rows` file per family of ratios;
`catalogue` lists them. Only `engine_bench` starts the engine, once per run.
"""
