"""Environments of other libraries for use here, and our environments as OpenEnv servers.

Each library is imported only when it is used.
"""
