"""The engine's loop: runs steps in one thread, and applies changes of settings between them."""
