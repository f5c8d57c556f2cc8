"""Games of OpenSpiel.

`game` plays any sequential one, `boards` and `poker` word four of them, `any_game` takes
OpenSpiel's own texts, `policies` are opponents.
"""
