"""Cross-play: every entry with every other, in both orders, on common deals.

- `entries`: what people type; the team of each cell and of each seat swap.
- `plan`: who everybody is, and the list of cells.
- `cells`: plays what is missing and keeps it in a folder.
- `statistics`: self-play minus cross-play, worst partners, ranking; pure functions of an array.
- `summary`: a plan's figures, and their JSON.
- `tables`, `page`, `report`: Markdown, picture, page for a browser.
"""
