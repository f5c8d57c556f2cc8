"""Environments of other libraries as ours, and ours as OpenEnv's.

Each library is imported when it is used.
"""
