"""One file a command: a function of its name, whose annotations are the options and whose docstring
is the help.

`cli` has the table of names and imports a file when its command is called. Shared are `console`
(printing, interruption, the other terminal's command), `playing` (options, games and servers of
commands that play), `dry_run` (of serve and train), `nodes` (of train) and `mirror` (the process
that mirrors a run to W&B)."""
