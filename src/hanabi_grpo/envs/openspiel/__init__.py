"""Games of OpenSpiel: `game` plays any sequential one, `texts` words four of them, `policies` are
their opponents.
"""
