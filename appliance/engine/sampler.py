"""Draws the tokens of a window and of its drafts, each row by its own request's rules."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch

from appliance.engine.logprobs import with_logprobs
from appliance.engine.places import Place, places_of
from appliance.model.greedy import Likeliest
from appliance.model.interface import StepModel
from appliance.scheduler.commit import Drawn
from appliance.scheduler.session import Session
from appliance.scheduler.windows import Turn
from kernels.sampling import Row, RowParams, Rules, build, choose


@dataclass(slots=True)
class _Asked:
    """A request's rules in the sampler's terms, and the counts its penalties need.

    Attributes:
        plain: greedy and nothing else, so its rows need no description.
        stops: stop tokens, forbidden at positions before `first_stop`.
        counts: how often each token was generated; kept only for penalties.
        counted: output tokens in `counts`.
        drafted: drafts chosen since the last commit, for the penalties of the next one.
    """

    session: Session
    rules: Rules
    plain: bool
    stops: tuple[int, ...]
    first_stop: int
    prompt_tokens: torch.Tensor | None
    counts: dict[int, int] = field(default_factory=dict)
    counted: int = 0
    drafted: list[int] = field(default_factory=list)

    def row(self, position: int, *, recent: Sequence[int]) -> Row:
        """The row that draws the token at `position`, after the output and the drafts `recent`."""
        return Row(
            self.rules,
            position,
            generated=self.counts.items(),
            recent=recent,
            prompt_tokens=self.prompt_tokens,
            forbidden=self.stops if position < self.first_stop else (),
        )

    def catch_up(self) -> None:
        """Counts output tokens that came since the last call."""
        if self.rules.uses_generated:
            for token in self.session.output[self.counted :]:
                self.counts[token] = self.counts.get(token, 0) + 1
            self.counted = len(self.session.output)


class Sampler:
    """Owned by the engine's thread."""

    def __init__(self, *, vocabulary: int, likeliest: Likeliest | None = None) -> None:
        """Knows no request yet; `likeliest` of a model that chooses for greedy rows itself."""
        self._vocabulary = vocabulary
        self._likeliest = likeliest
        self._asked: dict[int, _Asked] = {}

    def open(self, session: Session) -> None:
        """Takes the rules of a session that was given its slot."""
        request = session.request
        sampling = request.sampling
        rules = Rules(
            temperature=sampling.temperature,
            top_k=min(sampling.top_k, self._vocabulary),
            top_p=sampling.top_p,
            min_p=sampling.min_p,
            presence_penalty=sampling.presence_penalty,
            frequency_penalty=sampling.frequency_penalty,
            repetition_penalty=sampling.repetition_penalty,
            logit_bias=sampling.logit_bias,
            seed=sampling.seed,
        )
        changed = rules.uses_generated or rules.logit_bias or request.min_tokens
        self._asked[session.slot] = _Asked(
            session,
            rules,
            plain=rules.temperature == 0 and not changed,
            stops=tuple(sorted(token for token in request.stop_token_ids if 0 <= token < self._vocabulary)),
            first_stop=session.prompt_tokens + request.min_tokens,
            prompt_tokens=torch.tensor(sorted(set(request.prompt_ids))) if rules.uses_prompt else None,
        )

    def give_rules(self, session: Session, model: StepModel) -> bool:
        """Hands an opened session's rules to a model that draws itself; False where more is wanted than a draw."""
        asked, request = self._asked[session.slot], session.request
        stops = asked.stops if request.min_tokens else ()
        drawn = model.open_rules(session.slot, asked.rules, stops=stops, first_stop=asked.first_stop if stops else 0)
        return drawn and request.top_logprobs is None and request.prompt_logprobs is None

    def draw(self, turn: Turn, logits: torch.Tensor) -> list[Drawn]:
        """Draws for each span of the turn.

        Args:
            turn: the window and its sessions.
            logits: float32 [rows that yield logits, vocabulary].
        """
        places = places_of(turn)
        numbers = [row for place in places for row in place.drawn_rows]
        tokens: list[int] = []
        finite: list[bool] = []
        if numbers:
            own = logits if len(numbers) == logits.shape[0] else logits[torch.tensor(numbers, device=logits.device)]
            if self._likeliest is not None and all(
                self._asked[place.session.slot].plain for place in places if place.drawn
            ):
                ids, _, numeric = self._likeliest(own)
                tokens, finite = ids.tolist(), numeric.tolist()
            else:
                choice = choose(own, self._window_params(places, logits.device))
                tokens, bad = torch.stack((choice.ids, choice.bad.to(torch.int64))).tolist()
                finite = [not flag for flag in bad]
        found: list[Drawn] = []
        start = 0
        for place in places:
            end = start + place.drawn
            found.append(Drawn(tokens[start:end], finite[start:end]))
            start = end
        return with_logprobs(places, found, logits)

    def choose(
        self, logits: torch.Tensor, *, slots: Sequence[int], positions: Sequence[int]
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Implements Chooser: draws drafts with the noise that the window will use at the same positions.

        Where the drafter's distribution is close to the model's, both draws mostly give the same token.
        """
        asked = [self._asked[slot] for slot in slots]
        plain = all(one.plain for one in asked)
        if plain and self._likeliest is not None:
            return self._likeliest(logits)[:2]
        if plain:
            params = RowParams(count=len(slots), vocabulary=self._vocabulary)
        else:
            params = build(
                [self._draft_row(one, position) for one, position in zip(asked, positions, strict=True)],
                vocabulary=self._vocabulary,
                device=logits.device,
            )
        choice = choose(logits, params, greedy_confidence=True)
        if any(one.rules.uses_generated for one in asked):
            for one, token in zip(asked, choice.ids.tolist(), strict=True):
                one.drafted.append(token)
        return choice.ids, choice.probabilities

    def _window_params(self, places: Sequence[Place], device: torch.device) -> RowParams:
        drawing = [(place, self._asked[place.session.slot]) for place in places if place.drawn]
        if all(asked.plain for _, asked in drawing):
            return RowParams(count=sum(place.drawn for place, _ in drawing), vocabulary=self._vocabulary)
        rows: list[Row] = []
        for place, asked in drawing:
            asked.catch_up()
            asked.drafted.clear()
            position = place.span.start + len(place.span.tokens) - place.drawn + 1
            drafts = place.session.drafts
            rows += [asked.row(position + row, recent=drafts[:row]) for row in range(place.drawn)]
        return build(rows, vocabulary=self._vocabulary, device=device)

    @staticmethod
    def _draft_row(asked: _Asked, position: int) -> Row:
        asked.catch_up()
        depth = position - asked.session.prompt_tokens - len(asked.session.output)
        return asked.row(position, recent=asked.drafted[:depth])
