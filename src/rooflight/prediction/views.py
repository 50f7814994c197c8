"""Views: where models of several devices differ about shapes of an operator, so that rows there tell which is right."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from rooflight.devices.spec import DeviceSpec
from rooflight.operators.operator import Operator, Shape
from rooflight.prediction.predictor import Predictor
from rooflight.prediction.work.facts import Floats, facts_of_shapes
from rooflight.prediction.work.features import features_of


def views_of(
    predictor: Predictor, operator: Operator, shapes: Sequence[Shape], dtype: str, device: DeviceSpec
) -> dict[str, Floats]:
    """What each expert answers of shapes, less what the model does: logarithms [shapes] by expert, kind of work and
    direction; 0 for shapes that are other work. None where no model knows the work, and on a device with an expert of
    its own. ``dtype`` is torch's name.
    """
    columns = {name: np.array([shape[name] for shape in shapes], dtype=np.int64) for name in operator.parameters}
    found: dict[str, Floats] = {}
    for direction in operator.directions:
        for rows in facts_of_shapes(operator, columns, dtype, direction, device):
            model = predictor.model_for(rows.key, rows.values, device)
            if model is None or device.name in model.devices:
                continue
            values = features_of(model.key, rows.values, device)
            apart = model.apart(values, model.unrefined(rows.values, values, device).slowdown)
            for expert, column in zip(model.devices, apart.T, strict=True):
                name = f"{expert}, {rows.key}, {direction}"
                found.setdefault(name, np.zeros(len(shapes)))[rows.rows] = column
    return found
