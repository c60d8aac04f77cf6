"""Commands for users and groups: tables.py reads and writes the files under /etc that they all work on."""
