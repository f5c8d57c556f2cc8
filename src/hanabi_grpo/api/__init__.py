"""The Python interface: `import hanabi_grpo as hg`, then `hg.play`, `hg.evaluate`, `hg.Trainer`.

These functions take the same arguments as the commands and call the same code; docs/python.md
describes them. Importing `hanabi_grpo` loads none of it: each name is loaded on first use.
"""
