"""The Python interface: `import hanabi_grpo as hg`, then `hg.play`, `hg.evaluate`, `hg.Trainer`.

These functions take what the commands take, and call what the commands call; docs/python.md shows
them. Importing `hanabi_grpo` loads none of it: each name is loaded when it is first used.
"""
