"""Hanabi: rules, prompts, policies, conventions, replays, metrics and alarms."""
