"""Runs a module in a process that ends with the process that started it.

    python -m big_retrieval.runtime.child PARENT MODULE [ARGUMENTS]

A killed sweep or launcher cannot end the processes of its run, which would continue to write to the
folder that the repeated command resumes. On Linux, the kernel therefore kills the process when its
parent ends; on other systems, a thread checks the parent twice a second.
"""

import ctypes
import os
import runpy
import signal
import sys
import threading
import time

PR_SET_PDEATHSIG = 1  # prctl(2): sets the signal that a process gets when its parent ends


def command(module: str, *arguments: str) -> list[str]:
    """Returns the command line of a process that runs a module and ends with this process."""
    child = "big_retrieval.runtime.child"
    return [sys.executable, "-m", child, str(os.getpid()), module, *arguments]


def end_with(parent: int) -> None:
    """Ends this process when its parent, the process with the id `parent`, ends or has ended."""
    if not _kernel_kills():
        threading.Thread(target=watch, args=(parent,), daemon=True).start()
    if os.getppid() != parent:  # the parent ended before `_kernel_kills`
        os.kill(os.getpid(), signal.SIGKILL)


def _kernel_kills() -> bool:
    """Makes Linux's kernel kill this process when its parent ends; False on other systems."""
    if not sys.platform.startswith("linux"):
        return False
    return ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0) == 0


def watch(parent: int, seconds: float = 0.5) -> None:
    """Kills this process when its parent has changed; checks once per `seconds`."""
    while os.getppid() == parent:
        time.sleep(seconds)
    os.kill(os.getpid(), signal.SIGKILL)


if __name__ == "__main__":
    end_with(int(sys.argv[1]))
    sys.argv = sys.argv[2:]
    runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
