"""Text in and out of the model: chat template and tokenising, incremental detokenising, stop strings. No torch."""
