"""One file a command: a function of its name, whose annotations are the options and whose docstring is the help.

`cli` has the table of names and imports a file when its command is called. Shared are `playing` (options, games and
servers of commands that play), `dry_run` (of serve and train), `nodes` (of train), `console` (printing, the other
terminal's command), `interruption` (commands that go on later) and `mirror` (the process that mirrors a run to W&B).
"""
