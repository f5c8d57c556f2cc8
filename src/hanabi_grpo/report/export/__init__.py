"""Folders for a hub: a player each, with a card.

Map:
    origin    where adapters come from: their run's settings, score and evaluations
    card      the README, by huggingface_hub's ModelCard
    folder    the whole folder: it appears at once or not at all
"""
