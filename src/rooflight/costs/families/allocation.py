"""Making tensors.

Conventions: memory handed out uninitialized moves no byte; a fill writes each byte once and reads none, since the
tensor it is shaped like only lends its shape. Sequences (``arange``) and windows are fills.
"""

from __future__ import annotations

from functools import partial

from rooflight.costs import registry
from rooflight.costs.families.rules import nothing, overwrites, register, writes

formula = partial(registry.formula, error_group="allocation", fusable=True)

UNINITIALIZED = (
    "empty empty_like empty_strided empty_permuted new_empty new_empty_strided empty_quantized resize resize_as "
    "_resize_output _empty_affine_quantized _empty_per_channel_affine_quantized _efficientzerotensor "
    "_cudnn_init_dropout_state _sparse_coo_tensor_with_dims sparse_resize sparse_resize_and_clear resize_as_sparse"
)

FILLS = (
    "zeros ones full zeros_like ones_like full_like new_zeros new_ones new_full _new_zeros_with_same_feature_meta "
    "arange range linspace logspace eye scalar_tensor tril_indices triu_indices fft_fftfreq fft_rfftfreq _dim_arange "
    "bartlett_window blackman_window hamming_window hann_window kaiser_window"
)

register(formula, {nothing: UNINITIALIZED, writes: FILLS, overwrites: "fill zero"})
