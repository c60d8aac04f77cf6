"""Keep what was imported before a test out of its garbage collections: each takes half a second once all is loaded."""

import gc

import pytest


@pytest.fixture(autouse=True)
def frozen_heap():
    """Import this fixture into a module whose tests call code that collects garbage."""
    gc.freeze()
    yield
    gc.unfreeze()
