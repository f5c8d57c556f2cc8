"""One run as people look at it: live in the terminal while it is written, and as one page afterwards.

Nothing here imports torch or matplotlib, and nothing writes into the run folder.

Map:
    tail            what is new in a file that another process appends to, or has cut
    figures         which figures are shown, per team, player and phase
    run_watch       a run folder looked at again and again
    state           what one look found, also as JSON
    last_game       the newest recorded game
    braille         curves of characters
    screen          the dashboard of a run
    server_watch    a rollout server looked at from another machine
    server_screen   its dashboard
    evaluations     evaluation files of a run folder
    curves          curves of the page, as points of an SVG
    page            one HTML file of a run
"""
