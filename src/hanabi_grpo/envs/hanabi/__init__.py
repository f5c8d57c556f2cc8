"""Hanabi: rules, prompts, policies, conventions, replays, and what the loop needs of a game."""
