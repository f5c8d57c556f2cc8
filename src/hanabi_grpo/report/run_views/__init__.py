"""Views of one run: its state on disk, its figures and the dashboard.

Nothing here imports torch or matplotlib, and nothing writes into the run folder.
"""
