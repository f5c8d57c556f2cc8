"""Games of OpenSpiel.

`game` plays any sequential game, `boards` and `poker` provide the texts for four of them,
`any_game` uses OpenSpiel's own texts, and `policies` are opponents.
"""
