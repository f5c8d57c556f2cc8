"""One file a command: a function of its name, whose annotations are the options and whose docstring is the help.

`cli` has the table of names and imports a file when its command is called.

Map:
    terminals      options of serve, train and doctor; serve, train, dry_run, nodes and doctor/ do their work
    playing        options, games and servers of commands that play
    console        printing, and the command that the other terminal needs
    interruption   commands that can be stopped and go on later
    mirror         the process that mirrors a run to W&B
"""
