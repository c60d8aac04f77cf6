"""Import fcntl, or raise one line that names Linux: envs and rl need more of it than this."""

try:
    import fcntl
except ImportError:
    line = "this needs Linux, for fcntl among others; on Windows run it in WSL, the Windows Subsystem for Linux"
    raise ImportError(line) from None

__all__ = ["fcntl"]
