"""Stands before the real numba on the path of a coordinator that is measured without it."""

raise ModuleNotFoundError("hidden for a measurement", name="numba")
