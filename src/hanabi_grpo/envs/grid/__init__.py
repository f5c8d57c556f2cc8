"""One player on a grid: FrozenLake and Sokoban. Each task has its own map."""
