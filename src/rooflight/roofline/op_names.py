"""Names of ops as reports show them."""


def plain_name(name: str) -> str:
    """``aten::mm`` as ``mm``; other namespaces stay."""
    return name.removeprefix("aten::").removeprefix("rooflight::")
