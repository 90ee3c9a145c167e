"""What the server of `processes.py` does before it forks."""

import atexit
import gc
import os
import sys

import processes

sys.modules.setdefault("rfc3987_syntax", None)  # as in nbs/_dev/notebooks.py
processes.import_all()
gc.collect()
gc.freeze()  # a search for garbage leaves it out, and its memory stays shared
server = os.getpid()
atexit.register(lambda: os._exit(0) if os.getpid() == server else None)  # it would list what is not collected
