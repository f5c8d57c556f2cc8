"""Folders for a hub: an adapter per player, with a card.

Map:
    origin    where adapters come from: their run's settings, score and evaluations
    card      the README, by huggingface_hub's ModelCard
    folder    the whole folder: it appears at once or not at all
"""
