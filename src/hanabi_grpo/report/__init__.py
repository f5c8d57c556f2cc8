"""Eyes: charts, pages, terminal screens, and the card of an exported model.

Map:
    charts/            pictures by matplotlib
    page               one HTML file: template, style, content security policy; templates/ has one stylesheet for all
    run_report         what is known about one run
    run_page, replay_page, conventions_page, cross_play_page   the four pages
    run_views/         a run folder while it is written, and its dashboard in the terminal
    samples            what W&B shows beside curves
    export/            folders that are ready for a hub
"""
