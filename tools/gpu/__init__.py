"""What tools/gpu/check.sh and tools/gpu/pack.sh are made of; none of it has run on a GPU yet."""
