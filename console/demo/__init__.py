"""The 2/5/20-user demonstration: one engine, three ways of batching, and what people in front of it get."""
