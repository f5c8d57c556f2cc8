"""The parts of tools/gpu/check.sh and tools/gpu/pack.sh; docs/benchmarks.md lists what ran."""
