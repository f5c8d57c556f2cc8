"""One player on a grid: FrozenLake and Sokoban. Each task is a map of its own."""
