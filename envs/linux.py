"""fcntl. Where it is missing, on Windows, this import ends in one line, because envs and rl need Linux for more."""

try:
    import fcntl
except ImportError:
    line = "this needs Linux, for fcntl among others; on Windows run it in WSL, the Windows Subsystem for Linux"
    raise ImportError(line) from None

__all__ = ["fcntl"]
