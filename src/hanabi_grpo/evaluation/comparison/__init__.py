"""Training runs side by side: arms of several seeds each, their learning curves, held-out scores
and differences.
"""
