"""Runs a module in a process that ends with the one that started it.

    python -m big_retrieval.runtime.child PARENT MODULE [ARGUMENTS]

A sweep or launcher that is killed cannot end the processes of its run, and they would go on in the
folder that the repeated command resumes. So each process makes sure to end: on Linux the kernel
kills the process when its parent ends; elsewhere a thread looks for the parent twice a second.
"""

import ctypes
import os
import runpy
import signal
import sys
import threading
import time

PR_SET_PDEATHSIG = 1  # prctl(2): the signal that a process gets when its parent ends


def command(module: str, *arguments: str) -> list[str]:
    """The command line of a process that runs a module and ends with this process."""
    own = "big_retrieval.runtime.child"
    return [sys.executable, "-m", own, str(os.getpid()), module, *arguments]


def end_with(parent: int) -> None:
    """Makes this process be killed when its parent ends.

    Args:
      parent: the process id of the parent; if the parent has ended already, this process ends.
    """
    if not _kernel_kills():
        threading.Thread(target=watch, args=(parent,), daemon=True).start()
    if os.getppid() != parent:  # it ended before the kernel was asked
        os.kill(os.getpid(), signal.SIGKILL)


def _kernel_kills() -> bool:
    """Asks the Linux kernel to kill this process; False on other systems."""
    if not sys.platform.startswith("linux"):
        return False
    return ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0) == 0


def watch(parent: int, seconds: float = 0.5) -> None:
    """Kills this process when its parent has changed; looks every so many seconds."""
    while os.getppid() == parent:
        time.sleep(seconds)
    os.kill(os.getpid(), signal.SIGKILL)


def main() -> None:
    """Becomes the module."""
    parent, module, *rest = sys.argv[1:]
    end_with(int(parent))
    sys.argv = [module, *rest]
    runpy.run_module(module, run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
