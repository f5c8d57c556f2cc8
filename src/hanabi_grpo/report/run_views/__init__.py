"""One run as people look at it; nothing here imports torch or matplotlib, and nothing writes into the run folder.

Map:
    figures       which figures are shown, of the team, of players and of phases
    run_watch     a run folder looked at again and again
    state         what one look found, also as JSON
    last_game     the newest recorded game
    evaluations   evaluation files of a run folder
    screen        the dashboard in the terminal; braille its curves
"""
