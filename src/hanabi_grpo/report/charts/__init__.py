"""Pictures by matplotlib, which is imported when something is drawn, not before.

Map:
    canvas       figures and grids, their looks, files and data: addresses
    labels       names at the right end of lines
    run          score, players, phases of a run; small figures of its page
    alarms       what the alarms watch, with thresholds
    bands        arms of several seeds
    heat_map     a matrix of scores, and the colours of scores
"""
