"""Text in and out of the model: chat template and tokenizing, incremental detokenizing, stop strings. No torch."""
