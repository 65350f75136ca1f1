"""The contract between an engine (or an adapter of another server) and every screen.

A :class:`Frame` is the complete state at one instant, so a reader that missed some frames needs only the next one.
Its events (:class:`FrameEvent`) are what happened since the frame before. ``None`` means *unknown*; screens show it as
``–``, never as 0. Durations are in seconds, sizes in bytes unless the name says tokens. ``time`` is the wall clock
(seconds since the epoch) and only for display; every duration was measured on the engine's monotonic clock.
"""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict

from slotdeck.engine.core.events import EventKind

FRAME_VERSION = 1

Health = Literal["ok", "starting", "draining", "fault"]
SlotState = Literal["idle", "prefill", "decode", "held", "preempted", "swapped"]
FrameEventKind = (
    EventKind | Literal["setting_changed", "engine_fault", "draining", "too_long", "invalid", "note"]
)  # fmt: skip
"""Of an event: what happened to a request in the scheduler, to a request refused before it, or to the engine."""


class Part(BaseModel):
    """Base of all parts of a frame: unknown fields from a newer engine are ignored, not an error."""

    model_config = ConfigDict(extra="ignore", frozen=True)


class EngineInfo(Part):
    """The engine, its model and its device. Only ``notes`` change before the next start."""

    name: str = "slotdeck"
    version: str | None = None
    pid: int | None = None
    model: str | None = None
    """Id of the served model, as in ``/v1/models``."""
    weights: str | None = None
    kv_dtype: str | None = None
    device: str | None = None
    threads: int | None = None
    kernels: str | None = None
    """Which kernels compute: "torch", or "native" with the instruction set that they use."""
    url: str | None = None
    """Base URL of the HTTP API, without ``/v1``."""
    trained_context: int | None = None
    load_seconds: float | None = None
    weight_bytes: int | None = None
    layers: int | None = None
    kv_heads: int | None = None
    head_dim: int | None = None
    """``layers``, ``kv_heads`` and ``head_dim`` give the size of one token of KV in any type."""
    parameters: int | None = None
    insecure: bool = False
    keys_required: bool = False
    """Clients must send an API key."""
    notes: tuple[str, ...] = ()
    """Lasting facts for the admin, one sentence each: why a type was chosen, what is missing."""


class Bounds(Part):
    """The range of a setting now; both ends are included."""

    least: int
    most: int
    why: str = ""
    """What makes the range narrower than in the table of settings, as a clause: "the KV pool holds no more"."""


class LimitInfo(Part):
    """The settings in force. ``revision`` rises by one with each applied change."""

    revision: int = 0
    slots: int | None = None
    context: int | None = None
    queue: int | None = None
    queue_share: int | None = None
    """Percent of the queue that one user may fill."""
    budget: int | None = None
    budget_in_force: int | None = None
    """Prefill budget of the newest step; it differs from ``budget`` when an ITL target chooses it."""
    itl_target: int | None = None
    """Milliseconds; 0: none."""
    itl_outlook: Literal["kept", "floor", "unreachable"] | None = None
    """Whether the running streams can keep the target. ``kept``: yes. ``floor``: not while prompts are computed, since
    even the smallest prefill makes a step too long. ``unreachable``: no, since decoding alone takes longer. ``None``:
    there is no target, no request streams, or too little was measured."""
    itl_expected: float | None = None
    """Seconds that 19 of 20 steps are expected to stay within, with prefill; without any if ``unreachable``."""
    mode: str | None = None
    """The batching mode in force."""
    next_mode: str | None = None
    """The requested mode, which takes over when the running requests have ended; ``None``: no change is pending."""
    kv_tokens: int | None = None
    preemption: str | None = None
    swap_space: int | None = None
    """Bytes."""
    prefix_cache: bool | None = None
    prefix_sharing: bool | None = None
    bounds: dict[str, Bounds] = {}
    """By name, the ranges that model and pool make narrower than in the table of settings."""


class PoolInfo(Part):
    """KV pool in tokens: live (held by requests) + cached (reclaimable prefix) + free = total."""

    total: int | None = None
    live: int | None = None
    cached: int | None = None
    free: int | None = None
    block_size: int | None = None
    bytes_per_token: int | None = None
    """K and V of one token in all layers."""
    scale_bytes_per_token: int | None = None
    """The scales of one token in an int8 pool, counted apart; 0 for other types."""
    swapped: int | None = None
    """Bytes of KV that preempted requests hold in host memory; not part of the pool."""


class SlotInfo(Part):
    """One slot of the running batch and the request that holds it."""

    slot: int
    state: SlotState = "idle"
    request_id: str | None = None
    user: str | None = None
    prompt_tokens: int | None = None
    computed_tokens: int | None = None
    """Tokens whose KV is in the pool. A prefill ends at ``prompt_tokens``, or after a preemption at prompt + output."""
    output_tokens: int | None = None
    max_tokens: int | None = None
    age: float | None = None
    """Since arrival."""
    ttft: float | None = None
    """From arrival to the first token: intake (tokenising) + queue wait + prefill."""
    intake: float | None = None
    queue_wait: float | None = None
    prefill: float | None = None
    itl_p95: float | None = None
    gaps: tuple[float, ...] = ()
    """The last 24 gaps between tokens at most, oldest first."""
    preemptions: int | None = None
    recomputed_tokens: int | None = None
    """Tokens computed twice because of preemptions of this request."""
    swapped_bytes: int | None = None
    """Bytes of its KV moved by preemption, out and back."""
    cached_tokens: int | None = None
    """Prompt tokens found in the prefix cache."""
    stalled: float | None = None
    """Time that this request spent preempted."""
    blocks: int | None = None


