"""The package that openenv.yaml names."""
