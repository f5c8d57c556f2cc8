"""Charts, pages, terminal screens, and the card of an exported model."""
