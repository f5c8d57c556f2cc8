"""Training runs side by side: arms of several seeds, their curves, held-out scores, differences.

Map:
    arms         arms as they are typed, and what the folders of their runs hold
    conditions   settings in which arms differ
    kinds        which evaluations of different runs belong together
    figures      curves, held-out scores and differences with their errors
    tables       the comparison as tables and notes
"""
