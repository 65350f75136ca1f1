"""llama.cpp's server: ``PYTHON llama_server.py MODEL PORT SLOTS CONTEXT``, until stdin is closed.

The Python that runs it has ``xllamacpp`` and nothing of ours; CONTEXT are the tokens of all slots together.
"""

from __future__ import annotations

import sys

import xllamacpp  # type: ignore[import-not-found]

if __name__ == "__main__":
    parameters = xllamacpp.CommonParams()
    parameters.model.path = sys.argv[1]
    # One thread: threads that wait for one another spin, and stand still where other programs run.
    parameters.cpuparams.n_threads = parameters.cpuparams_batch.n_threads = 1
    parameters.port, parameters.n_parallel, parameters.n_ctx = map(int, sys.argv[2:])
    server = xllamacpp.Server(parameters)
    print(server.listening_address, flush=True)
    sys.stdin.read()
