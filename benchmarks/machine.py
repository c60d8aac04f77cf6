"""What a record says of where a measurement was made, and of which code."""

import os
import platform
import re
import subprocess
from functools import cache
from pathlib import Path

import torch


@cache
def commit() -> str:
    """Return the commit of this checkout, with "-dirty" where a file differs from it; "unknown" without git."""
    words = ["git", "describe", "--always", "--dirty", "--exclude=*"]
    try:
        found = subprocess.run(words, cwd=Path(__file__).parent, capture_output=True, text=True).stdout.strip()
    except OSError:
        found = ""
    return found or "unknown"


def describe() -> dict:
    cpu = Path("/proc/cpuinfo").read_text() if Path("/proc/cpuinfo").is_file() else ""
    model = re.search(r"^model name\s*: (.+)$", cpu, re.M)
    machine = {
        "cpu": model[1].strip() if model else platform.processor(),
        "kind": cpu_name(cpu),
        "avx512_bf16": "avx512_bf16" in cpu,
        "cores": os.cpu_count(),
        "load_1min": round(os.getloadavg()[0], 2),
    }
    return machine | ({"gpu": torch.cuda.get_device_name()} if torch.cuda.is_available() else {})


def cpu_name(cpuinfo: str | None = None) -> str:
    """Return the CPU's kind as a folder's name: its model; its family and model number, which tell a Zen 4 from a Zen
    5; and the widest of the instructions that matter to matrix products, as in amd_epyc_25_17_avx512_bf16.

    cpuinfo: the text of /proc/cpuinfo; default: this machine's.
    """
    if cpuinfo is None:
        cpuinfo = Path("/proc/cpuinfo").read_text() if Path("/proc/cpuinfo").is_file() else ""
    model = re.search(r"^model name\s*: (.+)$", cpuinfo, re.M)
    name = re.sub(r"\(.*?\)|@.*|\b(cpu|processor|\d+-core)\b", " ", (model[1] if model else platform.machine()).lower())
    flags = set(re.findall(r"\w+", "".join(re.findall(r"^flags\s*:.*$", cpuinfo, re.M)[:1])))
    widest = next((flag for flag in ("amx_bf16", "avx512_bf16", "avx512f", "avx2") if flag in flags), "")
    numbers = [re.search(rf"^{field}\s*: (\d+)$", cpuinfo, re.M) for field in ("cpu family", "model")]
    return "_".join(re.findall(r"[a-z0-9]+", " ".join([name, *(number[1] for number in numbers if number), widest])))
