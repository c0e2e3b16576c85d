"""The memory that a node keeps after Python has freed it."""

import platform
import subprocess
import sys

import pytest

_PAGE_FAULTS = """
import resource
from images.broker.runtime.heap import keep_freed_memory
keep_freed_memory()
def copies():
    return [bytes([index]) * 1_000_000 for index in range(4)]
copies()
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(20):
    copies()
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="other C libraries have no such limits")
def test_memory_of_freed_batches_is_used_again_without_page_faults() -> None:
    process = subprocess.run([sys.executable, "-c", _PAGE_FAULTS], capture_output=True, text=True, check=True)
    assert int(process.stdout) < 200, "80 copies of 244 pages each"
