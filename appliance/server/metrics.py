"""Prometheus metrics over the engine's status, under vLLM's names where they exist."""

from __future__ import annotations

from collections.abc import Iterable

from prometheus_client import CollectorRegistry, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from appliance.engine.handle import EngineStatus
from appliance.errors import ApplianceError
from appliance.server.backend import Backend

FIRST_TOKEN_BUCKETS_S = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 20, 40, 80, 160)
REQUEST_BUCKETS_S = (0.1, 0.25, 0.5, 1, 2.5, 5, 10, 20, 40, 80, 160, 320, 640, 1280)
LABELS = ["model_name"]


class StatusCollector(Collector):
    """Reads the status when scraped; nothing is counted twice."""

    def __init__(self, backend: Backend) -> None:
        self._backend = backend

    def collect(self) -> Iterable[Metric]:
        """Metrics of this moment; before the engine exists only whether it is ready."""
        state = self._backend.readiness()
        yield GaugeMetricFamily("strata:ready", "1 when requests are answered", value=float(state.ready))
        try:
            name, status = self._backend.model().id, self._backend.engine().status()
        except ApplianceError:
            return
        yield from _gauges(name, status)
        yield from _counters(name, status)
        yield from _draft_counters(name, status)
        yield from _stages(name, status)
        yield from _experts(name, status)


def _gauges(name: str, status: EngineStatus) -> Iterable[Metric]:
    busy = sum(slot.state != "free" for slot in status.slots)
    cache = status.cache
    for key, text, value in (
        ("vllm:num_requests_running", "requests that have a slot", busy),
        ("vllm:num_requests_waiting", "requests that wait for a slot", status.queue.waiting),
        (
            "vllm:kv_cache_usage_perc",
            "used share of the KV pages, 1 is all",
            cache.pages_used / max(1, cache.pages_total),
        ),
        ("strata:slots", "conversations decoded together", len(status.slots)),
        ("strata:queue_oldest_wait_seconds", "wait of the oldest waiting request", status.queue.oldest_wait_s),
        (
            "strata:tokens_per_second",
            "generated tokens a second over the last busy minute",
            status.timings.tokens_per_s,
        ),
    ):
        family = GaugeMetricFamily(key, text, labels=LABELS)
        family.add_metric([name], float(value))
        yield family
    timings = status.timings
    if timings.host_gap_p50_s is not None and timings.host_gap_p99_s is not None:
        gap = GaugeMetricFamily(
            "strata:host_gap_seconds", "that the card had no window to compute", labels=[*LABELS, "quantile"]
        )
        gap.add_metric([name, "0.5"], timings.host_gap_p50_s)
        gap.add_metric([name, "0.99"], timings.host_gap_p99_s)
        yield gap


def _counters(name: str, status: EngineStatus) -> Iterable[Metric]:
    timings = status.timings
    for key, text, value in (
        ("vllm:prompt_tokens", "prompt tokens read", timings.prompt_tokens),
        ("vllm:generation_tokens", "tokens generated", timings.generated_tokens),
        ("strata:windows", "forward passes", timings.windows),
        ("strata:forward_seconds", "time in forward passes", timings.forward_s),
        ("strata:draft_seconds", "time in the draft layer", timings.draft_s),
        ("strata:sample_seconds", "time in sampling", timings.sample_s),
        ("strata:host_seconds", "time between the passes", timings.host_s),
        ("strata:nonfinite_rows", "rows discarded for non-finite logits", status.nonfinite_rows),
    ):
        family = CounterMetricFamily(key, text, labels=LABELS)
        family.add_metric([name], float(value))
        yield family
    finished = CounterMetricFamily("vllm:request_success", "requests finished", labels=[*LABELS, "finished_reason"])
    for reason, count in sorted(status.requests_finished.items()):
        finished.add_metric([name, str(reason)], float(count))
    yield finished


