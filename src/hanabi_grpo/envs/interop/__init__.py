"""Environments of other libraries as ours, and ours as OpenEnv's; each library is imported when it
is used.
"""
