"""Folders for a hub: a player each, with a card, and on request the base model with the adapter merged into it.

Map:
    origin    where adapters come from: their run's settings, score and evaluations
    card      the README, by huggingface_hub's ModelCard
    merged    base and adapter as one model, compared with the two apart
    folder    the whole folder: it appears at once or not at all
"""