def _draft_counters(name: str, status: EngineStatus) -> Iterable[Metric]:
    offered, accepted = status.drafts.offered, status.drafts.accepted
    for key, text, value in (
        ("vllm:spec_decode_num_drafts", "windows with drafts", offered[0] if offered else 0),
        ("vllm:spec_decode_num_draft_tokens", "draft tokens offered", sum(offered)),
        ("vllm:spec_decode_num_accepted_tokens", "draft tokens accepted", sum(accepted)),
    ):
        family = CounterMetricFamily(key, text, labels=LABELS)
        family.add_metric([name], float(value))
        yield family
    depth = CounterMetricFamily(
        "vllm:spec_decode_num_accepted_tokens_per_pos", "draft tokens accepted by depth", labels=[*LABELS, "position"]
    )
    for position, count in enumerate(accepted):
        depth.add_metric([name, str(position)], float(count))
    yield depth


def _stages(name: str, status: EngineStatus) -> Iterable[Metric]:
    """Each card of several; nothing where one device computes."""
    if not status.stages:
        return
    labels = [*LABELS, "stage", "device"]
    keys = [(name, str(number), stage.device) for number, stage in enumerate(status.stages)]
    layers = GaugeMetricFamily("strata:stage_layers", "layers that a card computes", labels=labels)
    for key, stage in zip(keys, status.stages, strict=True):
        layers.add_metric(key, float(stage.past_layer - stage.first_layer))
    yield layers
    for metric, text, field in (
        ("strata:stage_windows", "windows that passed through a card", "windows"),
        ("strata:stage_busy_seconds", "time a card computed", "busy_s"),
        ("strata:stage_idle_seconds", "time a card waited while the engine had work", "idle_s"),
        ("strata:stage_handoff_seconds", "time windows took to the next card", "handoff_s"),
    ):
        family = CounterMetricFamily(metric, text, labels=labels)
        for key, stage in zip(keys, status.stages, strict=True):
            family.add_metric(key, float(getattr(stage, field)))
        yield family
    route = GaugeMetricFamily("strata:stage_route", "1 for the way to the next card", labels=[*labels, "route"])
    for key, stage in zip(keys, status.stages, strict=True):
        if stage.route:
            route.add_metric([*key, stage.route], 1.0)
    yield route


def _experts(name: str, status: EngineStatus) -> Iterable[Metric]:
    """Routed experts on cards and in RAM; nothing on the CPU."""
    experts = status.cache.experts
    if experts is None:
        return
    shares = [("strata:experts_on_card_ratio", "share of the routed experts that the cards hold", experts.on_card)]
    if experts.hits is not None:
        shares.append(("strata:expert_hit_ratio", "share of routed rows whose expert was on its card", experts.hits))
    for key, text, value in shares:
        family = GaugeMetricFamily(key, text, labels=LABELS)
        family.add_metric([name], value)
        yield family
    swaps = CounterMetricFamily("strata:expert_swaps", "experts that came onto a card for others", labels=LABELS)
    swaps.add_metric([name], float(experts.swaps))
    yield swaps


class Metrics:
    """The application's own registry: the collector and two latency histograms."""

    def __init__(self, backend: Backend) -> None:
        self._registry = CollectorRegistry()
        self._registry.register(StatusCollector(backend))
        self._first_token = Histogram(
            "vllm:time_to_first_token_seconds",
            "from the request's arrival to its first token",
            LABELS,
            buckets=FIRST_TOKEN_BUCKETS_S,
            registry=self._registry,
        )
        self._whole = Histogram(
            "vllm:e2e_request_latency_seconds",
            "from the request's arrival to its end",
            LABELS,
            buckets=REQUEST_BUCKETS_S,
            registry=self._registry,
        )

    def first_token(self, model: str, seconds: float) -> None:
        """Notes the wait for a first token."""
        self._first_token.labels(model).observe(seconds)

    def finished(self, model: str, seconds: float) -> None:
        """Notes the time of a whole request."""
        self._whole.labels(model).observe(seconds)

    def text(self) -> bytes:
        """The exposition format."""
        return generate_latest(self._registry)
