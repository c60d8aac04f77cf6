"""Let Ctrl-C end a program at once and quietly while it still imports torch and the rest.

KeyboardInterrupt would be a traceback from inside an import, and some of torch's C code loses it: the program goes on.
A program imports this module before its slow ones; `handled` and `restore` in rl/run/signals.py end its effect. On
Windows, which lacks fcntl and SIGHUP, it ends the program with one line.
"""

import signal
import sys

if sys.platform == "win32":
    try:
        import envs.linux  # noqa: F401
    except ImportError as error:
        raise SystemExit(str(error)) from None
if signal.getsignal(signal.SIGINT) is signal.default_int_handler:  # else the parent process ignores it (nohup)
    signal.signal(signal.SIGINT, signal.SIG_DFL)
