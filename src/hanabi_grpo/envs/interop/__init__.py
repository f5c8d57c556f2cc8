"""Adapters: environments of other libraries for use here, and ours as OpenEnv servers.

Each library is imported only when it is used.
"""
