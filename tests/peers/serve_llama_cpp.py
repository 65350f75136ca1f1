"""llama.cpp's own HTTP server, run by the interpreter of the peer's environment: FILE PORT THREADS SLOTS CONTEXT CACHE.

CONTEXT is tokens per slot; CACHE is ``on`` or ``off``.
"""

import sys
import threading

import xllamacpp


def main() -> None:
    file, port, threads, slots, context, cache = sys.argv[1:]
    settings = xllamacpp.CommonParams()
    settings.model.path = file
    settings.hostnames, settings.port = ["127.0.0.1"], int(port)
    settings.n_parallel = int(slots)
    settings.n_ctx = int(slots) * int(context)
    settings.cpuparams.n_threads = settings.cpuparams_batch.n_threads = int(threads)
    settings.cache_prompt = cache == "on"
    if cache == "off":
        settings.cache_ram_mib = 0
    server = xllamacpp.Server(settings)
    print(f"serving at {server.listening_address}", flush=True)
    threading.Event().wait()


main()
