"""The parts of tools/gpu/check.sh and tools/gpu/pack.sh; none of it has run on a GPU yet."""
