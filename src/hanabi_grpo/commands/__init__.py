"""One file per command, with a function of the command's name.

The function's annotations are the options, and its docstring is the help text. `cli` has the table
of all names, and imports a file when its command is called.

Other modules hold shared code: `console` (printing, interruption, the command of the other
terminal), `playing` (options, games and servers of commands that play), `dry_run` (for serve and
train), `training_plan` and `nodes` (for train), and `mirror` (the process that mirrors a run to
W&B).
"""
