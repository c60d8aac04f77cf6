"""Machines that environments run on: a shell over an in-memory Linux, MySQL over SQLite, a process sandbox."""
