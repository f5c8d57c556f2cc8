"""Figures as data: matches, evaluations, cross-play, comparisons of runs."""