class WaitingInfo(Part):
    """One request in the waiting queue."""

    request_id: str
    user: str | None = None
    prompt_tokens: int | None = None
    waited: float | None = None
    estimate: float | None = None
    """Seconds until a slot is likely free, from the pace at which requests recently finished."""


class CounterInfo(Part):
    """Totals since the engine started. They never go down.

    received = finished + cancelled + failed + rejected + invalid + in flight, at every instant.
    """

    received: int | None = None
    finished: int | None = None
    cancelled: int | None = None
    gave_up_waiting: int | None = None
    """Of the cancelled ones: those whose client left before a slot was free."""
    failed: int | None = None
    rejected: int | None = None
    invalid: int | None = None
    too_long: int | None = None
    """Of the invalid ones: those whose prompt left no room in the context."""
    preemptions: int | None = None
    recomputed_tokens: int | None = None
    cached_tokens: int | None = None
    """Prompt tokens that the prefix cache saved from being computed."""
    prompt_tokens: int | None = None
    """Prefill tokens computed, including those computed again."""
    generated_tokens: int | None = None
    steps: int | None = None
    kv_swap_bytes: int | None = None
    """Bytes of KV that preemption moved to host memory and back, added up."""
    stalled_seconds: float | None = None
    """Time that requests spent preempted."""
    pool_resizes: int | None = None


class WindowInfo(Part):
    """A rolling window. Percentiles are exact; they are ``None`` without samples."""

    seconds: float
    ttft_p50: float | None = None
    ttft_p95: float | None = None
    ttft_count: int = 0
    itl_p50: float | None = None
    itl_p95: float | None = None
    itl_max: float | None = None
    itl_count: int = 0
    wait_p95: float | None = None
    wait_count: int = 0
    generated_per_second: float | None = None
    prompt_per_second: float | None = None
    approximate: bool = False
    """The percentiles come from another server's histogram; screens show them with ``≈``."""


class HostInfo(Part):
    """The machine, measured about once a second."""

    cpu_percent: float | None = None
    engine_cpu_percent: float | None = None
    """Percent of one core; 200 means that two cores are busy."""
    memory_total: int | None = None
    memory_used: int | None = None
    engine_memory: int | None = None
    os_swap_in: float | None = None
    """Bytes per second, as ``vmstat`` prints under si."""
    os_swap_out: float | None = None
    os_swap_used: int | None = None
    major_faults: float | None = None
    """Of the engine process, per second."""
    memory_pressure: float | None = None
    """PSI "some", percent of the last 10 s in which a task waited for memory."""
    gpu_percent: float | None = None
    gpu_memory_total: int | None = None
    gpu_memory_used: int | None = None


class FrameEvent(Part):
    """Something that happened. ``text`` is one sentence; of what clients send it holds only the user's label."""

    time: float
    kind: FrameEventKind
    text: str
    request_id: str | None = None
    user: str | None = None
    slot: int | None = None


class Frame(Part):
    """The state of an engine at one instant."""

    version: int = FRAME_VERSION
    boot_id: str
    """Changes at each start of the engine, so that a reader can tell a restart from a gap."""
    sequence: int
    """Rises by one with each frame of this stream. A gap means that frames and their events were missed."""
    time: float
    uptime: float | None = None
    health: Health = "ok"
    health_reason: str | None = None
    engine: EngineInfo
    limits: LimitInfo
    pool: PoolInfo
    slots: tuple[SlotInfo, ...] = ()
    """One for each slot in force or still held; empty if the server tells nothing of single requests."""
    running: int | None = None
    waiting_count: int | None = None
    waiting: tuple[WaitingInfo, ...] = ()
    """The first 32 waiting requests at most, in the order in which they will be admitted."""
    counters: CounterInfo
    minute: WindowInfo
    ten_minutes: WindowInfo
    generated_per_second: float | None = None
    """Tokens given to clients per second, over the last 5 s."""
    prompt_per_second: float | None = None
    """Prompt tokens computed per second, including recomputed ones, over the last 5 s."""
    recent_ttft: tuple[float, ...] = ()
    """TTFT of the last 20 first tokens at most, oldest first."""
    host: HostInfo
    events: tuple[FrameEvent, ...] = ()
    event_cursor: int | None = None
    """Number of events logged up to this frame. A reader that lost its stream continues from here."""

    @property
    def in_flight(self) -> int:
        """Requests that run or wait; an unknown number counts as 0."""
        return (self.running or 0) + (self.waiting_count or 0)
