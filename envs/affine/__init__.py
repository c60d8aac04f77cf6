"""Affine's three environments: sat, abd and ded."""
