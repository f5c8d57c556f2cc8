"""One run as people look at it; nothing here imports torch or matplotlib, and nothing writes into
the run folder.
"""
