"""What a team's moves mean to its players, counted over thousands of games.

Map:
    moves       the classes of moves and the kinds of hints, numbered and named
    counts      ConventionCounts: games into counters
    figures     the names and formulas of the figures
    report      counters to figures with standard errors
    cells       what the page's tables and bars are made of
"""
