"""What the server of `processes.py` does before it forks."""

import atexit
import gc
import os
import sys
from multiprocessing import util

import processes

sys.modules.setdefault("rfc3987_syntax", None)  # as in nbs/_dev/notebooks.py
processes.import_all()
gc.collect()
gc.freeze()  # a search for garbage leaves it out, and its memory stays shared
server = os.getpid()


def end():
    "End without the search for what was not collected, whose results nanobind would print."
    if os.getpid() == server:
        util._exit_function()
        os._exit(0)


atexit.register(end)
