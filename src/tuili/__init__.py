"""Tuili runs open-weights language models. The public surface: LLM, SamplingParams, the errors, __version__."""

__version__ = "0.1.0"
