"""A package that is trained by ``python -m parcel.fit``."""
