"""Simulators that environments run on: bash on an in-memory Linux, MySQL on SQLite, a sandbox for Python programs.

Each imports only itself; its README.md says what is inside and why it exists.
"""
