"""Counts what the engine did and draws its picture for /v1/status; torch-free."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from appliance.engine.handle import (
    CacheStatus,
    DraftCounts,
    EngineStatus,
    QueueStatus,
    SlotStatus,
    TimingStatus,
    WindowCost,
)
from appliance.model.expert_status import ExpertStatus
from appliance.model.stage_status import StageStatus
from appliance.scheduler.planner import totals
from appliance.scheduler.scheduler import Scheduler
from appliance.scheduler.session import Session

# The rate is over this much busy time, whenever it was.
_RATE_SPAN_S = 60.0


class Board:
    """Totals since start; written by the engine's thread."""

    def __init__(
        self,
        *,
        stages: Callable[[], tuple[StageStatus, ...]] = tuple,
        experts: Callable[[], ExpertStatus | None] = lambda: None,
    ) -> None:
        """Nothing happened yet; `stages` and `experts` of a model that has any."""
        self._stages = stages
        self._experts = experts
        self._windows = 0
        self._forward_s = 0.0
        self._draft_s = 0.0
        self._sample_s = 0.0
        self._host_s = 0.0
        self._recent: deque[tuple[float, int]] = deque()
        self._recent_s = 0.0
        self._recent_tokens = 0

    def add(self, *, forward_s: float, sample_s: float, draft_s: float, host_s: float, tokens: int) -> None:
        """Notes a finished window that yielded `tokens` generated tokens."""
        self._windows += 1
        self._forward_s += forward_s
        self._sample_s += sample_s
        self._draft_s += draft_s
        self._host_s += host_s
        window_s = forward_s + sample_s + draft_s + host_s
        self._recent.append((window_s, tokens))
        self._recent_s += window_s
        self._recent_tokens += tokens
        while self._recent_s > _RATE_SPAN_S and len(self._recent) > 1:
            old_s, old_tokens = self._recent.popleft()
            self._recent_s -= old_s
            self._recent_tokens -= old_tokens

    def picture(self, scheduler: Scheduler) -> EngineStatus:
        """The engine between two windows. Queue and uptime are filled in by the reader."""
        by_slot = {session.slot: session for session in scheduler.running}
        depths = scheduler.limits.draft_max
        offered = [session.acceptance.offered for session in scheduler.running]
        accepted = [session.acceptance.accepted for session in scheduler.running]
        return EngineStatus(
            slots=tuple(_slot(index, by_slot.get(index)) for index in range(scheduler.limits.slots)),
            queue=QueueStatus(waiting=0, limit=scheduler.queue.limit, oldest_wait_s=0.0),
            cache=CacheStatus(
                page_tokens=scheduler.pages.page_tokens,
                pages_total=scheduler.pages.total,
                pages_used=sum([len(session.pages) for session in scheduler.running]),
                experts=self._experts(),
            ),
            timings=TimingStatus(
                windows=self._windows,
                prompt_tokens=scheduler.prompt_tokens,
                generated_tokens=scheduler.generated_tokens,
                forward_s=self._forward_s,
                draft_s=self._draft_s,
                sample_s=self._sample_s,
                host_s=self._host_s,
                tokens_per_s=self._recent_tokens / self._recent_s if self._recent_s else 0.0,
                uptime_s=0.0,
            ),
            drafts=DraftCounts(
                totals([scheduler.past_offered, *offered], depths=depths),
                totals([scheduler.past_accepted, *accepted], depths=depths),
            ),
            requests_finished=dict(scheduler.finished),
            nonfinite_rows=scheduler.nonfinite_rows,
            last_fault=None,
            stages=self._stages(),
            plans=scheduler.drafting.plans(),
            costs=tuple(
                WindowCost(
                    groups=groups,
                    conversations=one.shape.conversations,
                    rows=one.shape.rows,
                    steps=one.shape.steps,
                    seconds=one.seconds,
                    windows=one.count,
                )
                for groups, found in scheduler.drafting.measured().items()
                for one in found
            ),
        )


_NO_DRAFTS = DraftCounts()


def _slot(index: int, session: Session | None) -> SlotStatus:
    if session is None:
        return SlotStatus(
            index=index,
            state="free",
            request_id=None,
            client=None,
            prompt_tokens=0,
            read_tokens=0,
            generated_tokens=0,
            context_tokens=0,
            drafts=_NO_DRAFTS,
        )
    return SlotStatus(
        index=index,
        state=str(session.state),
        request_id=session.request.id,
        client=session.request.client,
        prompt_tokens=session.prompt_tokens,
        read_tokens=session.read,
        generated_tokens=len(session.output),
        context_tokens=session.length,
        drafts=DraftCounts(tuple(session.acceptance.offered), tuple(session.acceptance.accepted)),
    )
