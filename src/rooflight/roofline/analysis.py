"""Analysis: a session costed and bounded for a device, with its report."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from rooflight.hardware.devices import get
from rooflight.hardware.devices.spec import DeviceSpec
from rooflight.records.estimate import Estimate
from rooflight.records.quantity import Quantity, count_of
from rooflight.records.report import Report, Shown
from rooflight.records.session import Session
from rooflight.records.visible import visible
from rooflight.roofline.account.accounted import Accounted
from rooflight.roofline.costed import ran_elsewhere
from rooflight.roofline.findings import Diagnosis
from rooflight.roofline.host import Host
from rooflight.roofline.tables.report import report_of


class Analysis(Accounted, Shown):
    """A session costed and bounded for a device, see ``CostedSession``. ``show()`` prints the report,
    ``print(analysis)`` its main part; ``report()`` is what renderers take.
    """

    diagnosed_by: Callable[[Accounted], Diagnosis | None] | None = None
    """What finds the causes that its report shows; none of an analysis that only counts."""

    def __repr__(self) -> str:
        totals = self.totals
        measured = "" if totals.measured_s is None else f", measured {Quantity(totals.measured_s, 's')}"
        ops, bound = count_of(totals.calls, "op"), Quantity(totals.op_bound_s, "s")
        return visible(f"Analysis({ops} on {self.device.name}, op bound {bound}{measured})")

    def report(self, *, top: int = 10) -> Report:
        """What ``rooflight analyze`` shows; ``top`` limits the rows of long tables. Raises ValueError below 1."""
        return report_of(self, top=top, found=self.diagnosed_by(self) if self.diagnosed_by else None)


def analyze(
    session: Session,
    device: DeviceSpec | str,
    target: str = "",
    estimates: Sequence[Estimate | None] | None = None,
    host: Host | None = None,
) -> Analysis:
    """Cost and bound a session for a device given as a spec or by name; ``estimates`` of its signatures on that device
    make it predict times too, its wall time with ``host``. Raises ValueError for an unknown name.

    Times that were measured on another device are not times of this one: no efficiency is computed with them. Where the
    session names a GPU that is not in the catalog, ``device`` stands for that.
    """
    spec = get(device) if isinstance(device, str) else device
    there = "" if session.measurement is None else ran_elsewhere(session, spec)
    return Analysis(session, spec, target, estimates, host, there)
