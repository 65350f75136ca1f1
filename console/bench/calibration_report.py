"""A calibration as text in 80 columns."""

from __future__ import annotations

import textwrap

from slotdeck.console.advice.calibration import Calibration, bottlenecks, busy_warning
from slotdeck.console.bench.machine import machine_line

COLUMNS = 80


def calibration_text(calibration: Calibration) -> list[str]:
    """What was measured, where the bottlenecks are, and what a step costs."""
    edge = calibration.edge
    computes = f"{calibration.device}, {calibration.threads} threads, {calibration.kernels} kernels"
    lines = _wrapped("machine  ", machine_line(calibration.machine))
    lines += _wrapped("engine   ", f"{calibration.model} {calibration.weights}, KV {calibration.kv_dtype}, {computes}")
    lines += [
        f"prefill  {calibration.prefill_per_second:.0f} tokens/s, one prompt alone, "
        f"{calibration.prefill_chunk} tokens a step",
        f"decode   {calibration.decode_per_second:.1f} tokens/s, one stream alone",
    ]
    for sentence in bottlenecks(calibration):
        lines += _wrapped("limits   ", sentence)
    if (warning := busy_warning(calibration)) is not None:
        lines += _wrapped("warning  ", warning)
    lines += ["", f"milliseconds of a step    {'alone':>8} {'served':>8}"]
    for label, name, times in _PRICES:
        alone, served = (1000 * times * getattr(model, name) for model in (calibration.alone, calibration.served))
        lines.append(f"  {label:<24}{alone:>8.2f} {served:>8.2f}")
    lines += _wrapped(
        "spread   ",
        f"half of all steps are within {_half(calibration.served.spread)} of that, those with prefill within "
        f"{_half(calibration.served.prefill_spread)}",
    )
    lines += _wrapped(
        "intake   ",
        f"{1000 * edge.intake:.1f} ms + {1e6 * edge.intake_token:.1f} µs per token; a client that does not pause "
        f"asks again after {1000 * edge.turnaround:.0f} ms",
    )
    return lines


_PRICES = (
    ("each step", "step", 1),
    ("each stream", "decode", 1),
    ("100 prefill tokens", "prefill_token", 100),
    ("each prompt in a step", "prefill_row", 1),
    ("each first token", "first_token", 1),
    ("1000 tokens read by decode", "decode_context", 1000),
    ("100 x 1000 by prefill", "prefill_context", 100_000),
)


def _half(spread: tuple[float, ...]) -> str:
    quarter = len(spread) // 4
    return f"{spread[quarter] - 1:+.0%} to {spread[-1 - quarter] - 1:+.0%}"


def _wrapped(head: str, text: str) -> list[str]:
    return textwrap.wrap(text, COLUMNS, initial_indent=head, subsequent_indent=" " * 9, break_on_hyphens=False)
