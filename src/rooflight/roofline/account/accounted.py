"""An analysis with its account."""

from __future__ import annotations

from functools import cached_property

from rooflight.roofline.account.account import Account
from rooflight.roofline.account.cut import account_of
from rooflight.roofline.account.times import Times
from rooflight.roofline.costed import CostedSession


class Accounted(CostedSession):
    """A costed session, and where the time of its iteration goes: measured, else predicted, else at least."""

    @cached_property
    def account(self) -> Account:
        """Its iteration, cut into pieces."""
        return account_of(Times(self))
