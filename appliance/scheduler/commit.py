"""Decides what becomes of a span's rows once their tokens are drawn: which drafts stay, and whether it ends here."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from appliance.scheduler.request import FinishReason, TokenLogprob
from appliance.scheduler.session import Session


@dataclass(frozen=True, slots=True)
class Drawn:
    """What the sampler drew for one span.

    Attributes:
        tokens: one per row that continues the conversation: all rows of a decode span, the last of a finished prompt.
        finite: whether the row's logits were numbers; where not, its token means nothing.
        logprobs: of the drawn tokens, when the request wants them.
        scores: of the prompt tokens after each row, when the request wants them (one row fewer in the last chunk).
        scores_finite: whether all scores are numbers.
    """

    tokens: Sequence[int] = ()
    finite: Sequence[bool] = ()
    logprobs: Sequence[TokenLogprob] | None = None
    scores: Sequence[TokenLogprob] = ()
    scores_finite: bool = True


@dataclass(frozen=True, slots=True)
class Verdict:
    """What a span came to.

    Attributes:
        visible: new tokens for the client; a stop token is not among them.
        accepted: drafts that were right.
        reason: why the session ends here, or None.
        error: a sentence and a code, with reason ERROR.
    """

    visible: tuple[int, ...]
    accepted: int
    reason: FinishReason | None = None
    error: tuple[str, str] | None = None


NOT_FINITE = (
    "the model computed a logit that is not a number; this answer ends here, others go on",
    "nonfinite_logits",
)


def judge(session: Session, drawn: Drawn, *, repeat_limit: int) -> Verdict:
    """Appends the drawn tokens that stand to the session's output.

    A draft is right when it equals the token drawn at the row before it; the first wrong one ends the span. Whichever
    end comes first in the order of tokens wins; on the same token a stop wins over the length.
    """
    verdict = _uneventful(session, drawn, repeat_limit=repeat_limit)
    return verdict or _token_by_token(session, drawn, repeat_limit=repeat_limit)


def _uneventful(session: Session, drawn: Drawn, *, repeat_limit: int) -> Verdict | None:
    """The verdict where no token can end anything, which is nearly always; None where each has to be looked at.

    The device waits for this, so it is worth a way of its own.
    """
    output, tokens = session.output, drawn.tokens
    accepted = 0
    for draft, token in zip(session.drafts, tokens, strict=False):
        if draft != token:
            break
        accepted += 1
    new = tuple(tokens[: accepted + 1])
    if (
        len(new) != accepted + 1
        or not session.request.stop_token_ids.isdisjoint(new)
        or not all(drawn.finite)
        or len(output) + len(new) >= session.answer_tokens
        or (repeat_limit and session.run + len(new) >= repeat_limit)
    ):
        return None
    before = output[-1] if output else None
    for token in new:
        session.run = session.run + 1 if token == before else 1
        before = token
    output += new
    return Verdict(new, accepted)


def _token_by_token(session: Session, drawn: Drawn, *, repeat_limit: int) -> Verdict:
    request = session.request
    drafts = session.drafts
    start = len(session.output)
    for row, token in enumerate(drawn.tokens):
        if not drawn.finite[row]:
            return Verdict(tuple(session.output[start:]), row, FinishReason.ERROR, NOT_FINITE)
        session.run = session.run + 1 if session.output and session.output[-1] == token else 1
        session.output.append(token)
        right = row < len(drafts) and drafts[row] == token
        if token in request.stop_token_ids:
            return Verdict(tuple(session.output[start:-1]), row + right, FinishReason.STOP)
        if session.room == 0:
            return Verdict(tuple(session.output[start:]), row + right, FinishReason.LENGTH)
        if repeat_limit and session.run >= repeat_limit and request.stop_token_ids:
            sentence = f"the model wrote token {token} {session.run} times in a row; the answer was stopped"
            return Verdict(
                tuple(session.output[start:]), row + right, FinishReason.ERROR, (sentence, "degenerate_output")
            )
        if not right:
            return Verdict(tuple(session.output[start:]), row)
    raise AssertionError("a span's last row has no draft after it, so it always ends the loop")
