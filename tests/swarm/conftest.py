"""Labs for tests of the operator: real engines in network namespaces."""

from tests.lab.fixtures import lab_packages, make_lab  # noqa: F401
