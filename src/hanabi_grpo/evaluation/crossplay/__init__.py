"""Cross-play: every entry with every other, in both orders, on common tasks."""
