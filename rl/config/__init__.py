"""The settings of a run: fields, the words key=value, recipes, help and refusals."""
