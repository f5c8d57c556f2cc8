"""What each command does; `cli` registers them and imports one only when it is called.

Map:
serve      start the rollout server in this process
train      check everything, wait for the server, become the trainer
dataset    write a dataset file
console    printing shared by them, and the command that the other terminal needs
"""
