"""The settings of a run: fields, the words key=value, recipes, help, and what is refused."""
