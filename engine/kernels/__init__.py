"""Native fast paths of the engine on a CPU: a C++ library for int8 and int4 weights, compiled on first use.

`build.py` makes the library, `library.py` is its border with Python. What each kernel computes, and how to add an
instruction set, stands in README.md. The room knows nothing of models, requests or torch.
"""
