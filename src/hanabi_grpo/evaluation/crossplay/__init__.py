"""Cross-play: every entry with every other, in both orders, on common deals.

- `entries`: what people type, and the line-up of each cell.
- `plan`: who everybody is, and the list of cells.
- `cells`: plays what is missing and keeps it in a folder.
- `statistics`: self-play minus cross-play, worst partners; pure functions of an array.
- `summary`: a plan's figures, and their JSON.
- `tables`: the tables of a summary.
"""
