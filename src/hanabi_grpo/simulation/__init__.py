"""What a step would take on other machines: a small model of server and trainer, no engine.

Map:
model       assumptions, and the seconds of a step that follow from them
calibrate   assumptions from a run that was measured, and how far the model is from another one
"""
