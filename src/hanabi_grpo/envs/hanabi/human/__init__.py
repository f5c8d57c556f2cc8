"""A person in one seat, at the terminal.

- `moves`: from what was typed to a move, and why a move is not allowed.
- `screens`: what the person is shown: the table, the log, the legal moves, what can be worked out.
- `ending`: the score in words and the own cards.
- `seat`: the policy that shows and asks.

Everything that is shown before the end is a function of a `PlayerView`, so it
cannot leak a hidden card.
"""
