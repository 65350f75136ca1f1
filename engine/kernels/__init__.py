"""The engine's fast kernels for CPUs: a C++ library for int8 and int4 weights, compiled on first use.

`build.py` compiles the library, and `library.py` calls it. README.md says what each kernel computes and how to add an
instruction set. This package knows arrays, but no models, requests or torch.
"""
