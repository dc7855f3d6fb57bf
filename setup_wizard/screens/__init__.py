"""The steps of the wizard, in their order."""

from __future__ import annotations

from setup_wizard.screens.access import AccessStep
from setup_wizard.screens.base import Step
from setup_wizard.screens.cards import CardsStep
from setup_wizard.screens.machine import MachineStep
from setup_wizard.screens.memory import MemoryStep
from setup_wizard.screens.model import ModelStep
from setup_wizard.screens.review import ReviewStep
from setup_wizard.screens.start import StartStep
from setup_wizard.screens.users import UsersStep

STEPS: tuple[type[Step], ...] = (
    MachineStep,
    ModelStep,
    CardsStep,
    MemoryStep,
    UsersStep,
    AccessStep,
    ReviewStep,
    StartStep,
)
