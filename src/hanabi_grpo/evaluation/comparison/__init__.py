"""Training runs side by side: arms of several seeds, their curves, held-out scores, differences.

Map:
    arms         parses arms and reads the folders of their runs
    conditions   settings in which arms differ
    kinds        which evaluations of different runs belong together
    figures      curves, held-out scores and differences with their errors
    tables       the comparison as tables and notes
"""
