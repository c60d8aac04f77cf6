"""On a machine without a CUDA device the tests of Triton kernels run under Triton's interpreter.

Files share a process, which takes 4 seconds to start.
"""

import pytest
from on_triton import needs_no_device, run_under_the_interpreter

QUICK = [  # the least number of tests of each file that pass
    {"attention": 20, "quant": 15, "linear": 16},
    {"logprob": 20, "sample": 12, "block": 14, "step": 21},
]


@needs_no_device
@pytest.mark.parametrize("at_least", QUICK, ids="+".join)
def test_kernels_under_the_interpreter(at_least):
    run_under_the_interpreter(at_least)


@needs_no_device
@pytest.mark.full
@pytest.mark.parametrize("at_least", [{"attention": 36}, {"logprob": 6, "block": 3}], ids="+".join)
def test_rest_under_the_interpreter(at_least):
    """The tests with the marker full."""
    run_under_the_interpreter(at_least, "full")
